"""The Prometheus exporter: reads a project's metrics from the server at each scrape.

Needs the extra `prometheus`. Between scrapes it keeps only totals of the metrics stream since its
start: duration histograms, and counts of relays and event consumers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentbus.admin import pause, stats
from agentbus.admin.health import events
from agentbus.admin.prometheus_coordination import Coordination
from agentbus.admin.prometheus_metrics import FAMILIES
from agentbus.admin.scrape import PATH, ScrapeServer
from agentbus.admin.stream_totals import StreamTotals
from agentbus.core.errors import AgentBusError, ConfigError
from agentbus.core.loggers import emit
from agentbus.core.stream import fields, text
from agentbus.core.version import __version__
from agentbus.queues.ids import PRIORITIES
from agentbus.store.steps import Batch, Command
from agentbus.workers import registry
from agentbus.workers.metrics import BOUNDS, Histogram

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.utils import floatToGoString
except ImportError as missing:
    raise ConfigError(
        "the library prometheus-client is not installed",
        hint="pip install 'agentbus-toolkit[prometheus]'",
    ) from missing

if TYPE_CHECKING:
    from agentbus.admin.pause import Order
    from agentbus.admin.stats import QueueStats
    from agentbus.queues.runner import BlockingBus
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.registry import Registered

    Labels = tuple[str, ...]
    Entries = list[tuple[str, Mapping[str, str]]]

# Seconds for which a page is cached, so that simultaneous scrapes cost the server one request.
_FRESH = 1.0
# Maximum number of queues with metrics, the first by name.
_QUEUES = 1000
# Maximum number of entries per scrape, and per page; the next scrape reads the rest.
_ENTRIES, _PAGE = 20_000, 1000
_FAMILY: dict[str, Any] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}
# Counters in milliseconds, with the names of their metrics in seconds.
_TIMES = {"busy_ms": "busy_seconds_total", "waited_ms": "waited_seconds_total"}
_STATES = ("working", "paused", "stopping", "dead")
# Counters that start at 0 before the first event, so that Prometheus counts the first event as an
# increase.
_OF_BOTH = (
    *("received", "processed", "failed", "retried", "reclaimed", "dead", "lost", "stale"),
    *("cancelled", "duplicates", "busy_ms"),
)
_OF_QUEUES = (
    *_OF_BOTH,
    *("published", "scheduled", "dropped", "refused", "replayed", "redelivered", "unanswered"),
)
_OF_GROUPS = (*_OF_BOTH, "released", "waited_ms")


class Collector:
    """A collector for any registry of prometheus-client; thread-safe.

    If the server does not respond within the bus's deadline, it returns `agentbus_up` 0 and nothing else.
    """

    def __init__(
        self, bus: BlockingBus, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        if (sharded := getattr(bus, "_sharded", None)) is not None:
            sharded.whole(bus, "a Prometheus collector")
        self._runner = bus.runner
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._totals = StreamTotals()
        self._coordination = Coordination(monotonic)
        self._last: str | None = None
        # Queues and groups of the scrapes so far.
        self._known: set[tuple[str, ...]] | None = None
        self._at = float("-inf")
        self._answer: list[Any] = []

    def describe(self) -> list[Any]:
        """Return no metrics, so that registration needs no server request."""
        return []

    def collect(self) -> list[Any]:
        """Return the metrics, at most one second old."""
        with self._lock:
            if self._monotonic() - self._at >= _FRESH:
                self._answer = self._ask()
                self._at = self._monotonic()
            return self._answer

    def _ask(self) -> list[Any]:
        began = self._monotonic()
        page = _Page(self._runner.scope.keys.project)
        page.add("agentbus_build_info", 1, __version__)
        try:
            self._runner.run(self._fill(page), verb="metrics")
        except AgentBusError as error:
            emit("warning", {"verb": "metrics", "error": str(error)})
            page.add("agentbus_up", 0)
            return page.metrics()
        page.add("agentbus_up", 1)
        page.add("agentbus_scrape_duration_seconds", self._monotonic() - began)
        return page.metrics()

    def _fill(self, page: _Page) -> Op[None]:
        """Read a project's data in several requests, and add all samples at the end."""
        scope, letters_of = self._runner.scope, self._runner.policies.letters_of
        time, number = yield Batch([("TIME",), ("ZCARD", scope.keys.queues)])
        now = int(time[0]) + int(time[1]) / 1e6
        workers = yield from registry.workers(scope, counted=False)
        figures = yield from stats.stats(
            scope, letters_of=letters_of, most=_QUEUES, speed=False, workers=workers
        )
        orders = yield from pause.orders(scope)
        given_up = yield from events.quarantined(scope)
        if self._last is None:
            # The first scrape counts from a minute ago, and takes the last reported lag of each
            # relay and consumer.
            _, reports = yield from events.reports(scope)
            self._totals.begin(reports)
            self._last = f"{max(0, round(now - 60) * 1000)}-0"
        entries, self._last = yield from _entries(scope, self._last)
        self._totals.take(entries)
        ends = yield from events.ends(scope, self._totals.streams)
        # The registry of queues lacks those that only other programs fill.
        queues = max(number if isinstance(number, int) else 0, len({one.queue for one in figures}))
        page.add("agentbus_queues", queues)
        self._known = _queues(page, figures, orders, self._known)
        _workers(page, workers)
        self._totals.write(page, now, ends)
        for name, value, labels in (yield from self._coordination.read(scope)):
            page.add(f"agentbus_{name}", value, *labels)
        page.add("agentbus_consumers_quarantined", len(given_up))
        for name, record in given_up.items():
            labels = record.get("stream", ""), name, record.get("reason", "")
            page.add("agentbus_consumer_quarantined", 1, *labels)


