"""The state of tasks in a group, derived from the server's records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core import envelope
from agentbus.core.stream import id_time, is_number, position, text
from agentbus.queues import attempts, results as stored, retry_stream
from agentbus.queues.attempts import RUNS_KEPT
from agentbus.queues.dead_letters import DeadLetters
from agentbus.queues.ids import ASIDE, BY_HAND, MOVED_FROM, RETRY, split, task_id
from agentbus.store.steps import Batch, Script

if TYPE_CHECKING:
    from agentbus.queues.attempts import StopOrder
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


STATES = ("waiting", "delayed", "blocked", "running", "retrying", "done", "dead", "cancelled")
# In `retries`, scores up to this mark deferred tasks that are due at once.
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """A task of a queue, with its state in a group; times are in seconds.

    `state` is `delayed` (until `due`), `blocked` (waits for others), `waiting` (not delivered), `running`
    (held by `holder`, without a heartbeat for `idle` seconds, or by hand until `due`), `retrying` (until
    `due`), `done`, `dead` or `cancelled`. `deliveries` is the number of deliveries of a running task,
    `attempts` the number of counted runs. `error` is the reason why a malformed entry cannot be decoded.
    `stop_asked` is the cancellation of a running task. `since` is when an agent took it by hand.
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
    due: float | None = None
    stop_asked: StopOrder | None = None
    since: float | None = None


def entries(
    scope: Scope,
    queue: str,
    group: str,
    priority: str,
    stored_entries: Sequence[Any],
    letters_of: str,
) -> Op[list[Entry]]:
    """Return entries of one stream, ids ascending, with their state in the group."""
    keys = scope.keys
    key, ids = keys.queue(queue, priority), [text(entry[0]) for entry in stored_entries]
    decode = retry_stream.decode if priority == RETRY else envelope.decode
    decoded = [_decoded(flat, decode) for _, flat in stored_entries]
    places = [task_id(entry_id, queue, priority) for entry_id in ids]
    names_of = [
        str(meta.get("id") or place) for place, (_, meta, _) in zip(places, decoded, strict=True)
    ]
    kept = yield Script("read_outcomes", [keys.result(name, group) for name in names_of])
    held, counted, due, about, marks, *runs = yield Batch(
        [
            ("XPENDING", key, group, ids[0], ids[-1], len(ids)),
            ("HMGET", keys.attempts(queue, group, priority), *ids),
            ("ZMSCORE", keys.retries(queue, group, priority), *ids),
            ("XINFO", "GROUPS", key),
            ("HMGET", keys.cancelled(queue), *places, *(f"{place}\n{group}" for place in places)),
            *(("HGET", keys.runs(name, group), "outcome") for name in names_of),
        ]
    )
    # If the group does not exist, every entry is waiting.
    pending = {text(row[0]): row for row in as_list(held)}
    delivered = "0-0"
    for flat in as_list(about):
        named = {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}
        if text(named["name"]) == group:
            delivered = text(named["last-delivered-id"])
    number, at = len(ids), range(len(ids))
    counted, due, marks = (as_list(reply) or [None] * 2 * number for reply in (counted, due, marks))
    states = []
    for i in at:
        # A worker that was asked to stop the task may have finished it.
        cancelled = marks[i] is not None and marks[number + i] is None
        if ids[i] in pending:
            state = "retrying" if text(pending[ids[i]][1]) == ASIDE else "running"
        elif position(ids[i]) > position(delivered):
            state = "cancelled" if cancelled else "waiting"
        else:
            state = settled(kept[i], runs[i]) or ("cancelled" if cancelled else "done")
        states.append(state)
    yield from _old_burials(
        scope, DeadLetters(scope, queue, group, letters_of=letters_of), ids, states
    )
    result = []
    for i in at:
        payload, meta, error = decoded[i]
        place, tier, published = places[i], priority, id_time(ids[i])
        if priority == RETRY and MOVED_FROM in meta:
            # A moved task keeps its original id, priority and publication time.
            place = meta.pop(MOVED_FROM)
            entry, _, tier = split(place)
            published = id_time(entry)
        row = pending.get(ids[i], (b"", b"", None, None))
        begun, _, holder = text(counted[i] or b"").partition(" ")
        token = holder.removeprefix(BY_HAND)
        meta.setdefault("correlation_id", str(meta.get("id") or place))
        result.append(
            Entry(
                *(place, queue, group, tier, published, states[i]),
                text(row[1]) if states[i] == "running" else None,
                row[2] / 1000 if states[i] == "running" else None,
                row[3],
                int(begun) if is_number(begun) else None,
                *(payload, meta, error),
                # For a task held by hand, this is the end of its visibility.
                due_at(due[i]) if states[i] in ("retrying", "running") else None,
                attempts.stop_order(text(marks[i] or b"")) if states[i] == "running" else None,
                # A token is the time at which it was given, in ms.
                int(token) / 1000 if token != holder and is_number(token) else None,
            )
        )
    return result


