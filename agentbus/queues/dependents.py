"""Releases or dead-letters dependents: tasks whose dependencies have ended, alone or in a flow.

In the index of dependents, each task of a flow has one additional member in place of a dependent: `flow
<number> <flow>`, or `undo <number> <flow>` for the compensation of the task with this number.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import envelope
from agentbus.core.clock import rfc3339
from agentbus.core.errors import AgentBusError
from agentbus.core.names import unescape
from agentbus.core.stream import text
from agentbus.queues import results as stored
from agentbus.queues.attempts import is_cancelled
from agentbus.queues.ids import PRIORITIES, RESULT_KEPT, group_names, groups_of, is_writable
from agentbus.queues.notify import notifications
from agentbus.store.failures import or_empty
from agentbus.store.scan import hash_fields
from agentbus.store.steps import Batch, Command, Script, ServerReply, one_step

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Op, Step


# Maximum number of dependents that one script releases.
_PAGE = 200
# Seconds to spend on dependents: after a task is settled, and in the chore for dependents left by a
# dead worker.
_BESIDE, CHORE = 0.2, 0.5
_LONGEST_REASON = 2000
# More digits than any retention time in seconds has.
_DIGITS = 12
DONE = "+"
# Seconds for which a failed or cancelled flow is kept for replay, with the results of its tasks.
KEPT = 30 * 86_400
_MEMBER = r"(?s)(flow|undo) ([1-9]\d{0,3}) (.+)"
_FIELDS = {"flow": "end", "undo": "undo"}
# The member of the index that stands for the dependents on another shard, before its number.
ELSEWHERE = "shard "


def queue_of(task_id: str) -> str:
    """Return the queue in a task's id, which may be malformed."""
    return unescape(task_id.partition("@")[2].partition(":")[0])


def passed_on(scope: Scope) -> Op[None]:
    """Release or dead-letter the dependents of a task just settled; the chore does the rest later."""
    try:
        yield from resolve(scope, _BESIDE)
    except AgentBusError:
        # The task itself is settled, and the chore handles its dependents later.
        return


def resolve(scope: Scope, seconds: float | None = None) -> Op[None]:
    """Release or dead-letter all dependents of ended tasks, for about `seconds`.

    Each is handled exactly once, in one atomic step, even if several processes do this at the same time or
    die during it. The dependents of a dead dependent follow in turn.
    """
    until = None if seconds is None else scope.monotonic() + seconds
    cursor: bytes | int = 0
    any_note = False
    while True:
        cursor, flat = yield Command("HSCAN", scope.keys.settled, cursor, "COUNT", _PAGE)
        notes = {text(flat[at]): text(flat[at + 1]) for at in range(0, len(flat), 2)}
        done = [field for field in notes if notes[field] == DONE]
        any_note = (yield from _release(scope, done)) or any_note
        for field, verdict in notes.items():
            if verdict != DONE:
                any_note = (yield from _bury(scope, field, verdict)) or any_note
            if until is not None and scope.monotonic() > until:
                return
        if not int(cursor):
            if not any_note:
                return
            # Dead dependents may have added their own outcomes.
            any_note = False


def _release(scope: Scope, fields: Sequence[str]) -> Op[bool]:
    """Release the dependents of tasks that are done for a group, and return whether any were here."""
    keys = scope.keys
    spans = [_span(field) for field in fields]
    pages = (yield Batch([_looking(scope, field, span) for field, span in spans])) if spans else []
    waiting: dict[tuple[str, str], list[str]] = {}
    any_here = False
    for (field, prefix), page in zip(spans, pages, strict=True):
        if not page or isinstance(page, ServerReply):
            yield from _forget(scope, field, prefix)
            any_here = True
            continue
        index = keys.awaited(queue_of(field.partition("\n")[0]))
        for member in map(text, page):
            if _waits(member).startswith(ELSEWHERE):
                # A forwarder tells the other shard.
                continue
            any_here = True
            if watched(_waits(member)):
                yield from record_flow_outcome(scope, (field, prefix, member), DONE)
            elif is_writable(queue_of(_waits(member))):
                waiting.setdefault((index, queue_of(_waits(member))), []).append(member)
            else:
                yield Command("ZREM", index, member)
    for (index, queue), members in waiting.items():
        places = [
            key
            for priority in PRIORITIES
            for key in (keys.queue(queue, priority), keys.order(queue, priority))
        ]
        for at in range(0, len(members), _PAGE):
            yield Script(
                "release_dependents",
                (
                    *(keys.settled, index, keys.after(queue), keys.after_bodies(queue)),
                    *(keys.delayed(queue), keys.bodies(queue), keys.bell(queue), *places),
                ),
                (len(PRIORITIES), *PRIORITIES, *members[at : at + _PAGE]),
                writes=True,
            )
    return any_here


