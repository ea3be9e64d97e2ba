"""Reads the messages and tasks that a program under test has published, without taking them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import envelope
from agentbus.core.stream import position, text
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.ids import MOVED_FROM, STREAMS
from agentbus.queues.state import due_at
from agentbus.store.steps import Batch, ServerReply
from agentbus.testing.memory import blocking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.client.bus import Verbs
    from agentbus.coordination.message import Message
    from agentbus.store.steps import Op


@dataclass(frozen=True, slots=True)
class Published:
    """A task that waits in a queue.

    `due` is the unix time before which it is not delivered, None if it is due; `envelope` has the published
    fields other than the payload (`key`, `correlation_id`, `headers`, …).
    """

    id: str
    payload: Any
    priority: str
    due: float | None
    envelope: Mapping[str, Any]


def published(bus: Verbs, queue: str, *, group: str = "default") -> list[Published]:
    """Return the tasks that wait for a group: in the order of delivery, then by their due time.

    Includes delayed tasks, dependent tasks and retries, but not tasks that are done, dead or
    pending.
    """
    with blocking(bus) as opened:
        found = opened._run("published", _published(QueueConsumer(opened.scope, queue, group, "-")))
    return sorted(found, key=lambda task: (task.due is not None, task.due or 0.0))


def spoken(bus: Verbs, topic: str | None = None) -> list[Message]:
    """Return the messages of all agents on the channel, oldest first, without the bus's own notices."""
    with blocking(bus) as opened:
        heard = list(opened.overhear(topic, since="0-0", limit=None, peek=True))
    return [message for message in heard if message.event is None]


def _published(look: QueueConsumer) -> Op[list[Published]]:
    found: list[Published] = []
    for priority in STREAMS:
        found += yield from _in_stream(look, priority)
    keys = look.scope.keys
    due, bodies, dependent = yield Batch(
        [
            ("ZRANGE", keys.delayed(look.queue), 0, -1, "WITHSCORES"),
            ("HGETALL", keys.bodies(look.queue)),
            ("HGETALL", keys.after_bodies(look.queue)),
        ]
    )
    kept = dict(zip(bodies[::2], bodies[1::2], strict=True))
    for task_id, score in zip(due[::2], due[1::2], strict=True):
        priority, _, *flat = orjson.loads(kept[task_id])
        payload, meta = envelope.decode([word.encode() for word in flat])
        found.append(Published(text(task_id), payload, priority, float(score) / 1000, meta))
    for task_id, body in zip(dependent[::2], dependent[1::2], strict=True):
        if task_id.endswith(b"\n"):
            # This field lists the tasks that the dependent task waits for.
            continue
        priority, _, at, _, _, *flat = orjson.loads(body)
        payload, meta = envelope.decode([word.encode() for word in flat])
        due_at = float(at) / 1000 if at else None
        found.append(Published(text(task_id), payload, priority, due_at, meta))
    return found


def _in_stream(look: QueueConsumer, priority: str) -> Op[list[Published]]:
    stream = look.streams[priority]
    entries, groups, aside = yield Batch(
        [
            ("XRANGE", stream, "-", "+"),
            ("XINFO", "GROUPS", stream),
            ("ZRANGE", look.retries(priority), 0, -1, "WITHSCORES"),
        ]
    )
    taken = (0, 0)
    # XINFO fails if the stream does not exist.
    for group in [] if isinstance(groups, ServerReply) else groups:
        named = dict(zip(group[::2], group[1::2], strict=True))
        if text(named[b"name"]) == look.group:
            taken = position(text(named[b"last-delivered-id"]))
    due = dict(zip(aside[::2], aside[1::2], strict=True))
    waiting = [entry for entry in entries if entry[0] in due or position(text(entry[0])) > taken]
    return [
        Published(
            look.id_of(task),
            task.payload if task.error is None else {"malformed": task.error},
            task.tier,
            due_at(due.get(task.entry_id)),
            {name: value for name, value in task.meta.items() if name not in ("id", MOVED_FROM)},
        )
        for task in look.decoded(waiting, priority)
    ]
