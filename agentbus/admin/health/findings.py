"""What an examination comes to: findings, each with its figure and what to do, and how all is."""

from __future__ import annotations

from agentbus.admin.health.thresholds import CRITICAL, WARNING
from agentbus.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class HealthFinding(Record):
    """One thing that is not well.

    `check` is a stable word, `subject` what was looked at, `severity` is warning or critical. `figure` is
    what was measured and `threshold` what it crossed, None where there is nothing to measure. `text` says
    it in a sentence, `remedy` what to do.
    """

    check: str
    subject: str
    severity: str
    figure: float | None
    threshold: float | None
    text: str
    remedy: str


class Health(Record):
    """How a project is: what was found, the worst first, and how much was looked at.

    `streams` counts the streams of events that relays and consumers told of.
    """

    findings: Sequence[HealthFinding]
    queues: int
    consumers: int
    workers: int
    streams: int

    @property
    def critical(self) -> int:
        """How many findings are critical."""
        return sum(found.severity == CRITICAL for found in self.findings)

    @property
    def warnings(self) -> int:
        """How many findings are warnings."""
        return sum(found.severity == WARNING for found in self.findings)

    @property
    def status(self) -> str:
        """How severe the worst finding is: `healthy`, `warning` or `critical`."""
        if self.critical:
            return CRITICAL
        return WARNING if self.findings else "healthy"


def things(number: float, thing: str) -> str:
    """Write so many of a thing."""
    return f"{number:,.0f} {thing}" + ("" if number == 1 else "s")


def span(seconds: float) -> str:
    """Write how long something took, roughly."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.0f} hours" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
