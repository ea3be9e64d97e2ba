"""The result of the health checks: findings with figures and remedies, and the overall status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.admin.health.thresholds import CRITICAL, WARNING

if TYPE_CHECKING:
    from agentbus.admin.health.thresholds import Levels


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """One finding of the health checks.

    `check` is the stable name of the check, `subject` what was checked, `severity` is `warning` or
    `critical`. `figure` is the measured value and `threshold` the one that it exceeds, both None for a
    check without a value. `text` is a sentence for people, `remedy` says what to do.
    """

    check: str
    subject: str
    severity: str
    figure: float | None
    threshold: float | None
    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a project: the findings, critical ones first, and the numbers of checked objects.

    `streams` counts the event streams with reports of relays or consumers.
    """

    findings: Sequence[HealthFinding]
    queues: int
    consumers: int
    workers: int
    streams: int

    @property
    def critical(self) -> int:
        """The number of critical findings."""
        return sum(finding.severity == CRITICAL for finding in self.findings)

    @property
    def warnings(self) -> int:
        """The number of warnings."""
        return sum(finding.severity == WARNING for finding in self.findings)

    @property
    def status(self) -> str:
        """`healthy`, or the severity of the worst finding: `warning` or `critical`."""
        if self.critical:
            return CRITICAL
        return WARNING if self.findings else "healthy"


def above(
    levels: Levels, check: str, subject: str, figure: float, text: str, remedy: str
) -> Iterator[HealthFinding]:
    """Yield a finding if a figure exceeds its thresholds."""
    crossed = levels.crossed(figure)
    if crossed is not None:
        severity, threshold = crossed
        yield HealthFinding(check, subject, severity, round(figure, 3), threshold, text, remedy)


def things(number: float, thing: str) -> str:
    """Return a number with its noun in the right form."""
    return f"{number:,.0f} {thing}" + ("" if number == 1 else "s")


def span(seconds: float) -> str:
    """Return a duration for people, rounded."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.0f} hours" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
