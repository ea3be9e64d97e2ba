"""Forwards what a shard has appended for other shards, in the upkeep of workers and schedulers.

A script that appends a reply, a notice or a tick for a queue that is elsewhere appends it to the
stream of this name in its own shard. That stream is the outbox: it is read in order, and each batch
is appended at the target by one script, which also records how far it got, so that no entry is
appended twice. Then the outbox is trimmed.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from agentbus.core.errors import AgentBusError
from agentbus.core.stream import text
from agentbus.queues import dependencies, dependents
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.ids import PRIORITIES, suffix
from agentbus.queues.runner import Runner
from agentbus.store.steps import Batch, Command, Script, one_step

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

T = TypeVar("T")

_EVERY = 1.0
# Milliseconds for which a shard's outboxes are left to the process that has looked last.
_LEFT = 900
# Seconds for one request: a shard that does not answer must not delay the others for long.
_PATIENCE = 1.0
_PAGE = 200
# Milliseconds after which a task elsewhere is asked for again: a failover may have lost the request.
_AGAIN = 30_000


class Forwarder:
    """Forwards from home and the shards of this process's workers, and from one other shard a second.

    So the outboxes of a shard without workers are emptied, too.
    """

    def __init__(self, shards: Any) -> None:
        self._shards = shards
        self._users: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def running(self, number: str) -> Iterator[None]:
        """Forward in a thread during the `with` block, and once more at its end."""
        with self._guard:
            self._users[number] += 1
            if self._thread is None:
                self._over = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._over,), name="agentbus-forwarder", daemon=True
                )
                self._thread.start()
        try:
            yield
        finally:
            with self._guard:
                self._users[number] -= 1
                ended = self._thread if not self._users.total() else None
                if ended is not None:
                    self._thread = None
                    self._over.set()
            if ended is not None:
                ended.join()
            for source in {"", number}:
                self.forward(source, sure=True)

    def _run(self, over: threading.Event) -> None:
        others = cycle(self._shards.all())
        while not over.wait(_EVERY):
            own = [number for number, users in [*self._users.items()] if users]
            for number in dict.fromkeys(("", *own, next(others))):
                self.forward(number)

    def forward(self, number: str, *, sure: bool = False) -> None:
        """Empty the outboxes of a shard; unless `sure`, leave them to another process that does so now."""
        try:
            self._forward(number, sure=sure)
        except AgentBusError:
            # A shard that does not answer keeps its outboxes, and a target its place in each.
            return

    def _forward(self, number: str, *, sure: bool) -> None:
        source = self._shards.bus(number)
        runner, scope = _blocking(source), source.scope
        own, queues, notices, outcomes, awaited = runner.run(_looked(scope), deadline=_PATIENCE)
        if own is None and not sure:
            return
        if outcomes:
            self._outcomes(runner, scope)
        if notices and number:
            self._notices(number, runner, scope, notices)
        for queue in map(text, queues):
            target = self._shards.of(queue, record=True)
            if target is not source:
                try:
                    self._tasks(number, runner, scope, queue, target)
                except AgentBusError:
                    # Another target may answer.
                    continue
        for task_id in map(text, awaited):
            self.ask(source, task_id)

    def dependencies(
        self, bus: Any, others: Sequence[str], group: str
    ) -> tuple[list[str], list[str]]:
        """Return which of some tasks are on the shard of this bus or unfinished, and those elsewhere.

        Raises `NotFound`, and `Refused` if one is dead.
        """
        here, elsewhere = [], []
        for task_id in others:
            at = self._shards.of_task(task_id)
            if at is bus:
                here.append(task_id)
            elif _blocking(at).run(dependencies.unfinished(at.scope, task_id, group)):
                elsewhere.append(task_id)
        return here + elsewhere, elsewhere

    def asked(self, bus: Any, op: Op[T], elsewhere: Sequence[str]) -> Op[T]:
        """Run the operation that keeps a task until others are done, then ask for those elsewhere."""
        result = yield from op
        for task_id in elsewhere:
            # If a shard does not answer, a worker of this shard asks.
            with contextlib.suppress(AgentBusError):
                self.ask(bus, task_id)
        return result

    def ask(self, bus: Any, task_id: str) -> None:
        """Let the shard of a task for which tasks here wait tell its end; if it has ended, record that."""
        runner, scope, at = _blocking(bus), bus.scope, self._shards.of_task(task_id)
        groups = runner.run(dependencies.groups_awaited(scope, task_id), deadline=_PATIENCE)
        if not groups:
            runner.run(one_step(Command("ZREM", scope.keys.elsewhere, task_id)))
            return
        number = self._shards.number_of(bus)
        for group in groups:
            op = dependencies.awaited_from(at.scope, task_id, group, number)
            verdict = _blocking(at).run(op, deadline=_PATIENCE)
            if verdict is not None:
                runner.run(dependencies.record(scope, task_id, group, verdict))
                told = dependencies.told(at.scope, task_id, group, number)
                _blocking(at).run(told, deadline=_PATIENCE)
        runner.run(_later(scope, task_id), deadline=_PATIENCE)

    def _outcomes(self, runner: Runner, scope: Scope) -> None:
        """Tell other shards the ends of tasks for which theirs wait."""
        members = runner.run(dependents.recorded(scope), deadline=_PATIENCE)
        down: set[str] = set()
        for member, (verdict, number) in members.items():
            if number in down:
                continue
            task_id, group, _ = member.split("\n")
            target = self._shards.bus(number)
            op = dependencies.record(target.scope, task_id, group, verdict)
            try:
                _blocking(target).run(op, deadline=_PATIENCE)
            except AgentBusError:
                down.add(number)
                continue
            runner.run(dependents.told_elsewhere(scope, [member]), deadline=_PATIENCE)

    def _notices(self, number: str, runner: Runner, scope: Scope, page: list[Any]) -> None:
        home = self._shards.home
        keys = home.scope.keys
        words: list[Any] = [f"{number} channel", home.scope.channel_trim]
        for entry_id, flat in page:
            words += (entry_id, len(flat or ()), *(flat or ()))
        step = Script(
            "forward_notices",
            (keys.passed, keys.channel, keys.agents, keys.topics),
            words,
            writes=True,
        )
        _blocking(home).run(one_step(step), deadline=_PATIENCE)
        runner.run(_trimmed(scope.keys.channel, page), deadline=_PATIENCE)

    def _tasks(self, number: str, runner: Runner, scope: Scope, queue: str, target: Any) -> None:
        runner.run(
            QueueConsumer(scope, queue, "default", "forwarder").promote(), deadline=_PATIENCE
        )
        there = target.scope.keys
        for priority in PRIORITIES:
            stream = scope.keys.queue(queue, priority)
            page: list[Any] = [None] * _PAGE
            while len(page) == _PAGE:
                page, groups = runner.run(_read(stream), deadline=_PATIENCE)
                if not page or groups:
                    # Workers that have looked here for their queue finish it first.
                    break
                words: list[Any] = [f"{number} {priority} {queue}", queue, suffix(queue, priority)]
                for entry_id, flat in page:
                    words += (entry_id, _ordering_key(flat), len(flat), *flat)
                keys = (there.passed, there.queue(queue, priority), there.order(queue, priority))
                step = Script(
                    "forward_tasks", (*keys, there.queues, there.stats(queue)), words, writes=True
                )
                _blocking(target).run(one_step(step), deadline=_PATIENCE)
                order = scope.keys.order(queue, priority)
                runner.run(_trimmed(stream, page, order), deadline=_PATIENCE)


def _blocking(bus: Any) -> Runner:
    runner: Runner = bus.runner if isinstance(bus.runner, Runner) else bus.runner.blocking
    return runner


def _looked(scope: Scope) -> Op[list[Any]]:
    """Claim the outboxes for a while; return None or b"OK", and what they may have for other shards.

    That is the queues, the oldest notices, the number of recorded outcomes, and tasks to be asked for.
    """
    keys, now = scope.keys, scope.server_now()
    replies = yield Batch(
        [
            ("SET", keys.tidied("forward"), scope.token(), "NX", "PX", _LEFT),
            ("ZRANGE", keys.queues, 0, -1),
            ("XRANGE", keys.channel, "-", "+", "COUNT", _PAGE),
            ("HLEN", keys.settled),
            ("ZRANGEBYSCORE", keys.elsewhere, "-inf", f"{now * 1000:.0f}", "LIMIT", 0, _PAGE),
        ]
    )
    own, queues, notices, outcomes, awaited = replies
    # Another program may have stored other types there.
    listed = [reply if isinstance(reply, list) else [] for reply in (queues, notices, awaited)]
    number = outcomes if isinstance(outcomes, int) else 0
    return [own if isinstance(own, bytes) else None, *listed[:2], number, listed[2]]


def _later(scope: Scope, task_id: str) -> Op[None]:
    """Let a task elsewhere be asked for again after a while, if it still is awaited."""
    due = scope.server_now() * 1000 + _AGAIN
    yield Command("ZADD", scope.keys.elsewhere, "XX", f"{due:.0f}", task_id)


def _read(stream: str) -> Op[tuple[list[Any], bool]]:
    """Return the oldest entries of an outbox, and whether it has consumer groups."""
    page, groups = yield Batch(
        [("XRANGE", stream, "-", "+", "COUNT", _PAGE), ("XINFO", "GROUPS", stream)]
    )
    entries = [entry for entry in page if entry[1]] if isinstance(page, list) else []
    return entries, isinstance(groups, list) and bool(groups)


def _trimmed(stream: str, page: Sequence[Any], *keys: str) -> Op[None]:
    """Remove the entries of a page from an outbox, and delete the keys that go with it."""
    milliseconds, _, number = text(page[-1][0]).partition("-")
    yield Batch(
        [
            ("XTRIM", stream, "MINID", "=", f"{milliseconds}-{int(number) + 1}"),
            *(("UNLINK", key) for key in keys),
        ]
    )


def _ordering_key(flat: Sequence[bytes]) -> str:
    """Return the ordering key in a task's envelope, '' if it has none."""
    meta = dict(zip(flat[::2], flat[1::2], strict=True)).get(b"meta")
    try:
        key = orjson.loads(meta or b"{}").get("ordering_key")
    except (ValueError, AttributeError):
        return ""
    return key if isinstance(key, str) else ""
