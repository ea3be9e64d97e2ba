"""Totals of the metrics stream for the Prometheus exporter: histograms, counts and lags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from agentbus.admin.health.events import RELAY
from agentbus.admin.metrics_reader import by_bucket, decimal
from agentbus.core.stream import id_time, is_number
from agentbus.workers.metrics import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentbus.admin.health.events import RoleReport

    Labels = tuple[str, ...]

# Maximum number of series per kind: any program may write any name to the stream.
_SERIES = 2000
# Relays and consumers report their lag every 10 seconds. A report without waiting events expires
# after a quarter of an hour, longer than an alert waits; with waiting events, after a day.
_KEPT, _DAY = 900.0, 86_400.0
# After this many seconds without a newer report, the age of its waiting events is added up from
# here.
_LATE = 30.0
_RELAYS = ("published", "lost")
_CONSUMERS = (
    *("handled", "duplicates", "parked", "foreign", "handler_failed", "unknown_event_type"),
)
_QUARANTINES = "agentbus_consumer_quarantines_total"


class Samples(Protocol):
    """The page of a scrape, which collects samples."""

    def add(self, name: str, value: float, *labels: str) -> None: ...

    def histogram(self, name: str, counted: Histogram, labels: Labels) -> None: ...


class _Lag:
    """The last lag that a relay or consumer reported, at the unix time `at`."""

    __slots__ = ("at", "events", "seconds")

    def __init__(self, at: float, events: int, seconds: float) -> None:
        self.at = at
        self.events = events
        self.seconds = seconds

    def expired(self, now: float) -> bool:
        return now - self.at > (_DAY if self.events else _KEPT)

    def age(self, now: float) -> float:
        """Return the age of the oldest event, extrapolated if reports are late."""
        late = self.events and now - self.at > _LATE
        return self.seconds + (now - self.at if late else 0.0)


class StreamTotals:
    """Totals of the metrics stream since the exporter started."""

    def __init__(self) -> None:
        self._histograms: dict[tuple[str, Labels], Histogram] = {}
        self._counts: dict[tuple[str, Labels], int] = {}
        # Counts and histograms that are new since the last scrape; a first value of 0 precedes
        # them.
        self._new: set[tuple[str, Labels]] = set()
        self._begun = False
        self._lags: dict[tuple[str, str], _Lag] = {}

    @property
    def streams(self) -> list[str]:
        """The streams of events that have reports, sorted."""
        return sorted({stream for stream, _ in self._lags})

    def begin(self, reports: Iterable[RoleReport]) -> None:
        """Start with the last reports of relays and consumers."""
        for one in reports:
            if one.lag_events is not None and len(self._lags) < _SERIES:
                lag = _Lag(one.at, one.lag_events, (one.lag_ms or 0) / 1000)
                self._lags[one.stream, one.role] = lag
                self._known(one.stream, one.role)

    def take(self, entries: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        """Add new entries; malformed fields are ignored."""
        for entry_id, entry in entries:
            kind = entry.get("kind", "work")
            if kind == "quarantine":
                # The relay and the jobs of a supervisor do not have a stream.
                if entry.get("role"):
                    self._count(_QUARANTINES, (entry.get("stream", ""), entry["role"]), 1)
            elif kind == "events":
                if entry.get("stream") and entry.get("role"):
                    self._events(entry_id, entry)
            elif entry.get("queue") and entry.get("group"):
                labels = (entry["queue"], entry["group"])
                self._add("agentbus_handler_duration_seconds", labels, entry, "ran", "busy_ms")
                self._add("agentbus_task_wait_seconds", labels, entry, "waited", "waited_ms")
        if not self._begun:
            # Events before the first scrape do not count as an increase.
            self._new.clear()
            self._begun = True

    def _events(self, entry_id: str, entry: Mapping[str, str]) -> None:
        stream, role = entry["stream"], entry["role"]
        self._known(stream, role)
        name, labels, events = _counters(stream, role)
        for event in events:
            if is_number(entry.get(event, "")):
                self._count(name, (*labels, event), int(entry[event]))
        if role != RELAY:
            self._add(
                "agentbus_consumer_handler_duration_seconds",
                *(labels, entry, "handler_ran", "handler_ms"),
            )
        known = (stream, role) in self._lags or len(self._lags) < _SERIES
        if entry.get("gone"):
            self._lags.pop((stream, role), None)
        elif known and is_number(entry.get("lag_events_count", "")):
            events_left = int(entry["lag_events_count"])
            seconds = decimal(entry.get("lag_ms")) / 1000
            self._lags[stream, role] = _Lag(id_time(entry_id), events_left, seconds)

    def _known(self, stream: str, role: str) -> None:
        """Create the counters of a relay or consumer with the value 0."""
        name, labels, events = _counters(stream, role)
        for event in events:
            self._count(name, (*labels, event), 0)
        if role != RELAY:
            self._count(_QUARANTINES, labels, 0)

    def _count(self, name: str, labels: Labels, number: int) -> None:
        key = (name, labels)
        if key not in self._counts:
            if len(self._counts) >= _SERIES:
                return
            self._new.add(key)
        self._counts[key] = self._counts.get(key, 0) + number

    def _add(
        self, name: str, labels: Labels, entry: Mapping[str, str], counts: str, spent: str
    ) -> None:
        buckets = by_bucket(entry.get(counts))
        key = (name, labels)
        if buckets and (key in self._histograms or len(self._histograms) < _SERIES):
            total = decimal(entry.get(spent)) / 1000
            if key not in self._histograms:
                self._histograms[key] = Histogram()
                self._new.add(key)
            self._histograms[key].merge(buckets, total)

    def write(self, page: Samples, now: float, ends: Mapping[str, float]) -> None:
        """Add the samples to a page, and drop expired lags; `ends` holds each last event's time."""
        for key, histogram in self._histograms.items():
            page.histogram(key[0], Histogram() if key in self._new else histogram, key[1])
        for key, number in self._counts.items():
            page.add(key[0], 0 if key in self._new else number, *key[1])
        self._new.clear()
        self._lags = {key: lag for key, lag in self._lags.items() if not lag.expired(now)}
        for (stream, role), lag in self._lags.items():
            relay = role == RELAY
            prefix = "agentbus_outbox" if relay else "agentbus_consumer"
            labels = (stream,) if relay else (stream, role)
            waits = lag.events or (not relay and ends.get(stream, 0.0) > lag.at)
            page.add(f"{prefix}_{'waiting' if relay else 'lag'}_events", lag.events, *labels)
            page.add(f"{prefix}_lag_seconds", lag.age(now), *labels)
            page.add(f"{prefix}_silent_seconds", max(0.0, now - lag.at) if waits else 0.0, *labels)


def _counters(stream: str, role: str) -> tuple[str, Labels, tuple[str, ...]]:
    """Return a role's counter: its name, its labels except the event, and the events."""
    if role == RELAY:
        return "agentbus_outbox_events_total", (stream,), _RELAYS
    return "agentbus_consumer_events_total", (stream, role), _CONSUMERS
