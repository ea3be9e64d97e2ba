"""Publishes tasks with dependencies: ready when all are done, dead when one is dead or cancelled."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from agentbus.core import names
from agentbus.core.errors import NotFound, Refused, UsageError
from agentbus.core.stream import position, text
from agentbus.queues import attempts, tracing
from agentbus.queues.dependents import DONE, ELSEWHERE, groups, resolve, told_elsewhere
from agentbus.queues.ids import (
    BOUND,
    DEDUP_WINDOW,
    PRIORITIES,
    RESULT_KEPT,
    RETRY,
    ROUTER,
    STREAMS,
    check_ids,
    suffix,
    writable,
)
from agentbus.queues.publish import (
    date,
    due as due_after,
    make_room_or_raise,
    stored_fields,
    window_of,
)
from agentbus.queues.results import Address
from agentbus.store.failures import or_empty
from agentbus.store.steps import Batch, Command, Script, ServerReply, one_step

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Op, Step

# The script examines each dependency, and must not block the server for long.
_MOST = 1000
_PAGE = 200


class _Dependency(Address):
    """A task that another waits for; its entry is known or must be found, unless it is still delayed."""

    __slots__ = ("elsewhere",)

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        # True if the task is on another shard, and not done there.
        self.elsewhere = False

    def keys(self, scope: Scope, group: str) -> tuple[str, ...]:
        """Return the keys from which the script reads the task's state."""
        keys, queue = scope.keys, self.queue
        return (
            *(keys.queue(queue, self.priority), keys.result(self.id, group)),
            *(keys.delayed(queue), keys.ids(queue), keys.awaited(queue)),
            # The tasks in this set are unfinished.
            keys.elsewhere if self.elsewhere else keys.after(queue),
            *(keys.cancelled(queue), keys.queue(queue, RETRY), keys.moved(queue)),
            # A router records the outcome of a task that matches no rule.
            keys.result(self.id, ROUTER),
        )

    def delays(self, scope: Scope) -> tuple[str, str]:
        """Return the keys that contain the task while it is delayed, or waits for others."""
        return scope.keys.delayed(self.queue), scope.keys.after(self.queue)


@tracing.in_span(tracing.stamped)
def publish(
    scope: Scope,
    queue: str,
    item: object,
    after: str | Iterable[str],
    *,
    after_group: str | None = None,
    bound: int = BOUND,
    priority: str = "normal",
    delay: float | None = None,
    at: float | None = None,
    window: float = DEDUP_WINDOW,
    letters: str | None = None,
    kept: float = RESULT_KEPT,
    kept_for: Callable[[str], float] = lambda _queue: RESULT_KEPT,
    elsewhere: Collection[str] = (),
) -> Op[str]:
    """Keep one payload or `Task` until the tasks with these ids are done, and return its id.

    A task is done when the group `after_group` (`default`) has acknowledged it. A delay counts from now:
    the task is ready when both conditions are met. `letters` is the name of its dead letters, `kept` the
    seconds for which its outcome is recorded if it becomes dead; `kept_for` returns the same for the queues
    of its dependencies. Those `elsewhere` are on other shards, and unfinished there. Check and write are
    one atomic step. Raises `NotFound` for an unknown task, `Refused` for a dead one, `QueueFull`, and
    `UsageError` for an invalid id.
    """
    writable(queue)
    group = names.name("group", "default" if after_group is None else after_group)
    others = _others(after)
    for other in others:
        other.elsewhere = other.id in elsewhere
    wait, due = ("", "") if delay is None and at is None else due_after(delay, at)
    waits: dict[str, Any] = {"after": [other.id for other in others]}
    if group != "default":
        waits["after_group"] = group
    yield from date(scope, [item])
    priority, words, key, ordering = stored_fields(scope, item, priority, delay, at, waits)
    keys, once = scope.keys, scope.once()
    if elsewhere:
        yield Batch([("ZADD", keys.elsewhere, "NX", 0, task_id) for task_id in elsewhere])
    seen = [keys.seen(queue, key)] if key is not None else []
    argv: list[Any] = [
        *(
            1,
            queue,
            bound,
            round(window_of(item, window)),
            suffix(queue, "normal"),
            once.token,
            wait,
            due,
        ),
        *(priority, ordering or "", letters or queue, math.ceil(kept)),
    ]
    while True:
        step = Script(
            "depend",
            (
                *(keys.after(queue), keys.after_bodies(queue), keys.queues, keys.stats(queue)),
                *(once.key, keys.queue(queue, priority), keys.order(queue, priority)),
                *(keys.metrics, keys.readers(queue, priority), keys.settled),
                *(keys.delayed(queue), keys.bodies(queue), keys.bell(queue)),
                *(keys.queue(queue, RETRY), keys.ids(queue)),
                *(spot for other in others for spot in other.keys(scope, group)),
                *seen,
            ),
            (*argv, len(others), *_conditions(others, group, kept_for), *words),
            writes=True,
        )
        reply = yield step
        if reply[0] == b"full":
            yield from make_room_or_raise(scope, queue, priority, bound, argv, reply)
            continue
        if reply[0] != b"unclear":
            break
        exists = yield from _find(scope, others[int(reply[1]) - 1], group)
        if not exists:
            reply = [b"absent", reply[1]]
            break
    scope.free_slot(once, step)
    if reply[0] in (b"buried", b"cancelled", b"absent"):
        raise _refusal(others[int(reply[1]) - 1], reply)
    return text(reply[1])


