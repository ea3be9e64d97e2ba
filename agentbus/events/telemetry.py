"""Writes the metrics of relays and consumers to the project's metrics stream: counts, durations, lag."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from agentbus.core.errors import AgentBusError
from agentbus.core.loggers import emit
from agentbus.events import status
from agentbus.events.leases import RELAY
from agentbus.events.stream_reader import StreamReader
from agentbus.store.steps import Command
from agentbus.workers.metrics import BOUND, VERSION, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.events.ledger import Ledger
    from agentbus.events.redis import RedisClient

# In seconds: the interval of counts (if there are any) and of the lag, the pause after a failure,
# and the deadline of the last write.
EVERY = 1.0
_LAG_EVERY = 10.0
_REST = 10.0
_PATIENCE = 0.5
# Maximum characters of a reported error.
_ERROR = 300
_NAMES = {"failed": "handler_failed", "unknown": "unknown_event_type"}


def report_gone(server: RedisClient, stream: str, role: str) -> None:
    """Report that a consumer was deleted, so that monitoring no longer expects its reports."""
    words = {"kind": "events", "version": str(VERSION), "role": role, "stream": stream, "gone": "1"}
    words |= {"lag_events_count": "0", "lag_ms": "0"}
    pairs = [word for pair in words.items() for word in pair]
    server.ask(Command("XADD", server.keys.metrics, "MAXLEN", "~", BOUND, "*", *pairs))


class Telemetry:
    """The metrics of one relay or consumer: counts since the last write, handler durations, and the lag.

    A write without a reply is repeated, so that its counts may appear twice. After a failure the
    counts are kept for the next write; a failure never stops the work. `owner` is the process that
    reports, and `failing` returns the error of the event that blocks a consumer, '' if none does.
    """

    def __init__(
        self,
        ledger: Ledger,
        server: RedisClient,
        role: str,
        owner: str = "",
        failing: Callable[[], str] = str,
    ) -> None:
        self._ledger = ledger
        self._server = server
        self._role = role
        self._words = {"kind": "events", "version": str(VERSION), "role": role}
        self._words["agent"] = server.scope.agent
        self.owner = owner
        self._failing = failing
        self._error = ""
        # The handler's thread adds to the histogram while another thread may report it.
        self._lock = threading.Lock()
        self._ran = Histogram()
        self._told: dict[str, Counter[str]] = {}
        self._next = 0.0
        self._next_lag = 0.0

    def ran(self, seconds: float) -> None:
        """Record the duration of a handler's run; any thread may call it."""
        with self._lock:
            self._ran.add(1, seconds)

    def tell(self, counts: dict[str, Counter[str]], *, at_last: bool = False) -> None:
        """Write the counts by stream, if that is due."""
        now = time.monotonic()
        if now < self._next and not at_last:
            return
        with_lag = now >= self._next_lag or self._failing() != self._error
        try:
            for stream, all_of_it in counts.items():
                self._entry(stream, all_of_it, with_lag=with_lag, at_last=at_last)
        except AgentBusError as error:
            emit("warning", {"verb": "metrics", "consumer": self._role, "error": str(error)})
            self._next = now + _REST
            return
        self._next = now + EVERY
        if with_lag and counts:
            self._next_lag = now + _LAG_EVERY

    def _entry(self, stream: str, counts: Counter[str], *, with_lag: bool, at_last: bool) -> None:
        fresh = counts - self._told.get(stream, Counter())
        if not fresh and not with_lag:
            return
        words = {**self._words, "worker": self.owner, "stream": stream}
        words |= {_NAMES.get(name, name): str(number) for name, number in fresh.items()}
        with self._lock:
            ran, self._ran = self._ran, Histogram()
        try:
            self._write(stream, words, ran, with_lag=with_lag, at_last=at_last)
        except BaseException:
            with self._lock:
                ran.merge(self._ran.buckets, self._ran.total)
                self._ran = ran
            raise
        self._told[stream] = Counter(counts)

    def _write(
        self, stream: str, words: dict[str, str], ran: Histogram, *, with_lag: bool, at_last: bool
    ) -> None:
        if any(ran.buckets):
            words["handler_ran"] = f"[{','.join(map(str, ran.trimmed()))}]"
            words["handler_ms"] = f"{ran.total * 1000:.3f}"
        if with_lag:
            consumer = self._role != RELAY
            reader = StreamReader(self._ledger, self._server, stream) if consumer else None
            events, age = status.lag(self._ledger, stream, self._role, reader)
            words |= {"lag_events_count": str(events), "lag_ms": str(age)}
            if consumer:
                self._error = self._failing()
                number, error = status.parked(self._ledger, stream, self._role)
                words["parked_events"] = str(number)
                words |= {"last_error": said[:_ERROR]} if (said := self._error or error) else {}
        pairs = [word for pair in words.items() for word in pair]
        key = self._server.keys.metrics
        self._server.ask(
            Command("XADD", key, "MAXLEN", "~", BOUND, "*", *pairs),
            deadline=_PATIENCE if at_last else None,
        )
