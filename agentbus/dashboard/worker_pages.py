"""The registered workers, page by page, with the lag of their groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentbus.admin import stats
from agentbus.dashboard.parts import Part
from agentbus.workers import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.dashboard.figures import RowRange
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.registry import Registered

STATES = ("working", "paused", "stopping", "dead")


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """A page of registered workers by queue: the requested rows, and the number of matches.

    `states` counts the matching workers by state: `working`, `paused`, `stopping`, or `dead`, for
    registered workers without heartbeats. A row's `lag` is the number of due tasks that its group
    has not finished.
    """

    workers: tuple[Registered, ...]
    matching: int
    states: dict[str, int]


class WorkersRead:
    """The workers, cached longer the more there are; the lags of a page are current."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._workers = Part(scope.monotonic, lambda: registry.workers(scope))

    def forget(self) -> None:
        """Make the next use read the workers again."""
        self._workers.forget()

    def page(self, wanted: RowRange, state: str | None) -> Op[WorkerPage]:
        """Return a page of workers whose queue, group, agent, name or host contains a text."""
        found: Sequence[Registered] = yield from self._workers.get()
        if wanted.match is not None:
            text = wanted.match.casefold()
            found = [one for one in found if any(text in word.casefold() for word in _words(one))]
        counts = dict.fromkeys(STATES, 0)
        for one in found:
            counts[state_of(one)] += 1
        if state is not None:
            found = [one for one in found if state_of(one) == state]
        found = wanted.sorted(found, _ORDERS)
        shown = found[max(0, wanted.offset) :][: max(0, wanted.limit)]
        lags = yield from stats.lags(self._scope, {(one.queue, one.group) for one in shown})
        rows = (replace(one, lag=lags.get((one.queue, one.group))) for one in shown)
        return WorkerPage(tuple(rows), len(found), counts)


_ORDERS: dict[str, Callable[[Registered], Any]] = {
    "worker": lambda one: one.worker,
    "queue": lambda one: one.queue,
    "age": lambda one: one.age,
    "running": lambda one: one.running,
    "held": lambda one: one.pending,
    "done": lambda one: one.done,
    "failed": lambda one: one.failed,
}


def state_of(one: Registered) -> str:
    """Return a worker's state: `dead` without heartbeats, `paused` if it is ordered to pause."""
    if not one.alive:
        return "dead"
    if one.state == "stopping":
        return one.state
    return "paused" if one.paused is not None else "working"


def _words(one: Registered) -> tuple[str, ...]:
    return one.queue, one.group, one.agent_id, one.worker, one.host
