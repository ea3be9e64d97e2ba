"""The tasks of a queue in one state, page by page, without reading tasks in other states."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import UsageError
from agentbus.core.stream import position, text
from agentbus.core.timespec import stream_id
from agentbus.queues import state as states
from agentbus.queues.ids import ASIDE, PRIORITIES, STREAMS, missing
from agentbus.store.failures import or_empty
from agentbus.store.steps import Batch, Command, one_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.queues.state import Entry
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

STATES = ("waiting", "running", "retrying", "delayed", "blocked")
# Maximum number of pending entries that one call examines, without their payloads.
_LOOKED_AT = 2000


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Tasks of a queue in one state; `after` continues the list, None at its end."""

    entries: tuple[Entry, ...]
    after: str | None


class TaskList:
    """The tasks of a queue in a state, for a group."""

    def __init__(self, scope: Scope, queue: str, group: str, letters_of: str) -> None:
        self._scope = scope
        self._queue = queue
        self._group = group
        self._letters_of = letters_of

    def page(self, state: str, after: str | None, limit: int) -> Op[TaskPage]:
        """Return the tasks after the mark `after`. Raises `NotFound`, `UsageError`."""
        priority, entry = _place(state, after)
        streams = [self._scope.keys.queue(self._queue, one) for one in PRIORITIES]
        keys = self._scope.keys
        (there,) = yield Batch(
            [("EXISTS", *streams, keys.delayed(self._queue), keys.after(self._queue))]
        )
        if not there:
            raise (yield from missing(self._scope, self._queue))
        if state in ("delayed", "blocked"):
            return (yield from self._unready(state, int(entry or 0), limit))
        return (yield from self._in_streams(state, priority, entry, limit))

    def _unready(self, state: str, at: int, limit: int) -> Op[TaskPage]:
        keys, delayed = self._scope.keys, state == "delayed"
        ids = keys.delayed(self._queue) if delayed else keys.after(self._queue)
        bodies = keys.bodies(self._queue) if delayed else keys.after_bodies(self._queue)
        asked = one_step(Command("ZRANGE", ids, at, at + limit, "WITHSCORES"))
        flat = yield from or_empty(asked, [])
        due = {text(flat[i]): float(flat[i + 1]) / 1000 for i in range(0, len(flat), 2)}
        wanted = [*due][:limit]
        if not wanted:
            return TaskPage((), None)
        (found,) = yield Batch([("HMGET", bodies, *wanted)])
        entries = [
            states.unready(one, self._queue, self._group, body, due[one] if delayed else None)
            for one, body in zip(wanted, states.as_list(found), strict=False)
            if body is not None
        ]
        return TaskPage(tuple(entries), str(at + limit) if len(due) > limit else None)

    def _in_streams(self, state: str, priority: str, entry: str, limit: int) -> Op[TaskPage]:
        found: list[Entry] = []
        left = _LOOKED_AT
        # No task in the stream of retries waits for its first delivery.
        streams = PRIORITIES if state == "waiting" else STREAMS
        for tier in streams[streams.index(priority) if priority else 0 :]:
            start = f"({entry}" if entry and tier == priority else "-"
            while start:
                if len(found) >= limit or left <= 0:
                    return TaskPage(tuple(found), f"{tier}:{start[1:]}")
                room = limit - len(found)
                if state == "waiting":
                    ids, start = yield from self._waiting(tier, start, room)
                    runs = [ids]
                else:
                    looked, runs, start = yield from self._pending(
                        tier, start, room, aside=state == "retrying"
                    )
                    left -= looked
                for run in runs:
                    found += yield from self._read(tier, run)
        return TaskPage(tuple(found), None)

    def _waiting(self, tier: str, start: str, room: int) -> Op[tuple[list[str], str]]:
        """Return the ids of undelivered entries, and where to continue ('' at the end)."""
        stream = self._scope.keys.queue(self._queue, tier)
        if start == "-":
            (groups,) = yield Batch([("XINFO", "GROUPS", stream)])
            for flat in states.as_list(groups):
                named = {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}
                if text(named["name"]) == self._group:
                    start = f"({text(named['last-delivered-id'])}"
        page = yield from or_empty(
            one_step(Command("XRANGE", stream, start, "+", "COUNT", room)), []
        )
        ids = [text(one[0]) for one in page]
        return ids, f"({ids[-1]}" if len(ids) == room else ""

    def _pending(
        self, tier: str, start: str, room: int, *, aside: bool
    ) -> Op[tuple[int, list[list[str]], str]]:
        """Return the number of entries read, the ids of those held or aside, and where to continue.

        The ids come in runs, between which no other entry is pending.
        """
        stream = self._scope.keys.queue(self._queue, tier)
        asked = 500
        (reply,) = yield Batch([("XPENDING", stream, self._group, start, "+", asked)])
        page = [(text(one[0]), text(one[1]) == ASIDE) for one in states.as_list(reply)]
        runs: list[list[str]] = []
        last = ""
        for put_aside, run in groupby(page, key=lambda one: one[1]):
            ids = [one for one, _ in run]
            if put_aside is aside:
                taken = ids[: room - sum(map(len, runs))]
                runs.append(taken)
                if len(taken) < len(ids) or sum(map(len, runs)) == room:
                    last = taken[-1]
                    break
        more = bool(last) or len(page) == asked
        return len(page), runs, f"({last or page[-1][0]}" if more else ""

    def _read(self, tier: str, ids: Sequence[str]) -> Op[list[Entry]]:
        """Read entries by runs of ids without other pending entries between them."""
        if not ids:
            return []
        stream = self._scope.keys.queue(self._queue, tier)
        replies = yield Batch([("XRANGE", stream, one, one) for one in ids])
        flat: list[Any] = [reply[0] for reply in replies if isinstance(reply, list) and reply]
        flat.sort(key=lambda one: position(text(one[0])))
        if not flat:
            return []
        return (
            yield from states.entries(
                self._scope, self._queue, self._group, tier, flat, self._letters_of
            )
        )


def _place(state: str, after: str | None) -> tuple[str, str]:
    """Return the stream and the entry, or the number, after which to continue."""
    if state not in STATES:
        raise UsageError(f"{state[:60]!a} is not a state", hint=f"use one of {', '.join(STATES)}")
    if after is None:
        return "", ""
    tier, colon, entry = after.rpartition(":")
    if state in ("delayed", "blocked"):
        sound = not colon and entry.isascii() and entry.isdigit() and len(entry) < 10
    else:
        streams = STREAMS if state != "waiting" else PRIORITIES
        sound = tier in streams and (not entry or ("-" in entry and stream_id(entry) is not None))
    if not sound:
        raise UsageError(
            f"{after[:60]!a} does not continue a list of tasks",
            hint="give what the last call returned as 'after'",
        )
    return tier, entry
