"""The names and kinds of streams, and the gaps in them.

A stream is named by its key without the project: `ch:main`, `q:mail`, `q:mail:high`,
`dlq:mail:default`, `metrics`, `ev:orders`, `inbox:reviewer`, `attempts`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentbus.core.names import unescape
from agentbus.pipeline.rows.schema import (
    ATTEMPT,
    CHANNEL,
    DEAD_LETTER,
    EVENT,
    INBOX,
    METRICS,
    QUEUE,
)
from agentbus.queues.ids import PRIORITIES

_FORMS = {
    CHANNEL: re.compile("ch:main"),
    METRICS: re.compile("metrics"),
    QUEUE: re.compile(rf"q:[^:]+(:({'|'.join(PRIORITIES)}))?"),
    DEAD_LETTER: re.compile("dlq:[^:]+:[^:]+"),
    EVENT: re.compile("ev:[^:]+"),
    INBOX: re.compile("inbox:[^:]+"),
    ATTEMPT: re.compile("attempts"),
}


@dataclass(frozen=True, slots=True)
class StreamGap:
    """Entries of a stream that are gone; `lost` is None if their number is unknown.

    `at` is the highest id that may be among them. They were between `after` and `before`. If a
    server went back in time to `after`, no entries are lost, and `archive_only` is the number of
    entries up to `at` that the server no longer has.
    """

    stream: str
    lost: int | None
    at: str
    after: str
    before: str | None
    archive_only: int | None = None


def kind(name: str) -> str | None:
    """Return the kind of a stream by its name, or None if it is not archived."""
    return next((kind for kind, form in _FORMS.items() if form.fullmatch(name)), None)


def queue(name: str) -> str | None:
    """Return the queue that a stream belongs to, decoded."""
    head, _, rest = name.partition(":")
    return unescape(rest.partition(":")[0]) if head in ("q", "dlq") else None


def topic(name: str) -> str | None:
    """Return the name of an event stream as its producers and consumers use it."""
    head, _, rest = name.partition(":")
    return unescape(rest) if head == "ev" else None


def priority(name: str) -> str:
    """Return the priority of a queue's stream."""
    return name.split(":")[2] if name.count(":") == 2 else "normal"


def heals(name: str) -> bool:
    """Tell whether entries that the server lost are added again with higher ids.

    A relay adds events again, so that readers of such a stream continue from their position.
    """
    return kind(name) == EVENT