def review(scope: Scope, queue: str, *, thorough: bool) -> Op[None]:
    """Record missing outcomes of a queue's tasks that others wait for.

    Outcomes are missing if another program acknowledges tasks, or trims unfinished ones. `thorough` also
    searches for delayed tasks, each among all unfinished ones.
    """
    index, start, ended = scope.keys.awaited(queue), "-", 0
    while start:
        page = Command("ZRANGEBYLEX", index, start, "+", "LIMIT", 0, _PAGE)
        members = yield from or_empty(one_step(page), [])
        for member in members:
            task_id, _, group = text(member).partition("\n")
            if "\n" in group:
                continue
            other = _Dependency(task_id)
            verdict, state = yield from _ended(scope, other, group, thorough)
            if verdict:
                keys = (scope.keys.settled, index, *other.state_keys(scope, group))
                argv = (task_id, group, verdict, "", state, other.entry, other.number)
                ended += yield Script("record_outcome", keys, argv, writes=True)
        start = f"({text(members[-1])}" if len(members) == _PAGE else ""
    if ended:
        yield from resolve(scope)


def unfinished(scope: Scope, task_id: str, group: str) -> Op[bool]:
    """Return whether a task on this shard is unfinished. Raises `NotFound`, and `Refused` if it is dead."""
    other = _Dependency(task_id)
    verdict, state = yield from _outcome(scope, other, group)
    if verdict is None or verdict == DONE:
        return verdict is None
    kind = b"absent" if state == "absent" else b"cancelled" if verdict[0] == "-" else b"buried"
    raise _refusal(other, [kind, b"", verdict[1:].encode()])


def awaited_from(scope: Scope, task_id: str, group: str, shard: str) -> Op[str | None]:
    """Note that another shard awaits a task; return the outcome of the task, None if it is unfinished."""
    other = _Dependency(task_id)
    member = _told(task_id, group, shard)
    index, mark = scope.keys.awaited(other.queue), member.rpartition("\n")[0]
    # From now on, the script that settles the task records its outcome; if it has ended before, it is read.
    yield Command("ZADD", index, 0, mark, 0, member)
    return (yield from _outcome(scope, other, group))[0]


def told(scope: Scope, task_id: str, group: str, shard: str) -> Op[None]:
    """Forget that another shard waits for a task, because it knows the outcome."""
    return told_elsewhere(scope, [_told(task_id, group, shard)])


def _told(task_id: str, group: str, shard: str) -> str:
    return f"{task_id}\n{group}\n00{ELSEWHERE}{shard}"