def _bury(scope: Scope, field: str, verdict: str) -> Op[bool]:
    """Dead-letter the dependents of a dead task, for one group or for all; return whether any were here."""
    task_id = field.partition("\n")[0]
    what = f"was buried: {verdict[1:]}"
    if is_cancelled(verdict):
        what = verdict[1:].removeprefix("it ")
    why = f"it waited for {task_id}, which {what}"[:_LONGEST_REASON]
    # In a chain, each task's reason names its predecessor and the first failure.
    onwards = verdict if verdict.startswith("~") else f"~{why}"
    span = _span(field)
    page = yield Command(*_looking(scope, *span))
    members = [text(member) for member in page if member.count(b"\n") > 1]
    if not members:
        yield from _forget(scope, *span)
    here = [member for member in members if not _waits(member).startswith(ELSEWHERE)]
    by_queue: dict[str, list[str]] = {}
    for member in here:
        queue = queue_of(_waits(member))
        if watched(_waits(member)):
            yield from record_flow_outcome(scope, (*span, member), verdict)
        elif is_writable(queue):
            by_queue.setdefault(queue, []).append(member)
        else:
            yield Command("ZREM", scope.keys.awaited(queue_of(task_id)), member)
    for queue, own in by_queue.items():
        group = yield from _group(scope, queue)
        ids = [_waits(member) for member in own]
        bodies = yield Command("HMGET", scope.keys.after_bodies(queue), *ids)
        index = scope.keys.awaited(queue_of(task_id))
        for member, body in zip(own, bodies, strict=True):
            yield _bury_dependents(scope, index, (*span, member, onwards, why), queue, group, body)
    return bool(here) or not members


def _waits(member: str) -> str:
    """Return the dependent, which follows two digits at the end of a member of the index."""
    return member.rpartition("\n")[2][2:]


def _span(field: str) -> tuple[str, str]:
    """Return the field of a record, and the prefix of its members in the index."""
    return field, f"{field}\n" if field.partition("\n")[2] else field


def _looking(scope: Scope, field: str, prefix: str) -> tuple[Arg, ...]:
    index = scope.keys.awaited(queue_of(field.partition("\n")[0]))
    end = f"({prefix[:-1]}\x0b"
    return ("ZRANGEBYLEX", index, f"[{prefix}", end, "LIMIT", 0, _PAGE)


def told_elsewhere(scope: Scope, members: Sequence[str]) -> Op[None]:
    """Remove members that stand for another shard, which knows the outcome, and records without others."""
    for member in members:
        mark = member.rpartition("\n")[0]
        yield Command("ZREM", scope.keys.awaited(queue_of(mark.partition("\n")[0])), member)
        for field in (mark, mark.partition("\n")[0] + "\n"):
            span = _span(field)
            if not (yield Command(*_looking(scope, *span))):
                yield from _forget(scope, *span)


def recorded(scope: Scope) -> Op[dict[str, tuple[str, str]]]:
    """Return the members that stand for other shards in recorded outcomes, with the verdict and shard."""
    members: dict[str, tuple[str, str]] = {}
    notes = yield from or_empty(hash_fields(scope.keys.settled, _PAGE), {})
    for field, verdict in ((text(name), text(value)) for name, value in notes.items()):
        page = yield from or_empty(one_step(Command(*_looking(scope, *_span(field)))), [])
        for member in map(text, page):
            if _waits(member).startswith(ELSEWHERE) and member.count("\n") > 1:
                members[member] = verdict, _waits(member).removeprefix(ELSEWHERE)
    return members


def _forget(scope: Scope, field: str, prefix: str) -> Op[None]:
    """Delete a record without dependents: another process has handled them."""
    task_id, newline, group = field.partition("\n")
    if not newline:
        # Another program wrote this record: delete it, or it would be found again each time.
        yield Command("HDEL", scope.keys.settled, field)
        return
    keys = (scope.keys.settled, scope.keys.awaited(queue_of(task_id)))
    yield Script("record_outcome", keys, (task_id, group, "", prefix), writes=True)


