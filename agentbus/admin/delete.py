"""Deletes a queue with all of its keys, or one of its groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core import names
from agentbus.core.errors import NotFound, Refused
from agentbus.core.keys import pause_field
from agentbus.core.names import escape
from agentbus.core.stream import text
from agentbus.queues.dependencies import routed_to
from agentbus.queues.dependents import passed_on
from agentbus.queues.ids import PRIORITIES, STREAMS, groups_of, missing
from agentbus.store.scan import key_bytes, members, scan
from agentbus.store.steps import Script
from agentbus.workers import registry

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

    # Another program may have written the key's name in any encoding.
    Key = str | bytes

# Maximum number of dedup records per script.
_AT_ONCE = 500
# The kinds of keys that are deleted with a queue, besides its streams, its counters and its dead letters.
_KINDS = frozenset(
    ["delayed", "after", "attempts", "limits", "order", "positions", "readers", "stats"]
)


@dataclass(frozen=True, slots=True)
class Deleted:
    """A deleted queue, or one `group` of it, with its numbers of unfinished tasks and dead letters.

    `workers` are the live workers that it had. They continue to run, and create their group again.
    """

    queue: str
    group: str | None
    undone: int
    dead: int
    workers: tuple[str, ...]


def delete(
    scope: Scope,
    queue: str,
    group: str | None = None,
    *,
    force: bool = False,
    letters_of: Callable[[str], str] = str,
) -> Op[Deleted]:
    """Delete a queue, or one group of it, and return what was deleted.

    The check and the deletion are one atomic step; dedup records are deleted afterwards.
    `letters_of` returns the name under which a queue's dead letters are stored; letters that
    several queues share are kept. Raises `Refused` for live workers, unfinished tasks, and tasks
    that wait for these, unless `force`; and `NotFound`.
    """
    if group is not None:
        names.name("group", group)
    keys, once = scope.keys, scope.once()
    workers = yield from registry.workers(scope, counted=False)
    own_workers = [one.worker for one in workers if one.queue == queue]
    known = yield from members(keys.queues)
    shared = letters_of(queue) != queue or any(
        letters_of(other) == queue for other in known if other != queue
    )
    if group is None:
        boxes, others = yield from _all_of(scope, queue)
    else:
        boxes, others = [group], _all_of_group(scope, queue, group)
    letters: list[str] = []
    for box in () if shared else boxes:
        letters += (keys.dead_letters(queue, box), keys.purged(queue, box))
        others.append(keys.replayed(queue, box))
    why = f"!the queue {queue!r} was deleted by {scope.agent}"
    if group is not None:
        why = f"!the group {group!r} of the queue {queue!r} was deleted by {scope.agent}"
    routed = yield from routed_to(scope, queue, known)
    step = Script(
        "delete",
        (
            *(keys.queues, once.key, keys.paused, keys.ids(queue), keys.awaited(queue)),
            *(keys.settled, keys.beats, keys.delayed(queue), keys.after(queue)),
            *(keys.positions(queue), *(keys.queue(queue, one) for one in STREAMS)),
            *(*map(keys.beat, own_workers), *letters, *others),
        ),
        (
            *(once.token, int(force), queue, group or "", round(scope.intervals.alive * 1000)),
            *(pause_field("queue", queue), why, len(STREAMS), len(own_workers), len(letters) // 2),
            *(f"{escape(group or '')}:{one}" for one in STREAMS),
            *(*own_workers, *routed),
        ),
        writes=True,
    )
    reply = yield step
    scope.free_slot(once, step)
    if reply[0] == b"absent":
        there = yield from groups_of(scope, queue)
        raise _no_group(queue, group or "") if there else (yield from missing(scope, queue))
    if reply[0] == b"refused":
        raise _refusal(queue, group, *reply[1:])
    yield from passed_on(scope)
    if group is None:
        yield from _delete_dedup_records(scope, queue, *reply[3:5])
    return Deleted(queue, group, reply[1], reply[2], tuple(map(text, reply[5])))


def _all_of(scope: Scope, queue: str) -> Op[tuple[list[str], list[Key]]]:
    """Return a queue's groups with dead letters, and its keys that the script does not know."""
    keys, name = scope.keys, escape(queue)
    apart = {keys.awaited(queue), keys.delayed(queue), keys.after(queue), keys.positions(queue)}
    boxes: set[str] = set()
    others: list[Key] = []
    there = False
    for key in (yield from scan(scope, None)):
        kind, _, rest = key[len(keys.project) + 1 :].partition(":")
        parts = rest.split(":")
        if parts[0] != name or keys.kind(key) is None:
            continue
        if kind == "dlq" and len(parts) > 1:
            boxes.add(names.unescape(parts[1]))
        elif kind in _KINDS and key not in apart:
            others.append(key_bytes(key))
        # Counters alone do not make a queue.
        there = there or kind in ("q", "dlq", "delayed") or (kind in _KINDS and kind != "stats")
    if not there:
        raise (yield from missing(scope, queue))
    return sorted(boxes), others


def _all_of_group(scope: Scope, queue: str, group: str) -> list[Key]:
    keys = scope.keys
    owned: list[Key] = [keys.worked(queue, group), *keys.limits(queue, group)]
    owned.append(keys.visibilities(queue, group))
    for priority in STREAMS:
        owned += (keys.attempts(queue, group, priority), keys.retries(queue, group, priority))
    return owned


def _delete_dedup_records(scope: Scope, queue: str, deleted_at: bytes, delayed: bytes) -> Op[None]:
    """Delete the dedup records of a deleted queue, so that no record names a missing task."""
    keys = scope.keys
    streams = [keys.queue(queue, priority) for priority in PRIORITIES]
    seen = yield from scan(scope, f"seen:{escape(queue)}")
    records = sorted(map(key_bytes, seen))
    for at in range(0, len(records), _AT_ONCE):
        yield Script(
            "delete_dedup_records",
            (*streams, *records[at : at + _AT_ONCE]),
            (deleted_at, delayed, len(streams), *PRIORITIES),
            writes=True,
        )


def _no_group(queue: str, group: str) -> NotFound:
    return NotFound(
        f"the queue {queue!r} has no group {group!r}",
        hint="queue.groups() returns them",
        shell_hint=f"see 'agentbus bus groups {names.shell_word(queue)}'",
    )


def _refusal(
    queue: str, group: str | None, undone: int, dependents: int, live: Sequence[Any]
) -> Refused:
    what = f"the queue {queue!r}" if group is None else f"the group {group!r} of {queue!r}"
    reasons = [f"{undone} undone task{'s'[: undone != 1]}"] if undone else []
    if dependents:
        reasons.append(f"{dependents} task{'s'[: dependents != 1]} of other queues waiting for it")
    if live:
        reasons.append(f"live workers: {', '.join(map(text, live[:3]))}")
        reasons[-1] += f" and {len(live) - 3} more" if len(live) > 3 else ""
    # No worker may ever come for the tasks of its only group.
    drop, shell_drop = "", ""
    if group is not None and not live:
        drop, shell_drop = ", or drop them with force=True", ", or drop them with --force"
    return Refused(
        f"{what} is not deleted, since it has {' and '.join(reasons)}",
        hint="wait until its tasks are done, and stop its workers with bus.delete(worker=...)"
        + drop,
        shell_hint="wait until its tasks are done, and stop its workers with 'agentbus agent delete'"
        + shell_drop,
    )
