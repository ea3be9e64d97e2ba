"""What a mode of torture is, and one trial of it."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import NamedTuple

from tests.torture.verdict import Verdict

# How many faults of each kind a minute has in most modes.
A_MINUTE = {
    "cut": 6.0,
    "half_open": 5.0,
    "latency": 4.0,
    "lost_reply": 5.0,
    "lost_request": 5.0,
    "server_kill": 4.0,
    "slow_disk": 3.0,
    "full_memory": 2.0,
    "clock_shift": 2.0,
}


class Trial(NamedTuple):
    """One run of a mode, sized to take about `minutes` on two cores.

    `url` is a server that is not ours, where only clients and their connections suffer; without it, the
    mode starts its own, which suffers, too. `control` names a wrong implementation that the checks must
    catch. `databases` are for events: `sqlite`, `postgresql`, or the URL of an empty PostgreSQL database.
    `tell` takes lines of progress.
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
        """The project on the server; on one that is not ours it is cleared before and afterwards."""
        return f"torture-{self.seed}"

    def number(self, a_minute: float, least: int = 1) -> int:
        """Scale a rate per minute to this trial."""
        return max(least, round(a_minute * self.minutes))

    @property
    def patience(self) -> float:
        """How many seconds a part of a run may take on a busy machine: what takes longer will never end."""
        return 300.0 + (0.0 if self.control is not None else 360.0 * self.minutes)

    def faults(self, a_minute: Mapping[str, float]) -> dict[str, int]:
        """Scale the usual rates of faults and these, by kind, to this trial: at least one of each."""
        return {kind: self.number(rate) for kind, rate in {**A_MINUTE, **a_minute}.items()}


class Mode(NamedTuple):
    """A mode of torture: `controls` says what each wrong implementation does, by its name."""

    name: str
    summary: str
    controls: Mapping[str, str]
    torture: Callable[[Trial], Iterator[Verdict]]


def from_module(name: str) -> Callable[[Trial], Iterator[Verdict]]:
    """Return the function `torture` of a module that is loaded when the function is called.

    The many processes of a mode load its package, too, and need nothing of its workload.
    """
    return lambda trial: import_module(name).torture(trial)