def _bury_dependents(
    scope: Scope,
    index: str,
    head: tuple[str, str, str, str, str],
    queue: str,
    group: str,
    body: bytes | None,
) -> Script:
    keys, task_id, why = scope.keys, _waits(head[2]), head[4]
    # Another process handled a dependent without a body; the script finds it missing, too.
    priority, _, _, letters, kept, *flat = stored.read(body, stored.DEPENDENT)
    letters = letters if letters and is_writable(letters) else queue
    if not (kept.isascii() and kept.isdigit() and len(kept) < _DIGITS):
        kept = "0"
    try:
        _, meta = envelope.decode([word.encode() for word in flat])
    except ValueError:
        meta = {}
    others = notifications(scope, queue, group, task_id, meta, error=why)
    words = (
        *("queue", queue, "group", group, "priority", priority, "task_id", task_id),
        *("attempts", 0, "error", why, "traceback", ""),
        *("failed_at", rfc3339(scope.server_now(), milliseconds=True)),
    )
    return Script(
        "bury_dependents",
        (
            *(keys.settled, index, keys.after(queue), keys.after_bodies(queue)),
            *(keys.dead_letters(letters, group), keys.result(task_id, group)),
            *(keys.stats(queue), keys.awaited(queue), *others.keys),
        ),
        (*head, kept, others.counter, len(words), *words, *others.argv),
        writes=True,
    )


def _group(scope: Scope, queue: str) -> Generator[Step, Any, str]:
    """Return the group for the dead letter of an undelivered task: the only group, or `default`."""
    names = yield from groups(scope, queue)
    return names.pop() if len(names) == 1 else "default"


def groups(scope: Scope, queue: str) -> Generator[Step, Any, set[str]]:
    """Return the groups that consume a queue."""
    infos = yield from groups_of(scope, queue)
    return group_names(infos)


def watched(dependent: str) -> bool:
    """Return whether a dependent in the index stands for a flow instead of a task."""
    return _member(dependent) is not None


def _member(dependent: str) -> re.Match[str] | None:
    return re.fullmatch(_MEMBER, dependent)


def record_flow_outcome(scope: Scope, mark: tuple[str, str, str], verdict: str) -> Op[None]:
    """Record the outcome of a task for its flow, once and atomically.

    `mark` is the recorded outcome's field, the prefix of its members, and the member.
    """
    field, _, member = mark
    parts = _member(member.rpartition("\n")[2][2:])
    assert parts is not None
    kind, number, flow = map(str, parts.groups())
    task_id, _, group = field.partition("\n")
    # A dead dependent is recorded for all groups.
    group = group or member.split("\n")[1]
    index = scope.keys.awaited(unescape(task_id.partition("@")[2].partition(":")[0]))
    outcome = (*mark, verdict, _FIELDS[kind], number)
    result = scope.keys.result(task_id, group)
    yield from _conclude(scope, flow, (index, result), outcome, cancelled=is_cancelled(verdict))


def continue_flows(scope: Scope) -> Op[None]:
    """Continue the flows whose last outcome is recorded, and which neither ended nor undo a task.

    They stand still if another program's record or key prevented that.
    """
    record, index = scope.keys.flow("")
    members = yield from or_empty(one_step(Command("ZRANGEBYSCORE", index, "+inf", "+inf")), [])
    running = [text(flow) for flow in members]
    for at in range(0, len(running), _PAGE):
        page = running[at : at + _PAGE]
        asked = [("HMGET", scope.keys.flow(flow)[0], "open", "ended") for flow in page]
        for flow, reply in zip(page, (yield Batch(asked)), strict=True):
            if reply == [b"0", None]:
                yield from _conclude(scope, flow, (index, record), ("",) * 6, cancelled=False)


def _conclude(
    scope: Scope, flow: str, of_task: tuple[str, str], outcome: tuple[str, ...], *, cancelled: bool
) -> Op[None]:
    """Record an outcome in a flow, or none; `of_task` are its task's index of dependents and its result."""
    record, flows = scope.keys.flow(flow)
    stored = yield from or_empty(one_step(Command("HGET", record, "places")), None)
    places = _places(stored)
    index, result = of_task
    ends: list[str] = [place_of(*place) for place in places]
    yield Script(
        "record_flow_outcome",
        (
            *(scope.keys.settled, index, record, flows, result),
            *(key for queue, priority in places for key in _keys_of(scope, queue, priority)),
        ),
        (*outcome, flow, int(cancelled), RESULT_KEPT, KEPT, *ends),
        writes=True,
    )


def place_of(queue: str, priority: str) -> str:
    """Return the name of a task's stream in a flow's record."""
    return f"{priority} {queue}"


def _keys_of(scope: Scope, queue: str, priority: str) -> tuple[str, ...]:
    keys = scope.keys
    return (
        *(keys.queue(queue, priority), keys.order(queue, priority), keys.delayed(queue)),
        *(keys.bodies(queue), keys.bell(queue), keys.awaited(queue)),
    )


def _places(stored: bytes | None) -> list[tuple[str, str]]:
    """Return the queues and priorities of compensations."""
    try:
        places = [(str(queue), priority) for queue, priority in orjson.loads(stored or b"[]")]
    except (ValueError, TypeError):
        # Another program wrote a malformed record.
        return []
    # A user who may publish may write any place into the record.
    return [place for place in places if is_writable(place[0]) and place[1] in PRIORITIES]
