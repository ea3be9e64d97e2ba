"""Loads under which queues that do not go on are seen: what is published, and how long it may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.torture.nemesis import (
    CUT,
    FREEZE,
    FULL_MEMORY,
    KILL,
    LOST_REPLY,
    LOST_REQUEST,
    SERVER_KILL,
    WIPE,
)

# How many tasks a program fetches at once.
FETCHED = 3
FETCH = "fetch"
_LIBRARY, _THREADS = "library", "threads"
_RETRY, _TOIL = "retry", "toil"
_POISON: dict[str, Any] = {"poison": 1}
# From this many seconds on, a task is slow.
_SLOW = 0.02


class QueueLoad(NamedTuple):
    """Tasks of one queue, which workers wait for; times in seconds.

    `within` is how long it may take until all are done but the poison and those that wait for a retry.
    `idle` is the largest share of the workers' time in which they may run nothing meanwhile. With a
    `bound`, a process publishes one task after the other; else they are published together.
    """

    name: str
    # What goes on beside the tasks, as the figures say it.
    beside: str
    tasks: Sequence[Mapping[str, Any]]
    workers: Sequence[str]
    visibility: float
    within: float
    idle: float = 1.0
    bound: int | None = None
    faults: Mapping[str, int] = {}

    @property
    def payloads(self) -> list[dict[str, Any]]:
        """What is published."""
        return [{"i": number, **task} for number, task in enumerate(self.tasks)]

    @property
    def innocents(self) -> set[int]:
        """The tasks that have to be done in time."""
        return {n for n, task in enumerate(self.tasks) if not {"poison", _RETRY} & task.keys()}

    @property
    def slow(self) -> int:
        """The first slow task, by its number; all that follow it are slow."""
        return next((n for n, task in enumerate(self.tasks) if task.get(_TOIL, 0) >= _SLOW), 0)


def _with_poison(tasks: int, first: int, every: int) -> list[dict[str, Any]]:
    """Return quick tasks of which one of `every` kills its worker, from the `first` one on."""
    return [_POISON if n % every == first else {_TOIL: 0.0} for n in range(tasks)]


_SLOW_TASKS, _SLOW_TOIL, _SLOW_EXECUTORS = 60, 0.5, 6

POISON = QueueLoad(
    *("poison", "beside poison", _with_poison(600, 60, 120), [_LIBRARY] * 4),
    visibility=3.0,
    within=15.0,
)
# The first poison is fetched with a task before it, and one behind it.
FETCHERS = QueueLoad(
    *("fetch", "fetched beside poison", _with_poison(24, 7, 8), [FETCH] * 2),
    visibility=1.0,
    within=30.0,
)
SLOW = QueueLoad(
    *("slow", "behind quick ones"),
    [*[{_TOIL: 0.0}] * 600, *[{_TOIL: _SLOW_TOIL}] * _SLOW_TASKS],
    [_LIBRARY, _LIBRARY, _THREADS],
    visibility=5.0,
    within=3 * _SLOW_TASKS * _SLOW_TOIL / _SLOW_EXECUTORS,
    idle=0.65,
)
KILLED = QueueLoad(
    *("killed", "beside a killed worker"),
    [*[{_TOIL: 0.0}] * 600, *[{_TOIL: 0.05}] * 160],
    [_LIBRARY] * 2,
    visibility=1.5,
    within=30.0,
    faults={KILL: 1},
)
# One task waits for a retry, and one runs, while many times the bound are published and done.
BOUND = QueueLoad(
    *("bound", "below a bound"),
    [{_RETRY: 120.0}, {_TOIL: 3.0}, *[{_TOIL: 0.0}] * 400],
    [_LIBRARY, _THREADS],
    visibility=5.0,
    within=30.0,
    bound=50,
)
# The others are frozen when they have taken slow tasks as if they were quick: the first does them, too.
FROZEN = QueueLoad(
    *("frozen", "beside frozen workers"),
    [*[{_TOIL: 0.0}] * 400, *[{_TOIL: _SLOW}] * 400],
    [_THREADS, _LIBRARY, "coroutines", "asyncbus"],
    visibility=1.5,
    within=90.0,
    faults={FREEZE: 3},
)
LOADS = {load.name: load for load in (POISON, FETCHERS, SLOW, KILLED, BOUND, FROZEN)}

# A publication is done and never answered, since the server stands still from then on. Others lose data:
# the end of the server's log, and what a primary had not replicated.
NO_ANSWER, LOST_TAIL, FAILOVER = "no_answer", "lost_tail", "failover"
# How many tasks of the limited queue may run at once, and how many of these hold a slot of the semaphore.
AT_ONCE, SLOTS = 3, 2


class MixedLoad(NamedTuple):
    """Flows, durable steps, limits with a semaphore, cancellations and drains beside each other.

    With `durable="replica"`, the server has a replica, which can be promoted.
    """

    name: str
    faults: Mapping[str, int]
    durable: str = "disk"


TOGETHER = MixedLoad(
    "together",
    {
        KILL: 8,
        SERVER_KILL: 2,
        CUT: 3,
        LOST_REPLY: 5,
        LOST_REQUEST: 3,
        FULL_MEMORY: 2,
        NO_ANSWER: 2,
    },
)
LOSSES = MixedLoad("losses", {LOST_TAIL: 6, WIPE: 2, KILL: 3, LOST_REPLY: 2})
PROMOTED = MixedLoad("promoted", {FAILOVER: 3, KILL: 2}, durable="replica")
MIXED = {load.name: load for load in (TOGETHER, LOSSES, PROMOTED)}
