"""Decodes entries of a queue's streams as claimed tasks."""

from __future__ import annotations

from typing import Any

import orjson

from agentbus.core import envelope
from agentbus.queues import retry_stream
from agentbus.queues.claimed import Taken, UndecodedTask
from agentbus.queues.ids import RETRY

# Shared by all tasks without one, and never modified.
_NO_META: dict[str, Any] = {}
# The length of an entry with an envelope: the payload, the rest of the envelope, and the agent.
_ENVELOPED = 6


def decoded(
    entries: list[Any], priority: str, attempt: int, *, claiming: bool, large: bool = False
) -> tuple[list[Taken], bool]:
    """Return entries as tasks, and whether the server must admit one of them; empties `entries`.

    A malformed one carries its error. Unless `claiming`, no task claims a piece of work. `large` payloads
    are decoded when they are needed.
    """
    found: list[Taken] = []
    asks_first, usual = False, claiming and priority != RETRY
    append, agent = found.append, envelope.AGENT
    task_of: Any = UndecodedTask if large else Taken
    # `bytes` returns bytes as they are.
    loads: Any = bytes if large else orjson.loads
    # Each entry is freed when its task is made: the garbage collector then runs less often.
    entries.reverse()
    pop = entries.pop
    while entries:
        entry_id, flat = pop()
        size = len(flat) if flat else 0
        if (size == 2 or (size == 4 and flat[2] == agent)) and flat[0] == b"payload":
            try:
                append(task_of(entry_id, priority, loads(flat[1]), _NO_META, attempt))
            except ValueError as error:
                append(Taken(entry_id, priority, None, {}, attempt, str(error)))
            continue
        try:
            if (
                (size == _ENVELOPED and usual and flat[4] == agent)
                and (flat[0] == b"payload" and flat[2] == b"meta")
                and type(meta := orjson.loads(flat[3])) is dict
            ):
                # As below, for an entry as `publish` writes it.
                task = task_of(entry_id, priority, loads(flat[1]), meta, attempt)
            else:
                decode = retry_stream.decode if priority == RETRY else envelope.decode
                payload, meta = decode(flat or [])
                task = Taken(entry_id, priority, payload, meta, attempt)
        except (ValueError, UnicodeDecodeError) as error:
            append(Taken(entry_id, priority, None, {}, attempt, str(error)))
            continue
        if not claiming:
            meta.pop(envelope.WORK_ITEM, None)
            if envelope.INBOX in meta:
                meta[envelope.ROUTED_INBOX] = meta.pop(envelope.INBOX)
        append(task)
        asks_first = asks_first or task.asked_first
    return found, asks_first
