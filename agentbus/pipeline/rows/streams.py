"""The names and kinds of streams, and the gaps in them.

A stream is named by its key without the project: `ch:main`, `q:mail`, `q:mail:high`,
`dlq:mail:default`, `metrics`, `ev:orders`.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentbus.core.names import unescape
from agentbus.pipeline.rows.schema import CHANNEL, DEAD_LETTER, EVENT, METRICS, QUEUE
from agentbus.queues.ids import PRIORITIES


@dataclass(frozen=True, slots=True)
class StreamGap:
    """Entries of a stream that are gone; `lost` is None if their number is unknown.

    `at` is the highest id that may be among them. They lay after `after` and before `before`.
    """

    stream: str
    lost: int | None
    at: str
    after: str
    before: str | None


def kind(name: str) -> str | None:
    """Return the kind of a stream by its name, or None if it is not archived."""
    head, _, rest = name.partition(":")
    parts = rest.split(":") if rest else []
    if name == "ch:main":
        return CHANNEL
    if name == "metrics":
        return METRICS
    if head == "q" and (len(parts) == 1 or (len(parts) == 2 and parts[1] in PRIORITIES)):
        return QUEUE if parts[0] else None
    if head == "dlq" and len(parts) == 2 and all(parts):
        return DEAD_LETTER
    if head == "ev" and len(parts) == 1 and parts[0]:
        return EVENT
    return None


def queue(name: str) -> str | None:
    """Return the queue that a stream belongs to, decoded."""
    head, _, rest = name.partition(":")
    return unescape(rest.partition(":")[0]) if head in ("q", "dlq") else None


def topic(name: str) -> str | None:
    """Return the name of a stream of events as its producers and consumers know it."""
    head, _, rest = name.partition(":")
    return unescape(rest) if head == "ev" else None


def priority(name: str) -> str:
    """Return the priority of a queue's stream."""
    return name.split(":")[2] if name.count(":") == 2 else "normal"


def heals(name: str) -> bool:
    """Tell whether entries that the server lost are added again, under increasing ids.

    A relay does so with events, so that readers of such a stream continue from their position.
    """
    return kind(name) == EVENT
