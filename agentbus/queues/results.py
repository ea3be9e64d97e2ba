"""Reads the results of tasks, and the stored bodies of delayed and dependent tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import names, validate
from agentbus.core.errors import (
    InvalidName,
    NotFound,
    TaskBuried,
    TaskCancelled,
    TimedOut,
    UsageError,
)
from agentbus.core.stream import id_time, text
from agentbus.queues import attempts
from agentbus.queues.ids import PRIORITIES, RETRY, ROUTER, split, task_id as shown
from agentbus.queues.policy import DEFAULTS
from agentbus.store.failures import or_empty
from agentbus.store.scope import server_time
from agentbus.store.steps import Command, Pause, Script, one_step

if TYPE_CHECKING:
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_FIRST_LOOK, _LONGEST_PAUSE = 0.005, 0.25
_LARGEST = 2**64
_LONGEST_TIME = 15


class Address:
    """A parsed task id: the entry or the number of a delayed task, the queue, and the priority."""

    __slots__ = ("entry", "id", "number", "priority", "queue")

    def __init__(self, task_id: str) -> None:
        if not isinstance(task_id, str):
            raise UsageError(
                f"{task_id!r:.300} is not a task id", hint="give one that 'publish' returned"
            )
        names.name("task id", task_id[:256])
        self.id = task_id
        where, queue, self.priority = split(task_id)
        self.queue = names.unescape(queue)
        delayed = where[:1] == "d"
        self.entry, self.number = ("", where[1:]) if delayed else (where, "")
        numbers = [self.number] if delayed else where.split("-")
        sound = len(numbers) == 1 + (not delayed) and all(map(_is_number, numbers))
        try:
            names.name("queue", self.queue)
        except InvalidName:
            sound = False
        again = shown(where, self.queue, self.priority)
        if not sound or again != task_id or self.priority not in PRIORITIES:
            raise UsageError(
                f"{task_id[:300]!r} is not a task id", hint="give one that 'publish' returned"
            )

    def state_keys(self, scope: Scope, group: str) -> tuple[str, ...]:
        """Return the keys from which a script reads the task's state."""
        keys, queue = scope.keys, self.queue
        return (
            *(keys.queue(queue, self.priority), keys.result(self.id, group)),
            *(keys.delayed(queue), keys.ids(queue), keys.cancelled(queue)),
            *(keys.queue(queue, RETRY), keys.moved(queue), keys.queues),
        )