def record(scope: Scope, task_id: str, group: str, verdict: str) -> Op[None]:
    """Record the outcome of a task on another shard, and release or dead-letter its dependents here."""
    other = _Dependency(task_id)
    places = other.state_keys(scope, group)
    argv = (other.entry, task_id, other.number, group)
    state = text((yield Script("read_task_state", places, argv))[0])
    keys = (scope.keys.settled, scope.keys.awaited(other.queue), *places)
    how = (task_id, group, verdict, "", state, other.entry, other.number)
    yield Script("record_outcome", keys, how, writes=True)
    yield from resolve(scope)


def groups_awaited(scope: Scope, task_id: str) -> Op[list[str]]:
    """Return the groups by which tasks here wait for a task."""
    index = scope.keys.awaited(_Dependency(task_id).queue)
    page = Command("ZRANGEBYLEX", index, f"[{task_id}\n", f"({task_id}\x0b")
    members = yield from or_empty(one_step(page), [])
    return [text(member).partition("\n")[2] for member in members if member.count(b"\n") == 1]


def _outcome(
    scope: Scope, other: _Dependency, group: str
) -> Generator[Step, Any, tuple[str | None, str]]:
    """Return what `_ended` does, or the recorded outcome, which is there until all dependents know it."""
    fields = (f"{other.id}\n{group}", f"{other.id}\n")
    for note in (yield Command("HMGET", scope.keys.settled, *fields)):
        if note is not None:
            return text(note), "kept"
    return (yield from _ended(scope, other, group, thorough=True))


def _ended(
    scope: Scope, other: _Dependency, group: str, thorough: bool
) -> Generator[Step, Any, tuple[str | None, str]]:
    """Return a task's outcome for a group, None if it is unfinished or unknown, and the state read."""
    argv = (other.entry, other.id, other.number, group)
    reply = yield Script("read_task_state", other.state_keys(scope, group), argv)
    read = state = text(reply[0])
    if state == "cancelled":
        return f"-{attempts.cancelled_by(text(reply[1]))}", read
    if state == "kept":
        ended = attempts.burial(reply[1])
        return DONE if ended is None else ("!" if ended[0] else "-") + ended[1], read
    if state == "waiting" and thorough and not other.entry:
        waits = yield Batch([("ZSCORE", key, other.id) for key in other.delays(scope)])
        works = yield from groups(scope, other.queue)
        # If the group does not consume this queue, the task may have been moved to a queue that it
        # does.
        if group in works and waits == [None, None]:
            exists = yield from _find(scope, other, group)
            state = state if exists else "absent"
    if state == "done":
        # This queue's consumers record the outcome when they finish a task: without a record, only
        # a remaining entry proves it.
        stream = scope.keys.queue(other.queue, other.priority)
        there = yield Command("XRANGE", stream, other.entry, other.entry)
        state = "done" if there else "absent"
    if state == "absent":
        return "!it was trimmed, without a record that it was done", read
    return DONE if state == "done" else None, read


def _others(after: str | Iterable[str]) -> list[_Dependency]:
    """Return the dependencies, without duplicates."""
    given = check_ids(after)
    for task_id in given:
        if not isinstance(task_id, str):
            raise UsageError(
                f"{task_id!r} is not a task id", hint="give one that 'publish' returned"
            )
    ids = dict.fromkeys(given)
    if len(ids) > _MOST:
        raise UsageError(
            f"the task waits for {len(ids)} others; the limit is {_MOST}",
            hint="add a task in between that waits for some of them",
        )
    return [_Dependency(task_id) for task_id in ids]


def _conditions(
    others: Sequence[_Dependency], group: str, kept_for: Callable[[str], float]
) -> list[Arg]:
    conditions: list[Arg] = []
    for other in others:
        kept = round(kept_for(other.queue) * 1000)
        conditions += (other.id, other.entry, other.number, group, kept)
    return conditions


