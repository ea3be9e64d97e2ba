"""Orders to workers: pause, resume and delete, for a queue, an agent, a worker or the project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentbus.core import names, validate
from agentbus.core.errors import NotFound, UsageError
from agentbus.core.keys import pause_field
from agentbus.core.names import unescape
from agentbus.core.stream import text
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.ids import ASIDE, PRIORITIES, missing, suffix
from agentbus.store.failures import or_empty
from agentbus.store.scan import hash_fields
from agentbus.store.scope import CONFIRM
from agentbus.store.steps import Batch, Command, Pause, Script, one_step
from agentbus.workers.registry import MOST, in_batches, parsed, ring, unregister, workers

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.registry import Registered

GRACE = 30.0
# The kind of an order that applies to all workers.
PROJECT = "project"
_SOON, _LATER = 0.01, 0.1
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Order:
    """A pause order; `kind` is queue, agent or worker, or project, which has no `name`.

    In the result of `pause`, `confirmed` are the workers that are paused, and `unconfirmed` the live ones
    that did not confirm in time.
    """

    kind: str
    name: str | None
    by: str | None
    at: str | None
    why: str | None
    confirmed: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dismissal:
    """The result of `delete`: the workers that have left, and those that are still running.

    `handed_over` counts the tasks of dead workers that other workers can now take.
    """

    gone: tuple[str, ...]
    unconfirmed: tuple[str, ...]
    handed_over: int


def resumed(
    queue: str | None, agent: str | None, worker: str | None
) -> tuple[str, str] | tuple[str, None]:
    """Return the kind and name given, or the project. Raises `UsageError` for several names."""
    if queue is None and agent is None and worker is None:
        return PROJECT, None
    return subject(queue, agent, worker)


def subject(queue: str | None, agent: str | None, worker: str | None) -> tuple[str, str]:
    """Return the kind and name given. Raises `UsageError` unless exactly one name is given."""
    named = [
        (kind, value)
        for kind, value in (("queue", queue), ("agent", agent), ("worker", worker))
        if value is not None
    ]
    if len(named) != 1:
        raise UsageError(
            f"{len(named)} of queue, agent and worker are given", hint="name exactly one"
        )
    ((kind, name),) = named
    return kind, names.name(kind, name)


def pause(
    scope: Scope, kind: str, name: str | None, why: str | None = None, *, wait: float = CONFIRM
) -> Op[Order]:
    """Store a pause order, and wait until every live worker concerned confirms it."""
    validate.wait("wait", wait)
    if why is not None:
        names.body("reason", why, 4096)
    yield from _known(scope, kind, name)
    field = pause_field(kind, name)
    stored = yield Script(
        "pause", (scope.keys.paused,), (field, scope.agent, why or ""), writes=True
    )
    order = _order(field, stored)
    # List the workers after storing the order: a worker that starts later reads it before its first
    # task.
    listed = yield from workers(scope, sure=True)
    waiting = {one.worker: one for one in listed if _concerned(one, kind, name)}
    yield from _ring(scope, {one.queue for one in waiting.values()}, listed)
    still = {worker for worker, one in waiting.items() if one.state != "working" and one.alive}
    open_ = {worker for worker, one in waiting.items() if one.alive} - still
    confirmed, unconfirmed, _ = yield from _until(scope, open_, (b"paused", b"stopping"), wait)
    return replace(
        order, confirmed=tuple(sorted(still | confirmed)), unconfirmed=tuple(sorted(unconfirmed))
    )


def resume(scope: Scope, kind: str, name: str | None) -> Op[bool]:
    """Delete a pause order, and return whether there was one. Raises `NotFound` for unknown names."""
    step = Command("HDEL", scope.keys.paused, pause_field(kind, name))
    # If an answer was lost, the first copy may have deleted it.
    had = (yield from or_empty(one_step(step), 0)) or step.sendings > 1
    if not had:
        yield from _known(scope, kind, name)
    listed = yield from workers(scope)
    concerned = {one.queue for one in listed if _concerned(one, kind, name)}
    yield from _ring(scope, concerned, listed)
    return bool(had)


def orders(scope: Scope) -> Op[list[Order]]:
    """Return the pause orders in force, at most about 10,000."""
    stored = yield from or_empty(hash_fields(scope.keys.paused, MOST), {})
    in_force = [
        _order(text(field), order)
        for field, order in stored.items()
        if not field.startswith(b"limit:")
    ]
    return sorted(in_force, key=lambda order: (order.kind, order.name or ""))


def order_of(scope: Scope, kind: str, name: str | None) -> Op[Order | None]:
    """Return the order with this kind and name, or None."""
    field = pause_field(kind, name)
    order = yield from or_empty(one_step(Command("HGET", scope.keys.paused, field)), None)
    return None if order is None else _order(field, order)


def dismiss(
    scope: Scope,
    kind: str,
    name: str,
    *,
    wait: float = GRACE,
    letters_of: Callable[[str], str] = str,
    recorded_of: Callable[[str], int] = lambda _queue: 0,
) -> Op[Dismissal]:
    """Stop a worker, or an agent's workers, after their running tasks; waits up to `wait` seconds.

    Other workers can take the tasks of a dead worker before it is removed. Raises `NotFound`.
    """
    validate.wait("wait", wait)
    listed = yield from workers(scope, sure=True)
    chosen = {one.worker: one for one in listed if _concerned(one, kind, name)}
    if not chosen:
        raise NotFound(
            f"there is no worker of {name!r}",
            hint="bus.workers() returns the workers",
            shell_hint="see 'agentbus agent list'",
        )
    for worker in chosen:
        yield Script("stop_worker", (scope.keys.beat(worker),), writes=True)
    yield from _ring(scope, {one.queue for one in chosen.values()}, listed)
    _, running, dead = yield from _until(scope, set(chosen), (), wait)
    handed, alive = 0, set(running)
    for worker in sorted(dead):
        one = chosen[worker]
        moved = yield from _hand_over(scope, one, letters_of(one.queue), recorded_of(one.queue))
        if moved is None or not (
            yield from unregister(scope, worker, silent=scope.intervals.alive)
        ):
            alive.add(worker)
        handed += moved or 0
    return Dismissal(tuple(sorted(set(chosen) - alive)), tuple(sorted(alive)), handed)


def _concerned(one: Registered, kind: str, name: str | None) -> bool:
    of = {"queue": one.queue, "agent": one.agent_id, "worker": one.worker}
    return kind == PROJECT or of[kind] == name


def _known(scope: Scope, kind: str, name: str | None) -> Op[None]:
    """Raise `NotFound` for an unknown name, which is probably a typing error."""
    keys = scope.keys
    if kind == PROJECT or name is None:
        return
    if kind == "queue":
        streams = [keys.queue(name, priority) for priority in PRIORITIES]
        asked: list[tuple[str, ...]] = [
            ("EXISTS", *streams, keys.delayed(name), keys.after(name)),
            ("ZSCORE", keys.queues, name),
        ]
    elif kind == "agent":
        asked = [("ZSCORE", keys.agents, name)]
    else:
        asked = [("EXISTS", keys.beat(name))]
    replies = yield Batch(asked)
    if any(isinstance(reply, bytes) or (isinstance(reply, int) and reply) for reply in replies):
        return
    if any(_concerned(one, kind, name) for one in (yield from workers(scope))):
        return
    if kind == "queue":
        raise (yield from missing(scope, name))
    raise NotFound(
        f"there is no {kind} {name!r}",
        hint="bus.who(all=True) returns agents and workers",
        shell_hint="see 'agentbus agent list --all'",
    )


def _order(field: str, stored: bytes) -> Order:
    kind, _, name = field.partition(":")
    parts = parsed(stored)
    return Order(
        PROJECT if kind == "all" else kind,
        unescape(name) or None,
        *(parts.get("by"), parts.get("at"), parts.get("why")),
    )


def _ring(scope: Scope, queues: Collection[str], listed: Iterable[Registered]) -> Op[None]:
    """Wake the listed workers of these queues, which then send a heartbeat."""
    numbers = Counter(one.queue for one in listed)
    for queue in sorted(queues):
        yield from ring(scope.keys.bell(queue), max(1, numbers[queue]), "order")


def _until(
    scope: Scope, waiting: set[str], states: Collection[bytes], wait: float
) -> Op[tuple[set[str], set[str], set[str]]]:
    """Wait up to `wait` seconds until each worker reports one of the states, or has left or is dead.

    Returns the workers that reported it, the live ones that did not, and the dead ones.
    """
    until, pause = scope.monotonic() + wait, _SOON
    confirmed: set[str] = set()
    dead: set[str] = set()
    left = set(waiting)
    while True:
        seen = yield from _seen(scope, sorted(left))
        for worker, (age, state) in seen.items():
            if age is None or age > scope.intervals.alive:
                left.discard(worker)
                if age is not None:
                    dead.add(worker)
            elif state in states:
                left.discard(worker)
                confirmed.add(worker)
        remains = until - scope.monotonic()
        if not left or remains <= 0:
            return confirmed, left, dead
        yield Pause(min(pause, remains))
        pause = min(pause * 1.5, _LATER)


def _seen(scope: Scope, listed: list[str]) -> Op[Mapping[str, tuple[float | None, bytes | None]]]:
    """Return the seconds since each worker's last heartbeat (None if it has left), and its state."""
    keys = scope.keys
    asked: list[tuple[str, ...]] = [("TIME",)]
    for worker in listed:
        asked += [("ZSCORE", keys.beats, worker), ("HGET", keys.beat(worker), "state")]
    time, *replies = yield from in_batches(asked)
    now = int(time[0]) + int(time[1]) / 1e6
    return {
        # Another program may have overwritten the registry; the next heartbeat repairs it.
        worker: (now - float(score) / 1000 if isinstance(score, bytes) else None, state)
        for worker, score, state in zip(listed, replies[::2], replies[1::2], strict=True)
    }


def _hand_over(scope: Scope, one: Registered, letters_of: str, recorded: int) -> Op[int | None]:
    """Make a dead worker's tasks due for others; returns their number, None if it is alive."""
    of = QueueConsumer(
        scope, one.queue, one.group, one.worker, letters_of=letters_of, recorded=recorded
    )
    log = of.log
    moved = 0
    for priority, stream in of.streams.items():
        more = 1
        while more:
            reply = yield Script(
                "reclaim_dead_worker",
                (
                    *(scope.keys.beats, stream, of.retries(priority), of.letters),
                    *(of.stats, of.attempts(priority), *(() if log is None else (log.key,))),
                ),
                (
                    *(one.worker, one.group, round(scope.intervals.alive * 1000), ASIDE, _AT_ONCE),
                    *of.tombstone,
                    *(() if log is None else (log.bound, suffix(one.queue, priority))),
                ),
                writes=True,
            )
            if not reply:
                return None
            moved += reply[0]
            more = reply[2]
    if moved:
        # Wake the workers that wait for due tasks.
        yield from _ring(scope, {one.queue}, [one])
    return moved
