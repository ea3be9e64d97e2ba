"""A bus on a project with shards: each verb goes to the shard of its queue, or to all of them.

Each shard is a namespace that a bus uses like a project, so a verb about one queue or task is that
verb on the bus of its shard. A view of the project asks all shards at the same time.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from agentbus.admin.agents import joined
from agentbus.admin.doctor import Finding
from agentbus.admin.health import Health, HealthFinding
from agentbus.client.forwarding import Forwarder
from agentbus.core import loggers, names
from agentbus.core.errors import (
    AgentBusError,
    BackendUnavailable,
    InvalidName,
    NotFound,
    UsageError,
)
from agentbus.core.keys import shard as prefix
from agentbus.queues import shards
from agentbus.queues.dependents import queue_of
from agentbus.queues.runner import Runner
from agentbus.store.verb import Awaiting, Patient

# Seconds for which a project is taken to have no shards before the server is asked again.
_WITHOUT = 5.0
# Seconds after which a view leaves out a shard that does not answer.
VIEW = 1.5
# The replies by the numbers of the shards.
_Replies = dict[str, Any]


class Shards:
    """The buses of a project's shards by number, each opened when it is first needed; '' is home.

    `unanswered` are the shards that the last view left out, each with the reason.
    """

    def __init__(self, home: Any) -> None:
        self.home = home
        runner = home.runner
        self._runner: Runner = runner if isinstance(runner, Runner) else runner.blocking
        self._buses: dict[str, Any] = {"": home}
        self._places: dict[str, str] = {}
        self._numbers: list[str] = []
        self._guard = threading.Lock()
        self._without_until = float("-inf")
        self.unanswered: dict[str, str] = {}
        self.forwarder = Forwarder(self)
        self._forward_beside("", home)

    def forget(self) -> None:
        """Ask the server again: the number of shards has changed."""
        self._without_until, self._numbers = float("-inf"), []

    def of(self, queue: str, *, record: bool = False, home: bool = False) -> Any:
        """Return the bus of a queue's shard; `record` a place for a queue without one, with `home` there.

        It blocks for a request, once for each queue.
        """
        return self.bus(self.number(queue, record=record, home=home))

    def number(self, queue: str, *, record: bool = False, home: bool = False) -> str:
        """Return the number of a queue's shard, '' for home, as `of`."""
        number = self._places.get(queue)
        if number is None:
            if time.monotonic() < self._without_until or not _is_name(queue):
                return ""
            op = shards.place(self.home.scope, queue, record=record, home=home)
            number = self._runner.run(op, verb="shards")
            if number is None:
                self._without_until = time.monotonic() + _WITHOUT
                return ""
            if record or number:
                self._places[queue] = number
        return number

    def number_of(self, bus: Any) -> str:
        """Return the number of the shard of a bus."""
        project: str = bus.project
        return project.rpartition(shards.MARK)[2][:-1] if shards.MARK in project else ""

    def of_task(self, task_id: str) -> Any:
        """Return the bus of the shard with a task; home for what is not a task's id."""
        return self.of(queue_of(task_id)) if isinstance(task_id, str) else self.home

    def check(self, bus: Any, queues: Iterable[str], what: str, *, home: bool = False) -> None:
        """Raise `UsageError` unless all queues are on the shard of this bus; with `home`, new ones are."""
        for queue in queues:
            at = self.of(queue, record=True, home=home)
            if at is not bus:
                raise UsageError(
                    f"{what} cannot cross shards: the queue {queue!r} is on {at.project},"
                    f" not on {bus.project}",
                    hint=f"use the bus of its shard, bus.at({queue!r}), or queues of one shard",
                    shell_hint="'agentbus shards' lists the shards; use queues of one of them",
                )

    def whole(self, bus: Any, what: str) -> None:
        """Raise `UsageError` if `what` would show one of several shards as if it were the project."""
        if bus is self.home and len(self.all()) > 1:
            raise UsageError(
                f"{what} shows one shard, and the project {bus.project} has {len(self.all())}",
                hint="name a queue, or use the bus of its shard: bus.at(queue)",
                shell_hint="name a queue; 'agentbus stats', 'health' and 'who' show all shards",
            )

    def all(self) -> dict[str, Any]:
        """Return the buses of all shards, home first; only home without shards."""
        if not self._numbers and time.monotonic() >= self._without_until:
            self._numbers = self._runner.run(shards.numbers(self.home.scope), verb="shards")
            if not self._numbers:
                self._without_until = time.monotonic() + _WITHOUT
        return {number: self.bus(number) for number in ("", *self._numbers)}

    def opened(self) -> list[Any]:
        """Return the buses that were opened, without home."""
        return [bus for number, bus in self._buses.items() if number]

    def bus(self, number: str) -> Any:
        """Return the bus of a shard."""
        with self._guard:
            if number not in self._buses:
                home = self.home
                settings = copy.copy(home.settings)
                settings.project = prefix(home.project, number)
                bus = type(home)(settings)
                bus.backend.find = home.backend.shard(settings.project)
                bus._sharded = self
                self._forward_beside(number, bus)
                self._buses[number] = bus
            return self._buses[number]

    def _forward_beside(self, number: str, bus: Any) -> None:
        """Let the workers and schedulers of a shard forward what it has for others."""
        runner = bus.runner if isinstance(bus.runner, Runner) else bus.runner.blocking
        runner.beside = partial(self._forwarding, number)

    def _forwarding(self, number: str) -> AbstractContextManager[None]:
        return self.forwarder.running(number) if len(self.all()) > 1 else nullcontext()

    # -- verbs --

    def routed(self, name: str, key: str, find: Callable[[Any], Any]) -> Callable[..., Any]:
        """Return a verb that runs on the bus that `find` returns for its first argument, `key`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            bus = find(args[0] if args else kwargs.get(key))
            return getattr(type(bus), name)(bus, *args, **kwargs)

        return call

    def merged(
        self, name: str, merge: Callable[[Shards, _Replies], Any], *, view: bool
    ) -> Callable[..., Any]:
        """Return a verb that runs on all shards, or on that of its argument `queue`.

        A `view` leaves out the shards that do not answer in time.
        """

        def call(*args: Any, **kwargs: Any) -> Any:
            queue = kwargs.get("queue", args[0] if args else None)
            buses = {"": self.of(queue)} if queue is not None else self.all()
            if len(buses) == 1:
                (bus,) = buses.values()
                return getattr(type(bus), name)(bus, *args, **kwargs)
            # Home goes last: it has the record of the others, which `clear` deletes.
            started = {
                number: partial(self._one, name, bus, args, kwargs, view=view)
                for number, bus in sorted(buses.items(), reverse=True)
            }
            if isinstance(self.home, Awaiting):
                return self._awaited(merge, started, view=view)
            replies: _Replies = {}
            for round_ in _rounds(started, view=view):
                with ThreadPoolExecutor(len(round_)) as pool:
                    running = {number: pool.submit(_caught, started[number]) for number in round_}
                replies |= {number: future.result() for number, future in running.items()}
                self._check(replies, view=view)
            return merge(self, self._given(replies))

        return call

    def _one(self, name: str, bus: Any, args: Any, kwargs: Any, *, view: bool) -> Any:
        op = getattr(type(bus), name).__wrapped__.verb.define(bus, *args, **kwargs)
        if not view:
            return bus._run(name, op)
        op = op.op if isinstance(op, Patient) else op
        return bus.runner.run(op, verb=name, deadline=min(VIEW, bus.settings.deadline))

    async def _awaited(
        self,
        merge: Callable[[Shards, _Replies], Any],
        started: Mapping[str, Callable[[], Any]],
        *,
        view: bool,
    ) -> Any:
        replies: _Replies = {}
        for round_ in _rounds(started, view=view):
            running = [started[number]() for number in round_]
            answers = await asyncio.gather(*running, return_exceptions=True)
            replies |= dict(zip(round_, answers, strict=True))
            self._check(replies, view=view)
        return merge(self, self._given(replies))

    def _check(self, replies: _Replies, *, view: bool) -> None:
        """Raise the first error of a shard that ends the whole verb; note the shards left out of a view."""
        unanswered: dict[str, str] = {}
        for number, reply in replies.items():
            name = prefix(self.home.project, number)
            if view and isinstance(reply, BackendUnavailable):
                unanswered[name] = f"{name}: {reply.message}"
                loggers.emit("warning", {"verb": "shards", "project": name}, reply.message)
            elif isinstance(reply, AgentBusError) and not isinstance(reply, NotFound):
                reply.message = f"on the shard {name}: {reply.message}"
                raise reply
            elif isinstance(reply, BaseException) and not isinstance(reply, NotFound):
                raise reply
        self.unanswered = unanswered

    def _given(self, replies: _Replies) -> _Replies:
        """Return the replies that are results, home first; raise an error if none is."""
        given = {
            number: replies[number]
            for number in sorted(replies)
            if not isinstance(replies[number], BaseException)
        }
        if not given:
            errors = [*replies.values()]
            raise next((error for error in errors if not isinstance(error, NotFound)), errors[0])
        return given


def spread(bus: Any) -> Shards:
    """Make the verbs of a bus on a cluster go to the shards of its project; return the shards."""
    all_shards = Shards(bus)
    for name in _OF_TASKS:
        setattr(bus, name, all_shards.routed(name, "task_id", all_shards.of_task))
    for name in _TO_QUEUES:
        setattr(bus, name, all_shards.routed(name, "queue", partial(all_shards.of, record=True)))
    for name, merge in _VIEWS.items():
        setattr(bus, name, all_shards.merged(name, merge, view=True))
    for name, merge in _ORDERS.items():
        setattr(bus, name, all_shards.merged(name, merge, view=False))
    return all_shards


def one_shard(bus: Any) -> None:
    """Raise `UsageError` for a bus on several shards, whose queues one worker cannot take together."""
    if bus._sharded is not None:
        bus._sharded.whole(bus, "a worker of several queues")


def _rounds(started: Iterable[str], *, view: bool) -> list[list[str]]:
    """Return the numbers of the shards to ask at the same time; to change them, home last."""
    numbers = [*started]
    return [numbers] if view else [[number for number in numbers if number], [""]]


def _is_name(queue: str) -> bool:
    try:
        names.name("queue", queue)
    except InvalidName:
        return False
    return True


def _caught(view: Callable[[], Any]) -> Any:
    try:
        return view()
    except AgentBusError as error:
        return error


def _together(_: Shards, replies: _Replies) -> list[Any]:
    return [row for rows in replies.values() for row in rows]


def _names(_: Shards, replies: _Replies) -> list[str]:
    return sorted({name for reply in replies.values() for name in reply})


def _by_queue(all_shards: Shards, replies: _Replies) -> list[Any]:
    at: dict[str, set[str]] = {}
    for number, rows in replies.items():
        for row in rows:
            at.setdefault(row.queue, set()).add(number)
    # A queue has rows on several shards if others have outboxes for it: leave these out.
    own = {
        queue: numbers if len(numbers) == 1 else {all_shards.number(queue)}
        for queue, numbers in at.items()
    }
    kept = (row for number, rows in replies.items() for row in rows if number in own[row.queue])
    return sorted(kept, key=_rank)


def _rank(row: Any) -> tuple[str, str]:
    return row.queue, getattr(row, "group", None) or ""


def _orders(_: Shards, replies: _Replies) -> list[Any]:
    distinct = {(order.kind, order.name): order for order in _together(_, replies)}
    return [distinct[key] for key in sorted(distinct, key=lambda key: (key[0], key[1] or ""))]


def _order(_: Shards, replies: _Replies) -> Any:
    orders = [*replies.values()]
    return replace(
        orders[0],
        confirmed=tuple(sorted({worker for order in orders for worker in order.confirmed})),
        unconfirmed=tuple(sorted({worker for order in orders for worker in order.unconfirmed})),
    )


def _dismissal(_: Shards, replies: _Replies) -> Any:
    parts = [*replies.values()]
    return replace(
        parts[0],
        gone=tuple(sorted(worker for part in parts for worker in part.gone)),
        unconfirmed=tuple(sorted(worker for part in parts for worker in part.unconfirmed)),
        handed_over=sum(part.handed_over for part in parts),
    )


def _any(_: Shards, replies: _Replies) -> bool:
    return any(replies.values())


def _summed(_: Shards, replies: _Replies) -> dict[str, int]:
    counts: dict[str, int] = {}
    for part in replies.values():
        for kind, number in part.items():
            counts[kind] = counts.get(kind, 0) + number
    return dict(sorted(counts.items()))


def _health(all_shards: Shards, replies: _Replies) -> Health:
    home = all_shards.home.project
    findings = [
        HealthFinding(
            *("unreachable", name, "critical", None, None),
            f"a shard does not answer: {why}",
            "start its node, or let a replica take over; the rest is shown",
        )
        for name, why in all_shards.unanswered.items()
    ]
    for number, health in replies.items():
        where = f"shard {prefix(home, number)}: " if number else ""
        findings += [replace(finding, text=f"{where}{finding.text}") for finding in health.findings]
    findings.sort(key=lambda finding: finding.severity != "critical")
    parts = [*replies.values()]
    return Health(
        tuple(findings),
        *(sum(getattr(part, field) for part in parts) for field in _COUNTED),
    )


def _doctor(all_shards: Shards, replies: _Replies) -> list[Finding]:
    findings: list[Finding] = []
    for number, part in replies.items():
        name = prefix(all_shards.home.project, number)
        if not number:
            findings += part
        elif part[0].status == "failed":
            findings.append(replace(part[0], found=f"shard {name}: {part[0].found}"))
        else:
            # The findings of a shard that are not about the machine of the caller.
            findings += [
                replace(finding, found=f"shard {name}: {finding.found}")
                for finding in part
                if finding.status != "ok" and finding.check not in _OF_MACHINE
            ]
    for why in all_shards.unanswered.values():
        remedy = "start its node, or let a replica take over"
        findings.append(Finding("connection", "failed", f"shard {why}", remedy))
    return findings


_COUNTED = ("queues", "consumers", "workers", "streams")
_OF_MACHINE = frozenset(("identity", "secrets", "installation"))
_OF_TASKS = ("result", "task", "cancel", "set_task", "settle", "renew")
_TO_QUEUES = ("ask", "answer", "take")
_VIEWS: dict[str, Callable[[Shards, _Replies], Any]] = {
    "queues": _names,
    "stats": _by_queue,
    "metrics": _by_queue,
    "streams": _together,
    "workers": _together,
    "who": lambda _, replies: joined([*replies.values()]),
    "paused": _orders,
    "health": _health,
    "doctor": _doctor,
}
_ORDERS: dict[str, Callable[[Shards, _Replies], Any]] = {
    "pause": _order,
    "halt": _order,
    "resume": _any,
    "delete": _dismissal,
    "tidy": _by_queue,
    "clear": _summed,
}
