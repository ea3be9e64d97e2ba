"""`Queue.inspect`: lists the tasks of a queue with their state in a group."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agentbus.core import names, validate
from agentbus.core.errors import UsageError
from agentbus.core.stream import id_time, position, text
from agentbus.core.timespec import since, stream_id
from agentbus.queues import state
from agentbus.queues.ids import PRIORITIES, RETRY, missing, split, task_id
from agentbus.queues.policy import DEFAULTS
from agentbus.queues.state import Entry
from agentbus.store.scope import server_time
from agentbus.store.steps import Batch, Command

if TYPE_CHECKING:
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_MOST = 10_000


def inspect(
    scope: Scope,
    queue: str,
    group: str = "default",
    last: int | None = None,
    start: str | None = None,
    limit: int = 20,
    policies: Policies = DEFAULTS,
) -> Op[list[Entry]]:
    """Return tasks of a queue, oldest first, ready or not. Raises `NotFound`, `UsageError`.

    Returns the oldest `limit` tasks; with `start`, those from that id or time on; with `last`, that
    many of the newest.
    """
    names.name("queue", queue)
    names.name("group", group)
    if last is not None and start is not None:
        raise UsageError("last and start exclude each other", hint="give one of them")
    validate.number_of("limit", limit, "tasks")
    if last is not None:
        validate.number_of("last", last, "tasks")
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
    rows = sorted(
        (position(text(entry[0])), priority, entry)
        for priority, page in zip(PRIORITIES, pages, strict=True)
        if isinstance(page, list)
        for entry in page
    )
    letters_of = policies.letters_of(queue)
    moved = yield from _moved(scope, queue, group, letters_of)
    places = {one.id for one in moved}
    rows = [one for one in rows if task_id(text(one[2][0]), queue, one[1]) not in places]
    chosen = rows[:count] if last is None else rows[max(0, len(rows) - count) :]
    kept = [*moved, *(yield from state.kept(scope, queue, group, _MOST))]
    if first != "-":
        kept = [one for one in kept if one.published >= id_time(first)]
    if not chosen and not kept:
        (there,) = yield Batch([("EXISTS", *keys.values())])
        if not there:
            raise (yield from missing(scope, queue))
    entries: list[Entry] = []
    for priority in PRIORITIES:
        own = [entry for _, of, entry in chosen if of == priority]
        if own:
            entries += yield from state.entries(scope, queue, group, priority, own, letters_of)
    entries.sort(key=lambda one: (position(one.id.partition("@")[0]), one.priority))
    # Tasks that are not ready are not in these streams, so the list is sorted by publication time.
    entries = sorted([*entries, *kept], key=lambda one: one.published)
    entries = entries[:count] if last is None else entries[max(0, len(entries) - count) :]
    # A task that was delayed or routed keeps its first id: the outcome is recorded under that id.
    return [replace(one, id=str(one.envelope.get("id") or one.id)) for one in entries]


def _moved(scope: Scope, queue: str, group: str, letters_of: str) -> Op[list[Entry]]:
    """Return the tasks of a group in the stream of retries."""
    page = yield Command("XRANGE", scope.keys.queue(queue, RETRY), "-", "+", "COUNT", _MOST)
    if not page:
        return []
    entries = yield from state.entries(scope, queue, group, RETRY, page, letters_of)
    return [entry for entry in entries if entry.state in ("retrying", "running")]


def _from(start: str, now: float) -> str:
    """Return the entry id at which to start, for a task id, an entry id, or a time."""
    entry_id = split(start)[0] if "@" in start else start
    parts = stream_id(entry_id)
    if parts is None and "@" in start:
        raise UsageError(
            f"{start[:60]!a} is not a place in a queue",
            hint="give the id of a task that was not delayed, or a time",
        )
    return f"{parts[0]}-{parts[1]}" if parts is not None else since(entry_id, now)
