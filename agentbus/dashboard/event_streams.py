"""The streams of events: last reports of relays and consumers, readers, and the quarantine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.admin.health import events
from agentbus.core.names import unescape
from agentbus.core.stream import fields, id_time, text
from agentbus.dashboard.event_list import report_of
from agentbus.store.scan import key_bytes, scan
from agentbus.store.steps import Batch

if TYPE_CHECKING:
    from agentbus.dashboard.figures import EventReport
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Maximum number of streams in the list.
_MOST = 500


@dataclass(frozen=True, slots=True)
class EventStream:
    """A stream of events: the number of `events` kept, and the unix time of the `last` one.

    `relay` is the last report of its relay, whose lag is that of the outbox; `consumers` are those
    of its consumers. `readers` are the ids up to which consumers and archives have read, by name. A
    relay or consumer without a report within a day is missing.
    """

    stream: str
    events: int
    last: float | None
    relay: EventReport | None
    consumers: tuple[EventReport, ...]
    readers: dict[str, str]


@dataclass(frozen=True, slots=True)
class QuarantinedConsumer:
    """A quarantined consumer: since when (RFC 3339), the reason, the last error; '' if unknown."""

    consumer: str
    stream: str
    since: str
    reason: str
    error: str


@dataclass(frozen=True, slots=True)
class EventOverview:
    """The streams of events by name, and the consumers in quarantine."""

    streams: tuple[EventStream, ...]
    quarantined: tuple[QuarantinedConsumer, ...]


def overview(scope: Scope) -> Op[EventOverview]:
    """Return at most 500 streams of events, and the quarantine, without reading the ledgers."""
    keys = scope.keys
    now, reported = yield from events.reports(scope)
    reports: dict[str, list[EventReport]] = {}
    for one in reported:
        reports.setdefault(one.stream, []).append(report_of(one, now))
    prefix = len(keys.events(""))
    stored = yield from scan(scope, "ev", of="stream")
    known = {unescape(text(key_bytes(key))[prefix:]) for key in stored}
    chosen = sorted({*known, *reports})[:_MOST]
    asked: list[tuple[str, ...]] = []
    for name in chosen:
        asked.append(("XINFO", "STREAM", keys.events(name)))
        asked.append(("HGETALL", keys.event_readers(name)))
    replies = (yield Batch(asked)) if asked else []
    found = []
    for name, about, readers in zip(chosen, replies[::2], replies[1::2], strict=True):
        parts = dict(zip(about[::2], about[1::2], strict=True)) if isinstance(about, list) else {}
        last = text(parts[b"last-generated-id"]) if parts else "0-0"
        mine = reports.get(name, [])
        found.append(
            EventStream(
                name,
                int(parts.get(b"length", 0)),
                id_time(last) or None,
                next((one for one in mine if one.role == events.RELAY), None),
                tuple(one for one in mine if one.role != events.RELAY),
                fields(readers) if isinstance(readers, list) else {},
            )
        )
    held = yield from events.quarantined(scope)
    quarantined = tuple(
        QuarantinedConsumer(
            name,
            *(one.get(part, "") for part in ("stream", "quarantined_at", "reason", "last_error")),
        )
        for name, one in held.items()
    )
    return EventOverview(tuple(found), quarantined)
