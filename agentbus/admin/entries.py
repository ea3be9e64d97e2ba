"""`Queue.inspect`: decoded stream entries with their state in a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.admin.metrics_reader import server_time
from agentbus.core import envelope, names
from agentbus.core.errors import UsageError
from agentbus.core.record import Record
from agentbus.core.stream import id_time, is_number, position, text
from agentbus.core.timespec import since, stream_id
from agentbus.queues.ids import PRIORITIES, missing, split, task_id
from agentbus.queues.settle import ASIDE
from agentbus.store.steps import Batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_MOST = 10_000


class Entry(Record):
    """An entry of a queue, with its state in a group; times are in seconds.

    `state` is `waiting` (not delivered), `pending` (held by `holder`, without a heartbeat for `idle`
    seconds), `retrying` (waiting for its next attempt), or `done`. `deliveries` counts the deliveries of a
    pending entry, `attempts` the counted runs. `error` says why a malformed entry cannot be decoded.
    """

    id: str
    queue: str
    group: str
    priority: str
    published: float
    state: str
    holder: str | None
    idle: float | None
    deliveries: int | None
    attempts: int | None
    payload: Any
    envelope: Mapping[str, Any]
    error: str | None


def inspect(
    scope: Scope,
    queue: str,
    group: str = "default",
    *,
    last: int | None = None,
    start: str | None = None,
    limit: int = 20,
) -> Op[list[Entry]]:
    """Return entries of a queue in the order of their ids. Raises `NotFound`, `UsageError`.

    Returns the oldest `limit`; with `start`, from that id or time on; with `last`, that many of the newest.
    """
    names.name("queue", queue)
    names.name("group", group)
    if last is not None and start is not None:
        raise UsageError("last and start exclude each other", hint="give one of them")
    count = min(limit if last is None else last, _MOST)
    first = "-"
    if start is not None:
        first = _from(start, (yield from server_time(scope)))
    keys = {priority: scope.keys.queue(queue, priority) for priority in PRIORITIES}
    pages = yield Batch(
        [
            ("XRANGE", key, first, "+", "COUNT", count)
            if last is None
            else ("XREVRANGE", key, "+", "-", "COUNT", count)
            for key in keys.values()
        ]
    )
    found = sorted(
        (position(text(entry[0])), priority, entry)
        for priority, page in zip(PRIORITIES, pages, strict=True)
        if isinstance(page, list)
        for entry in page
    )
    chosen = found[:count] if last is None else found[max(0, len(found) - count) :]
    if not chosen:
        (there,) = yield Batch([("EXISTS", *keys.values())])
        if not there:
            raise (yield from missing(scope, queue))
    entries: list[Entry] = []
    for priority in PRIORITIES:
        mine = [entry for _, of, entry in chosen if of == priority]
        if mine:
            entries += yield from _states(scope, queue, group, priority, mine)
    return sorted(entries, key=lambda one: (position(one.id.partition("@")[0]), one.priority))


def _states(
    scope: Scope, queue: str, group: str, priority: str, found: list[Any]
) -> Op[list[Entry]]:
    """Return entries of one stream with their state in the group."""
    key = scope.keys.queue(queue, priority)
    ids = [text(entry[0]) for entry in found]
    held, attempts, about = yield Batch(
        [
            ("XPENDING", key, group, ids[0], ids[-1], len(ids)),
            ("HMGET", scope.keys.attempts(queue, group, priority), *ids),
            ("XINFO", "GROUPS", key),
        ]
    )
    # Without the group, every entry is waiting.
    pending: dict[str, Any] = {}
    if isinstance(held, list):
        pending = {text(one[0]): one for one in held}
    counted = attempts if isinstance(attempts, list) else [None] * len(ids)
    delivered = "0-0"
    for flat in about if isinstance(about, list) else ():
        named = {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}
        if text(named["name"]) == group:
            delivered = text(named["last-delivered-id"])
    entries = []
    for entry_id, (_, flat), attempt in zip(ids, found, counted, strict=True):
        payload, meta, error = _decoded(flat)
        one = pending.get(entry_id, (b"", b"", None, None))
        if entry_id in pending:
            state = "retrying" if text(one[1]) == ASIDE else "pending"
        else:
            state = "done" if position(entry_id) <= position(delivered) else "waiting"
        number = text(attempt or b"").partition(" ")[0]
        entries.append(
            Entry(
                task_id(entry_id, queue, priority),
                queue,
                group,
                priority,
                id_time(entry_id),
                state,
                text(one[1]) if state == "pending" else None,
                one[2] / 1000 if state == "pending" else None,
                one[3],
                int(number) if is_number(number) else None,
                payload,
                meta,
                error,
            )
        )
    return entries


def _decoded(flat: Any) -> tuple[Any, dict[str, Any], str | None]:
    try:
        payload, meta = envelope.decode(flat or [])
    except (ValueError, UnicodeDecodeError) as error:
        return None, {}, str(error)
    return payload, meta, None


def _from(start: str, now: float) -> str:
    """Return the entry id for a task id, an entry id, or a time."""
    entry_id = split(start)[0] if "@" in start else start
    parts = stream_id(entry_id)
    return f"{parts[0]}-{parts[1]}" if parts is not None else since(entry_id, now)
