"""What is asked of a mode, and what a mode says of itself."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from agentbus.torture.verdict import Verdict


class Order(NamedTuple):
    """One mode's torture, as it was asked for.

    It is sized so that two cores need about `minutes`. `url` is a server that is not ours, which only
    clients and their connections suffer at; None has the mode start one of its own, which suffers, too.
    `control` is the name of a wrong implementation that the checks must catch. `databases` are for events:
    `sqlite`, `postgresql`, or the URL of an empty PostgreSQL database. `tell` takes lines of progress.
    """

    seed: int
    minutes: float
    place: pathlib.Path
    url: str | None = None
    control: str | None = None
    databases: tuple[str, ...] = ("sqlite",)
    tell: Callable[[str], None] = lambda _line: None

    @property
    def project(self) -> str:
        """The project on a server that is not ours; it is cleared before and afterwards."""
        return f"torture-{self.seed}"

    def number(self, a_minute: float, least: int = 1) -> int:
        """Return how many there are to be of what is done so often a minute."""
        return max(least, round(a_minute * self.minutes))


class Mode(NamedTuple):
    """A mode of torture: `controls` says what each wrong implementation does, by its name."""

    name: str
    summary: str
    controls: Mapping[str, str]
    torture: Callable[[Order], Iterator[Verdict]]
    # Modules that it needs beyond the base package, and the extra that brings them.
    needs: tuple[str, ...] = ()
    extra: str | None = None
