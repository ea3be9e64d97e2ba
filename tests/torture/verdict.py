"""The verdict on one run of a mode."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

Evidence = TypeVar("Evidence")

# The name of the violation that lists processes that ended by themselves.
ENDED = "ended_by_themselves"


class Verdict(NamedTuple):
    """One mode, judged.

    `faults` counts those that happened, `wanted` those that were planned, by kind. `figures` counts the
    work. `violations` are what each check found, by the check's name; checks that found nothing are left
    out.
    """

    mode: str
    seed: int
    seconds: float
    faults: Mapping[str, int]
    wanted: Mapping[str, int]
    figures: Mapping[str, Any]
    violations: Mapping[str, Collection[Any]]
    place: pathlib.Path
    control: str | None = None

    @property
    def too_few(self) -> dict[str, int]:
        """The kinds of faults that happened less often than planned, with how often they happened."""
        return {
            kind: self.faults.get(kind, 0)
            for kind, number in self.wanted.items()
            if self.faults.get(kind, 0) < number
        }

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong and there were enough faults; of a control, whether it was caught.

        A control whose processes crash shows nothing about the checks, so it counts as missed.
        """
        if self.control is not None:
            return bool(self.violations) and ENDED not in self.violations
        return not self.violations and not self.too_few


def found_by(
    evidence: Evidence, checks: Collection[Callable[[Evidence], Collection[Any]]]
) -> dict[str, Collection[Any]]:
    """Return what each check found, by the check's name; checks that found nothing are left out."""
    found = {check.__name__: check(evidence) for check in checks}
    return {name: wrong for name, wrong in found.items() if wrong}