def _find(scope: Scope, other: _Dependency, group: str) -> Generator[Step, Any, bool]:
    """Find the entry that a delayed task got when it became due, among the unfinished tasks.

    Returns False if neither the entry nor a record of its outcome exists.
    """
    for priority in (RETRY, *PRIORITIES):
        stream = scope.keys.queue(other.queue, priority)
        start = yield from _oldest_open(stream, group)
        if priority == RETRY and start == "-":
            # The group has no pending entries in this stream.
            start = ""
        while start:
            entries = yield Command("XRANGE", stream, start, "+", "COUNT", _PAGE)
            for entry_id, flat in entries:
                if _id_in(flat) != other.id.encode():
                    continue
                held = priority != RETRY or (
                    yield Command("XPENDING", stream, group, entry_id, entry_id, 1)
                )
                if held:
                    other.entry, other.priority = text(entry_id), priority
                    return True
            start = f"({text(entries[-1][0])}" if len(entries) == _PAGE else ""
    # If the task ended during the search, its outcome is stored.
    kept = yield Command("GET", scope.keys.result(other.id, group))
    return kept is not None


def entry_of(
    scope: Scope, task_id: str, group: str, queue: str | None = None
) -> Generator[Step, Any, tuple[str, str] | None]:
    """Return the entry and priority that a delayed task got when it became due, if it is unfinished.

    With `queue`, return the entry that a routed task got in that queue.
    """
    other = _Dependency(task_id)
    if queue is not None:
        other.queue, other.entry = queue, ""
    yield from _find(scope, other, group)
    return (other.entry, other.priority) if other.entry else None


def routed_to(scope: Scope, queue: str, others: Sequence[str]) -> Op[list[Arg]]:
    """Return the members of other queues' indexes for tasks that a router moved to this queue.

    Each follows the number of the task's stream in this queue, and its entry.
    """
    indexes = [("ZRANGE", scope.keys.awaited(other), 0, -1) for other in others if other != queue]
    pages = (yield Batch(indexes)) if indexes else []
    awaited: dict[bytes, list[str]] = {}
    for page in pages:
        for member in page if isinstance(page, list) else ():
            awaited.setdefault(member.partition(b"\n")[0], []).append(text(member))
    routed: list[Arg] = []
    for number, priority in enumerate(STREAMS if awaited else (), 1):
        stream, start = scope.keys.queue(queue, priority), "-"
        while start:
            page = Command("XRANGE", stream, start, "+", "COUNT", _PAGE)
            entries = yield from or_empty(one_step(page), [])
            for entry, flat in entries:
                for member in awaited.get(_id_in(flat) or b"", ()):
                    routed += (number, text(entry), member)
            start = f"({text(entries[-1][0])}" if len(entries) == _PAGE else ""
    return routed


def _oldest_open(stream: str, group: str) -> Generator[Step, Any, str]:
    """Return the first entry that the group may not have done; '' if the stream does not exist."""
    groups, pending = yield Batch([("XINFO", "GROUPS", stream), ("XPENDING", stream, group)])
    if isinstance(groups, ServerReply):
        return ""
    for flat in groups:
        named = dict(zip(flat[::2], flat[1::2], strict=True))
        if text(named[b"name"]) == group:
            lowest = text(named[b"last-delivered-id"])
            if not isinstance(pending, ServerReply) and pending[1]:
                lowest = min(lowest, text(pending[1]), key=position)
            return lowest
    return "-"


def _id_in(flat: Sequence[bytes] | None) -> bytes | None:
    return None if flat is None else dict(zip(flat[::2], flat[1::2], strict=True)).get(b"id")


def _refusal(other: _Dependency, reply: Sequence[Any]) -> NotFound | Refused:
    task_id = other.id
    if reply[0] == b"cancelled":
        return Refused(
            f"the task cannot wait for {task_id!r}: {text(reply[2])}",
            hint="publish that one again, and wait for the new task",
        )
    if reply[0] == b"buried":
        return Refused(
            f"the task cannot wait for {task_id!r}, which was buried: {text(reply[2])}",
            hint="replay its dead letter, and wait for the new task",
            shell_hint="replay its dead letter"
            f" ('agentbus dlq list {names.shell_word(other.queue)}'), and wait for the new task",
        )
    return NotFound(
        f"there is no task {task_id!r} to wait for, or its outcome is no longer recorded",
        hint="give an id that 'publish' returned; if that task is done, leave it out",
    )