def result(
    scope: Scope,
    task_id: str,
    wait: float | None = None,
    group: str | None = None,
    policies: Policies = DEFAULTS,
) -> Op[Any]:
    """Return a task's result (None if its handler returned nothing), waiting at most `wait` seconds.

    `group` is needed only if the queue has several groups and none is named `default`. Raises `TaskBuried`,
    `TaskCancelled`, `NotFound`, `TimedOut`, and `UsageError` for an invalid id or a `wait` of NaN.
    """
    task = Address(task_id)
    if group is not None:
        names.name("group", group)
    if wait is not None:
        validate.wait("wait", wait)
    until = scope.monotonic() + (wait or 0.0)
    pause, running = _FIRST_LOOK, False
    # If the result exists, this is the only request.
    kept = yield Command("GET", scope.keys.result(task_id, group or "default"))
    while True:
        state = "kept"
        if kept is None:
            state, kept, group = yield from _read_state(scope, task, group)
        if state == "cancelled":
            raise cancelled(task.id, attempts.cancelled_by(text(kept)))
        if state == "kept":
            lie_at = policies.letters_of(task.queue)
            return (yield from _read(scope, task, kept, group or "default", lie_at))
        if state == "done":
            seconds = policies.results_of(task.queue)
            # Compare whole milliseconds, as the server does when it expires a result.
            now = yield from server_time(scope)
            age = round((now - id_time(task.entry)) * 1000) if task.entry else 0
            # A task seen unfinished in an earlier iteration has stored its result since, however
            # old the task is.
            if not seconds or (age >= seconds * 1000 and not running):
                raise NotFound(
                    f"the task {task_id!r} is done or gone, and its result is no longer kept",
                    hint=f"results of {task.queue!r} are {_kept(seconds)}",
                )
            return None
        running, left = True, until - scope.monotonic()
        if not wait:
            hint = "wait for it"
            if task.number:
                # A delayed task's id does not show its age, so the task may be done and its result
                # expired.
                kept_for = _kept(policies.results_of(task.queue))
                hint += f", unless it is done: results of {task.queue!r} are {kept_for}"
            raise NotFound(f"there is no result of the task {task_id!r}", hint=hint)
        if left <= 0:
            raise TimedOut(f"waited {wait:g} s for the result of {task_id!r}")
        yield Pause(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def of_tasks(scope: Scope, ids: Sequence[str], group: str) -> Op[list[Any]]:
    """Return the stored results of tasks that a group has done, in order; None for a task without one."""
    if not ids:
        return []
    keys = [scope.keys.result(name, group) for name in ids]
    stored = yield from or_empty(one_step(Command("MGET", *keys)), [None] * len(keys))
    return [
        None if kept is None or attempts.burial(kept) is not None else orjson.loads(kept)
        for kept in stored
    ]


def _read_state(scope: Scope, task: Address, group: str | None) -> Op[tuple[str, Any, str | None]]:
    """Return a task's state, its stored result, and the group."""
    keys = scope.keys
    while True:
        reply = yield Script(
            "read_task_state",
            task.state_keys(scope, group or "default"),
            (task.entry, task.id, task.number, group or ""),
        )
        state = text(reply[0])
        if state == "group":
            group = text(reply[1])
            continue
        if state == "groups":
            named = ", ".join(sorted(repr(text(name)) for name in reply[1:]))
            raise UsageError(
                f"the task {task.id!r} has several groups ({named})", hint="name the group"
            )
        if state == "absent":
            raise NotFound(
                f"there is no task {task.id!r}",
                hint=f"no task in {task.queue!r} has this id",
            )
        if state == "waiting" and group is None:
            # A router records the outcome of a task that matches no rule.
            kept = yield Command("GET", keys.result(task.id, ROUTER))
            if kept is not None:
                return "kept", kept, ROUTER
        return state, reply[1] if state in ("kept", "cancelled") else None, group


def _read(scope: Scope, task: Address, kept: bytes, group: str, letters_of: str) -> Op[Any]:
    buried = attempts.burial(kept)
    if buried is None:
        return orjson.loads(kept)
    letter, error = buried
    if not letter:
        raise cancelled(task.id, error)
    letter, _, elsewhere = letter.partition("@")
    queue = names.unescape(elsewhere.replace("%20", " ")) or task.queue
    if elsewhere and letters_of == task.queue:
        # The task was routed, and its dead letter belongs to another queue.
        letters_of = queue
    whose = "" if group == "default" else f" --group {names.shell_word(group)}"
    asked = one_step(Command("HGET", scope.keys.replayed(letters_of, group), letter))
    again = yield from or_empty(asked, None)
    said = f"the task {task.id!r} was buried: {error}"
    if again is not None:
        raise TaskBuried(said, hint=f"it was replayed as {text(again)!r}")
    raise TaskBuried(
        said,
        hint=f"see bus.queue({queue!r}).letter({letter!r}, group={group!r})",
        shell_hint=f"see 'agentbus dlq show {names.shell_word(queue)} {letter}{whose}'",
    )


def cancelled(task_id: str, why: str) -> TaskCancelled:
    """Return the error for a cancelled task."""
    return TaskCancelled(f"the task {task_id!r} has no result: {why}", hint="publish it again")


def _kept(seconds: float) -> str:
    if not seconds:
        return "not kept"
    number, unit = (seconds, "second") if seconds % 3600 else (seconds / 3600, "hour")
    return f"kept for {number:g} {unit}{'s'[: number != 1]}"


def _is_number(digits: str) -> bool:
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
        return False
    # Accept only the server's spelling of the number: another spelling would be another key.
    return str(int(digits)) == digits and int(digits) < _LARGEST


# Number of words of a body that precede the fields and values of its entry.
DELAYED, DEPENDENT = 2, 5


def read(body: bytes | None, fixed: int) -> list[str]:
    """Return the words of a body: `fixed` words, beginning with the priority, and the entry's words.

    For a malformed body, return the words of an entry that workers dead-letter as malformed.
    """
    try:
        words: Any = orjson.loads(body or b"")
    except ValueError:
        words = None
    if isinstance(words, list) and len(words) > fixed and all(isinstance(w, str) for w in words):
        due = words[2] if fixed == DEPENDENT else ""
        if not due or (due.isascii() and due.isdigit() and len(due) <= _LONGEST_TIME):
            return words
    shown = (body or b"").decode("utf-8", "replace")
    return ["normal", *[""] * (fixed - 1), "payload", shown, "meta", "!"]
