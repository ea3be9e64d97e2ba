"""Limits across all workers of a queue: set, list and remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core import names
from agentbus.core.keys import pause_field
from agentbus.core.names import unescape
from agentbus.core.stream import text
from agentbus.queues.ids import STREAMS, group_names, groups_of
from agentbus.queues.limiting import release
from agentbus.queues.limits import QueueLimit, checked, limit_of
from agentbus.store.failures import or_empty
from agentbus.store.scan import hash_fields
from agentbus.store.steps import Command, one_step
from agentbus.store.verb import BusT_co, OnBus, verb
from agentbus.workers.registry import MOST, ring, workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


class Limits(OnBus[BusT_co]):
    """The limits of a project's queues, on a `Bus` or an `AsyncBus`, on which its methods are awaited.

    They are stored on the server, and apply to all workers and fetches of a queue.
    """

    def __init__(self, bus: BusT_co) -> None:
        on: Any = bus
        self._scope: Scope = on.scope
        self._run, self._iterate = on._run, on._iterate
        self._bus, self._sharded = on, on._sharded

    @verb
    def set(
        self,
        queue: str,
        *,
        at_once: int | None = None,
        per_second: float | None = None,
        burst: int | None = None,
        by: str | None = None,
    ) -> Op[QueueLimit]:
        """Limit a queue's concurrent tasks, and its task starts per second, in each group.

        With `by`, both limits apply to each value of a field; see `QueueLimit`. `burst` is the number of
        tasks that may start together after a pause, by default `per_second`. The limits replace earlier
        ones. Workers apply them from their next heartbeat on, within three seconds; tasks that they have
        already taken are not counted. Raises `UsageError`.
        """
        self._check([queue])
        return _set(
            self._scope, names.name("queue", queue), checked(at_once, per_second, burst, by)
        )

    @verb
    def get(self, queue: str) -> Op[QueueLimit | None]:
        """Return the limits of a queue; None if it has none."""
        self._check([queue])
        return _get(self._scope, names.name("queue", queue))

    @verb
    def list(self) -> Op[dict[str, QueueLimit]]:
        """Return the limits of all queues, by queue name."""
        if self._sharded is not None:
            self._sharded.whole(self._bus, "a list of limits")
        return listed(self._scope)

    @verb
    def apply(self, declared: Mapping[str, QueueLimit]) -> Op[dict[str, bool]]:
        """Set the limits of these queues where they differ; return for each whether it was changed.

        Limits of other queues stay. Workers of typed tasks, and `agentbus work`, do this at their start
        with the limits that their tasks and the settings declare.
        """
        self._check(declared)
        return _apply(self._scope, declared)

    @verb
    def remove(self, queue: str) -> Op[bool]:
        """Remove the limits of a queue, and return whether it had any.

        Tasks that wait for the limits may start at once, including those left by an interrupted removal.
        """
        self._check([queue])
        return _remove(self._scope, names.name("queue", queue))

    def _check(self, queues: Iterable[str]) -> None:
        if self._sharded is not None:
            self._sharded.check(self._bus, queues, "a limit")


def _set(scope: Scope, queue: str, limit: QueueLimit) -> Op[QueueLimit]:
    yield Command("HSET", scope.keys.paused, pause_field("limit", queue), limit.encoded())
    yield from _ring(scope, queue)
    return limit


def _apply(scope: Scope, declared: Mapping[str, QueueLimit]) -> Op[dict[str, bool]]:
    changed = {}
    for queue, limit in declared.items():
        before = yield from _get(scope, names.name("queue", queue))
        changed[queue] = before != limit
        if changed[queue]:
            yield from _set(scope, queue, limit)
    return changed


def _get(scope: Scope, queue: str) -> Op[QueueLimit | None]:
    asked = one_step(Command("HGET", scope.keys.paused, pause_field("limit", queue)))
    return limit_of((yield from or_empty(asked, None)))


def listed(scope: Scope) -> Op[dict[str, QueueLimit]]:
    """Return the limits of all queues, by queue name."""
    stored = yield from or_empty(hash_fields(scope.keys.paused, MOST), {})
    limits = {}
    for field, value in sorted(stored.items()):
        kind, _, name = text(field).partition(":")
        if kind == "limit" and (limit := limit_of(value)) is not None:
            limits[unescape(name)] = limit
    return limits


def _remove(scope: Scope, queue: str) -> Op[bool]:
    step = Command("HDEL", scope.keys.paused, pause_field("limit", queue))
    # If an answer was lost, the first copy may have removed them.
    had = (yield from or_empty(one_step(step), 0)) or step.sendings > 1
    yield from _ring(scope, queue)
    # Tasks are no longer deferred because of limits, even by workers that still know the old ones,
    # so no group is missed.
    streams = yield from groups_of(scope, queue, STREAMS)
    waited = yield from release(scope, queue, sorted(group_names(streams)))
    # An earlier call that was killed may have left tasks waiting.
    return bool(had or waited)


def _ring(scope: Scope, queue: str) -> Op[None]:
    """Wake the workers of a queue; they then send a heartbeat."""
    number = sum(worker.queue == queue for worker in (yield from workers(scope)))
    yield from ring(scope.keys.bell(queue), max(1, number), "order")
