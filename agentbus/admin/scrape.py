"""What a monitoring system asks for, in one operation: figures of queues, workers, and what was counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentbus.admin import pause, stats as figures
from agentbus.core.record import Record
from agentbus.core.stream import fields, text
from agentbus.store.steps import Batch, Command
from agentbus.workers import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentbus.admin.pause import Order
    from agentbus.admin.stats import QueueStats
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.registry import Registered

# So many queues are looked at, the first by name.
QUEUES = 1000
_PAGE = 1000
# So many entries of the metrics stream are read at once; more are left for the next time.
_ENTRIES = 20_000


class Scraped(Record):
    """A project's figures: each part is of its own moment.

    `queues` tells how many there are, `stats` has the figures of at most 1,000. `entries` are those of the
    metrics stream that came after the id that was given, `last` is the id to give next time, and `now`
    the server's clock in unix seconds. `quarantined` has the consumers of events that were given up.
    """

    now: float
    queues: int
    stats: Sequence[QueueStats]
    workers: Sequence[Registered]
    orders: Sequence[Order]
    quarantined: Sequence[tuple[str, str, str]]
    entries: Sequence[tuple[str, Mapping[str, str]]]
    last: str


def scrape(scope: Scope, after: str | None, letters_of: Callable[[str], str] = str) -> Op[Scraped]:
    """Return a project's figures, and the entries of its metrics stream after an id.

    Without an id they are those of the last minute.
    """
    keys = scope.keys
    (time, number) = yield Batch([("TIME",), ("ZCARD", keys.queues)])
    now = int(time[0]) + int(time[1]) / 1e6
    stats = yield from figures.stats(scope, letters_of=letters_of, most=QUEUES, speed=False)
    workers = yield from registry.workers(scope)
    orders = yield from pause.orders(scope)
    given_up = yield Command("HGETALL", keys.quarantined)
    entries, last = yield from _entries(scope, after or f"{max(0, round(now - 60) * 1000)}-0")
    # A queue that only other programs fill is in no list, and was found all the same.
    queues = max(number if isinstance(number, int) else 0, len({one.queue for one in stats}))
    return Scraped(now, queues, stats, workers, orders, _quarantined(given_up), entries, last)


def _entries(scope: Scope, after: str) -> Op[tuple[list[tuple[str, Mapping[str, str]]], str]]:
    found: list[tuple[str, Mapping[str, str]]] = []
    while len(found) < _ENTRIES:
        page = yield Command("XRANGE", scope.keys.metrics, f"({after}", "+", "COUNT", _PAGE)
        for entry in page:
            after = text(entry[0])
            found.append((after, fields(entry[1] or [])))
        if len(page) < _PAGE:
            break
    return found, after


def _quarantined(flat: Any) -> list[tuple[str, str, str]]:
    """Return the consumers in quarantine by name, with their stream and the reason, as far as told."""
    found = []
    for at in range(0, len(flat), 2):
        consumer = text(flat[at])
        # The field without a name is the hash's own.
        if not consumer:
            continue
        try:
            told = orjson.loads(flat[at + 1])
        except ValueError:
            told = None
        parts = told if isinstance(told, dict) else {}
        stream, reason = parts.get("stream"), parts.get("reason")
        found.append(
            (
                consumer,
                stream if isinstance(stream, str) else "",
                reason if isinstance(reason, str) else "",
            )
        )
    return sorted(found)
