"""One operation that reads all that an exporter needs: queues, workers, orders, metrics entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

# The maximum number of queues, the first by name.
QUEUES = 1000
_PAGE = 1000
# The maximum number of entries per scrape; the rest is left for the next one.
_ENTRIES = 20_000


class Scraped(Record):
    """A project's data for an exporter; not atomic.

    `queues` is the number of queues, `stats` has at most 1,000 of them. `entries` are new entries of the
    metrics stream, `last` is the id to pass next time, `now` the server's time in unix seconds.
    `quarantined` has each quarantined event consumer with its stream and the reason.
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
    """Return a project's data, with the entries of its metrics stream after an id.

    Without an id, the entries are those of the last minute.
    """
    keys = scope.keys
    (time, number) = yield Batch([("TIME",), ("ZCARD", keys.queues)])
    now = int(time[0]) + int(time[1]) / 1e6
    stats = yield from figures.stats(scope, letters_of=letters_of, most=QUEUES, speed=False)
    workers = yield from registry.workers(scope)
    orders = yield from pause.orders(scope)
    given_up = yield Command("HGETALL", keys.quarantined)
    entries, last = yield from _entries(scope, after or f"{max(0, round(now - 60) * 1000)}-0")
    # Queues that only other programs fill are not in the list.
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
    """Return the quarantined consumers by name, with stream and reason (empty if missing)."""
    found = []
    for at in range(0, len(flat), 2):
        consumer = text(flat[at])
        # The field with an empty name is internal.
        if not consumer:
            continue
        named = registry.parsed(flat[at + 1])
        found.append((consumer, named.get("stream", ""), named.get("reason", "")))
    return sorted(found)
