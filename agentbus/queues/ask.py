"""Publishes a task, and waits for the reply on a private stream of the caller."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import names
from agentbus.core.errors import TaskFailed, TimedOut, UsageError
from agentbus.core.stream import position, text
from agentbus.core.validate import is_seconds
from agentbus.queues import publish
from agentbus.queues.ids import PRIVATE
from agentbus.queues.results import cancelled
from agentbus.queues.task import Task
from agentbus.store.steps import Command, Pause, Wait

if TYPE_CHECKING:
    from agentbus.queues.policy import Policy
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Seconds after which a broken connection is noticed.
_LONGEST_WAIT = 5.0
_AT_ONCE = 1000
# Trim answers without a waiting caller after every 64 answers.
_TIDY_EVERY = 64
# Every answer wakes all waiting callers, so the work grows with the square of their number. The
# pause after a vain wakeup grows likewise: 1 ms with 100 callers, 0.1 s with 1,000.
_TURN, _SHORTEST_TURN, _LONGEST_TURN = 1e-7, 0.0001, 1.0
_inboxes: weakref.WeakKeyDictionary[Scope, _Inbox] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a task published by `ask`, and the task's id."""

    id: str
    result: Any


class _Inbox:
    """The reply stream of all callers on one bus, which share one blocked read."""

    def __init__(self, scope: Scope) -> None:
        self.process = os.getpid()
        self.caller = os.urandom(12).hex()
        self.key = scope.keys.replies(self.caller)
        # Answers up to this id have been read; `_filed` keeps them until their callers take them.
        self.seen = "0-0"
        self._filed: dict[bytes, tuple[str, bytes]] = {}
        self._starts: dict[object, str] = {}
        self._answered = 0

    def enter(self, asker: object) -> None:
        """Register a caller before it publishes its task."""
        # The answer will follow everything read so far, so there is no need to look up the end of
        # the stream.
        self._starts[asker] = self.seen

    def leave(self, asker: object) -> None:
        self._starts.pop(asker, None)

    def take(self, task_id: bytes) -> bytes | None:
        """Return the reply to a task, if it has been read."""
        return self._filed.pop(task_id, (None, None))[1]

    def file(self, entries: Sequence[Any]) -> None:
        """Keep replies until their callers take them."""
        seen = position(self.seen)
        for entry_id, flat in entries:
            at = text(entry_id)
            if position(at) > seen and flat and flat[::2][:2] == [b"task_id", b"payload"]:
                self._filed[flat[1]] = at, flat[3]
        # Set `seen` last, so that a caller that reads on from it finds all earlier answers filed.
        if entries and position(at) > position(self.seen):
            self.seen = at

    def turn(self) -> float:
        """Return the seconds for which a caller that was woken in vain pauses."""
        return min(_TURN * len(self._starts) ** 2, _LONGEST_TURN)

    def tidy(self) -> Op[None]:
        """After every `_TIDY_EVERY` replies, drop those without a waiting caller."""
        self._answered += 1
        if self._answered % _TIDY_EVERY:
            return
        oldest = min([*list(self._starts.values()), self.seen], key=position)
        for task_id, (at, _) in list(self._filed.items()):
            if position(at) <= position(oldest):
                self._filed.pop(task_id, None)
        yield Command("XTRIM", self.key, "MINID", oldest)


def _inbox(scope: Scope) -> _Inbox:
    inbox = _inboxes.get(scope)
    if inbox is None or inbox.process != os.getpid():
        inbox = _inboxes[scope] = _Inbox(scope)
    return inbox


def ask(
    scope: Scope,
    name: str,
    payload: object,
    timeout: float | None,
    envelope: Mapping[str, Any],
    policy: Policy,
) -> Op[Answer]:
    """Publish a task and wait for its result.

    `timeout` is in seconds, 0 or None for no limit. Raises `TaskFailed`, `TimedOut`, `QueueFull`.
    """
    names.name("queue", name)
    for word in ("key", "reply_to"):
        if envelope.get(word) is not None:
            raise UsageError(
                f"ask does not accept {word!r}",
                hint="only the caller gets the answer: publish the task instead",
            )
    if timeout is not None and not (is_seconds(timeout) and timeout >= 0):
        raise UsageError(f"the timeout is {timeout!r}", hint="give seconds, or 0 for no limit")
    inbox, asker = _inbox(scope), object()
    until = scope.monotonic() + timeout if timeout else None
    inbox.enter(asker)
    try:
        task = Task(payload, **{**envelope, "reply_to": f"{PRIVATE}{inbox.caller}"})
        task_id = yield from publish.publish(
            scope,
            name,
            task,
            bound=policy.bound,
            priority=policy.tier,
            trim=policy.on_full == "trim",
        )
        body = yield from _answer(scope, inbox, task_id, until)
        if body is None:
            raise TimedOut(
                f"waited {timeout:g} s for the answer to {task_id!r}",
                hint=f"it may still finish: see bus.result({task_id!r})",
                shell_hint=f"it may still finish: see 'agentbus result {task_id}'",
            )
    finally:
        inbox.leave(asker)
    yield from inbox.tidy()
    answer = orjson.loads(body)
    if answer.get("cancelled"):
        raise cancelled(task_id, answer["error"])
    if not answer["ok"]:
        raise TaskFailed(
            f"the task {task_id!r} failed: {answer['error']}",
            hint=f"see bus.queue({name!r}).dead_letters({answer['group']!r})",
            shell_hint=f"see 'agentbus dlq list {names.shell_word(name)}"
            f" --group {names.shell_word(str(answer['group']))}'",
        )
    return Answer(task_id, answer["result"])


def _answer(scope: Scope, inbox: _Inbox, task_id: str, until: float | None) -> Op[bytes | None]:
    """Wait for the reply to a task; return None after the deadline."""
    wanted = task_id.encode()
    while True:
        # Read `seen` before `take`: an answer that another caller files after `take` is then read
        # again.
        after = inbox.seen
        body = inbox.take(wanted)
        left = _LONGEST_WAIT if until is None else until - scope.monotonic()
        if body is not None or left <= 0:
            return body
        entries = yield Wait(inbox.key, after, min(left, _LONGEST_WAIT), _AT_ONCE)
        inbox.file(entries)
        body = inbox.take(wanted)
        if body is not None:
            return body
        if entries and (turn := inbox.turn()) > _SHORTEST_TURN:
            yield Pause(min(turn, left))


def result_of(op: Op[Answer]) -> Op[Any]:
    """Run `ask`, and return its result without the task's id."""
    return (yield from op).result