def _entries(scope: Scope, after: str) -> Op[tuple[Entries, str]]:
    """Return the entries of the metrics stream after an id, and the id to continue from."""
    entries: Entries = []
    while len(entries) < _ENTRIES:
        page = yield Command("XRANGE", scope.keys.metrics, f"({after}", "+", "COUNT", _PAGE)
        for entry in page:
            after = text(entry[0])
            entries.append((after, fields(entry[1] or [])))
        if len(page) < _PAGE:
            break
    return entries, after


class _Page:
    """The metrics of one scrape, each with the project as its first label."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._families = {
            one.name: _FAMILY[one.kind](
                one.name.removesuffix("_total"),
                one.text,
                labels=one.labels,
                unit="seconds" if one.name.endswith("_seconds") else "",
            )
            for one in FAMILIES
        }

    def add(self, name: str, value: float, *labels: str) -> None:
        self._families[name].add_metric((self._project, *labels), value)

    def histogram(self, name: str, counted: Histogram, labels: Labels) -> None:
        """Add a histogram; Prometheus's buckets are cumulative."""
        total, buckets = 0, []
        bounds = (*map(floatToGoString, BOUNDS), "+Inf")
        for bound, number in zip(bounds, counted.buckets, strict=True):
            total += number
            buckets.append((bound, total))
        self._families[name].add_metric((self._project, *labels), buckets, counted.total)

    def metrics(self) -> list[Any]:
        """Return the metrics that have samples."""
        return [family for family in self._families.values() if family.samples]


def _queues(
    page: _Page,
    figures: Sequence[QueueStats],
    orders: Sequence[Order],
    known: set[tuple[str, ...]] | None,
) -> set[tuple[str, ...]]:
    """Add the samples of all queues; return the queues and groups seen so far.

    A queue or group that appears after the first scrape reports its counters as 0 once, so that
    Prometheus sees the next values as an increase.
    """
    halted = any(order.kind == "project" for order in orders)
    page.add("agentbus_halted", int(halted))
    paused = {order.name for order in orders if order.kind == "queue"}
    seen: set[tuple[str, ...]] = set()
    for one in figures:
        of_queue, of_group = (one.queue,), (one.queue, one.group or "")
        if of_queue not in seen:
            seen.add(of_queue)
            page.add("agentbus_queue_paused", int(one.queue in paused), one.queue)
            page.add("agentbus_queue_delayed", one.delayed, one.queue)
            is_new = known is not None and of_queue not in known
            _counters(page, "agentbus_queue_", one.counters, of_queue, _OF_QUEUES, is_new)
        seen.add(of_group)
        _group(page, one)
        if one.group is not None:
            is_new = known is not None and of_group not in known
            _counters(page, "agentbus_group_", one.worked, of_group, _OF_GROUPS, is_new)
    return seen | (known or set())


def _group(page: _Page, one: QueueStats) -> None:
    labels = (one.queue, one.group or "")
    for priority in PRIORITIES:
        page.add("agentbus_queue_waiting", one.by_priority[priority], *labels, priority)
    for name, value in (
        ("pending", one.pending),
        ("retrying", one.retrying),
        ("lag", one.lag),
        ("oldest_waiting_seconds", one.oldest or 0),
        ("oldest_pending_seconds", one.oldest_pending or 0),
        ("consumers", one.consumers),
        ("dead_letters", one.dead),
    ):
        page.add(f"agentbus_queue_{name}", value, *labels)


def _counters(
    page: _Page,
    prefix: str,
    counters: Mapping[str, int],
    labels: Labels,
    events: Sequence[str],
    is_new: bool,
) -> None:
    for event, counted in (dict.fromkeys(events, 0) | dict(counters)).items():
        number = 0 if is_new else counted
        if event not in _TIMES:
            page.add(f"{prefix}tasks_total", number, *labels, event)
        elif prefix == "agentbus_group_" or event == "busy_ms":
            page.add(prefix + _TIMES[event], number / 1000, *labels)


def _workers(page: _Page, workers: Sequence[Registered]) -> None:
    counted: dict[Labels, dict[str, int]] = {}
    running: dict[Labels, int] = {}
    for one in workers:
        labels = (one.queue, one.group)
        states = counted.setdefault(labels, dict.fromkeys(_STATES, 0))
        state = one.state if one.alive and one.state in _STATES else "dead"
        states[state] += 1
        running[labels] = running.get(labels, 0) + (one.running if one.alive else 0)
    for group, states in counted.items():
        for state, number in states.items():
            page.add("agentbus_workers", number, *group, state)
        page.add("agentbus_workers_running", running[group], *group)


class Exporter:
    """An HTTP server in threads that answers scrapes until it is closed."""

    def __init__(self, bus: BlockingBus, port: int, host: str = "127.0.0.1") -> None:
        registry = CollectorRegistry()
        registry.register(Collector(bus))
        try:
            self._server = ScrapeServer(make_wsgi_app(registry), port, host)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen on port {port} of {host!r}: {error}",
                hint="choose another port (0: any free one), or an address of this machine",
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}{PATH}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(bus: BlockingBus, port: int, host: str = "127.0.0.1") -> Exporter:
    """Start an exporter on a port (0: any free one) of an address of this machine.

    Its clients can read the names of queues, groups and consumers and the number of tasks, but no payloads.
    Raises `ConfigError` if it cannot listen there.
    """
    return Exporter(bus, port, host)