def kept(scope: Scope, queue: str, group: str, most: int) -> Op[list[Entry]]:
    """Return the tasks of a queue that are delayed or wait for others, in order of publication."""
    keys = scope.keys
    delayed, dependent = yield Batch(
        [
            ("ZRANGE", keys.delayed(queue), 0, most - 1, "WITHSCORES"),
            ("ZRANGE", keys.after(queue), 0, most - 1),
        ]
    )
    due = {
        text(delayed[i]): float(delayed[i + 1]) / 1000 for i in range(0, len(as_list(delayed)), 2)
    }
    waiting = [text(name) for name in as_list(dependent)]
    unready_entries = []
    for ids, key in (([*due], keys.bodies(queue)), (waiting, keys.after_bodies(queue))):
        if not ids:
            continue
        (bodies,) = yield Batch([("HMGET", key, *ids)])
        for name, body in zip(ids, as_list(bodies), strict=False):
            if body is not None:
                unready_entries.append(unready(name, queue, group, body, due.get(name)))
    return sorted(unready_entries, key=lambda entry: entry.published)


def unready(name: str, queue: str, group: str, body: bytes, due: float | None) -> Entry:
    """Return the entry of a task that is delayed until `due`, or that waits for others."""
    state, fixed = ("blocked", stored.DEPENDENT) if due is None else ("delayed", stored.DELAYED)
    words = stored.read(body, fixed)
    if due is None and words[2]:
        due = float(words[2]) / 1000
    payload, meta, error = _decoded([word.encode() for word in words[fixed:]], envelope.decode)
    meta.setdefault("correlation_id", name)
    created = meta.get("created_at")
    published = float(created) if isinstance(created, (int, float)) else 0.0
    return Entry(
        *(name, queue, group, words[0], published, state, None, None, None, None),
        *(payload, meta, error, due),
    )


def settled(kept: bytes, run: Any) -> str | None:
    """Return `dead` or `cancelled` for an acknowledged task, by its result or its last run; else None."""
    ended = attempts.burial(kept)
    if ended is not None:
        return "dead" if ended[0] else "cancelled"
    return run.decode() if run in (b"dead", b"cancelled") else None


def _old_burials(
    scope: Scope, letters: DeadLetters, ids: Sequence[str], states: list[str]
) -> Op[None]:
    """Find dead tasks of which only the dead letters are left as a record."""
    horizon = scope.now() - RUNS_KEPT
    old = {
        entry_id: i
        for i, entry_id in enumerate(ids)
        if states[i] == "done" and id_time(entry_id) < horizon
    }
    if not old:
        return
    originals = yield from letters.originals(min(old, key=position))
    for entry_id in originals & old.keys():
        states[old[entry_id]] = "dead"


def _decoded(flat: Any, decode: Callable[[Any], Any]) -> tuple[Any, dict[str, Any], str | None]:
    try:
        payload, meta = decode(flat or [])
    except (ValueError, UnicodeDecodeError) as error:
        return None, {}, str(error)
    return payload, meta, None


def due_at(score: Any) -> float | None:
    """Return when a deferred task is due; None if it is due at once, with a score below any time."""
    return None if score is None or float(score) <= _AT_ONCE else float(score) / 1000


def as_list(reply: Any) -> list[Any]:
    """Return a reply that is a list; [] if the stream or its group is missing."""
    return reply if isinstance(reply, list) else []
