"""What came of one mode's torture."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

Story = TypeVar("Story")


class Verdict(NamedTuple):
    """One mode, judged.

    `faults` are those that really happened, `wanted` those that were planned, by kind. `figures` says
    what was done meanwhile. `violations` are what each check found, without those that found nothing.
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
        """The kinds of faults of which there were fewer than planned, with how many there were."""
        return {
            kind: self.faults.get(kind, 0)
            for kind, number in self.wanted.items()
            if self.faults.get(kind, 0) < number
        }

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong and there were enough faults; of a control, whether it was caught."""
        if self.control is not None:
            return bool(self.violations)
        return not self.violations and not self.too_few


def found_by(
    story: Story, checks: Collection[Callable[[Story], Collection[Any]]]
) -> dict[str, Collection[Any]]:
    """Return what each check found in a story, by the check's name, without those that found nothing."""
    found = {check.__name__: check(story) for check in checks}
    return {name: wrong for name, wrong in found.items() if wrong}
