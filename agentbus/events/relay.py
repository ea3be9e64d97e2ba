"""The relay: publishes committed events by stream, each cause before its effect."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING

from agentbus.core import greenlets
from agentbus.core.errors import BackendUnavailable, ConfigError, OutcomeUnknown, StaleLease
from agentbus.core.loggers import emit
from agentbus.core.signals import StopEvent, stops_at_signals
from agentbus.events import databases, kill_points, leases, outbox
from agentbus.events.cleanup import KEEP_PROCESSED, Cleaner, Cleanup
from agentbus.events.leases import LEASE_SECONDS, RENEW_SECONDS
from agentbus.events.notify import OutboxNotifications
from agentbus.events.redis import RedisClient
from agentbus.events.relay_stream import RelayStream
from agentbus.events.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.events.ledger import Ledger
    from agentbus.queues.runner import BlockingBus

BOUND = 100_000
_LEAST_BOUND = 2
POLL = 1.0
_BATCHES_A_TURN = 20
_LONGEST_PAUSE = 5.0
# Maximum seconds between two heartbeats.
_LONGEST_WAIT = 1.0


class Relay:
    """Publishes a ledger's events on a bus; only one of several relays serves a stream at a time.

    A stream holds at most `bound` events that not all consumers have passed; the rest wait in the outbox.
    The rows that identify duplicates are kept for at least `keep_processed` seconds, or as `cleanup` says.
    Leases are renewed every `renew` seconds (10, or a third of `lease`); every `poll` seconds streams are
    compared with the server. `at` is called at each kill point, for tests; `beat` by `run`, at least once a
    second unless a server is unavailable.
    """

    def __init__(
        self,
        ledger: Ledger,
        bus: BlockingBus,
        *,
        bound: int = BOUND,
        lease: float = LEASE_SECONDS,
        renew: float | None = None,
        poll: float = POLL,
        keep_processed: float = KEEP_PROCESSED,
        cleanup: Cleanup | None = None,
        at: Callable[[str], None] | None = None,
        beat: Callable[[], None] | None = None,
    ) -> None:
        if bound < _LEAST_BOUND:
            raise ConfigError(
                f"the bound of a stream is {bound}",
                hint=f"give at least {_LEAST_BOUND}: the last event that all have passed stays there",
            )
        self.ledger = ledger
        self.owner = bus.runner.scope.token()
        self._bound = bound
        self._lease = lease
        self._renew = renew or min(RENEW_SECONDS, lease / 3)
        self._poll = poll
        self._cleaner = Cleaner(ledger, cleanup or Cleanup(keep_processed, 0.0))
        self._beat = beat or (lambda: None)
        self._at = at or kill_points.hook()
        self._server = RedisClient(bus.runner)
        self._streams: dict[str, RelayStream] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._telemetry = Telemetry(ledger, self._server, leases.RELAY, self.owner)
        self._renewed = 0.0
        self._stopped = StopEvent()

    def run_once(self) -> int:
        """Check the server's state, and publish the waiting events; returns their number.

        Streams of other relays are skipped. Raises `BackendUnavailable`, `ConfigError`.
        """
        return self._turn(reconcile=True)

    @stops_at_signals
    def run(self, on_round: Callable[[int], None] | None = None) -> None:
        """Publish until `stop` is called, waiting for unavailable servers.

        In the main thread, SIGTERM and SIGINT stop it, unless the program handles them.

        `on_round` is called after each round that published events, with their number.
        """
        greenlets.check("a relay")
        notifications = OutboxNotifications(self.ledger, self._stopped)
        pause, due = 0.1, 0.0
        try:
            while not self._stopped.is_set():
                self._beat()
                now = time.monotonic()
                try:
                    done = self._turn(reconcile=now >= due)
                    self._tell()
                except (BackendUnavailable, OutcomeUnknown) as error:
                    emit("warning", {"verb": "relay", "error": str(error)})
                    self._wait(pause)
                    # Keep the leases: otherwise we would have to wait until they expire. Each
                    # stream checks the server again before it adds entries.
                    pause, due = min(pause * 2, _LONGEST_PAUSE), 0.0
                    continue
                pause = 0.1
                if now >= due:
                    due = now + self._poll
                if done and on_round is not None:
                    on_round(done)
                if not done:
                    notifications.wait(min(_LONGEST_WAIT, max(0.0, due - time.monotonic())))
        finally:
            notifications.close()
            self.close()

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._stopped.wait(
            min(left, _LONGEST_WAIT)
        ):
            self._beat()

    @property
    def stopping(self) -> bool:
        """Tell whether `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Make `run` return after the current round; idempotent, and safe in a signal handler."""
        self._stopped.set()

    def close(self) -> None:
        """Release the leases, and close the connection to the server."""
        self._tell(at_last=True)
        # If the database is down, the leases expire.
        with (
            contextlib.suppress(BackendUnavailable),
            self.ledger.committing("leases were released") as connection,
        ):
            for stream in self._streams.values():
                leases.release(connection, self.ledger.tables, stream.held)
        self._streams.clear()
        self._server.close()

    def _tell(self, *, at_last: bool = False) -> None:
        held = {name: self._counts.get(name, Counter()) for name in self._streams}
        self._telemetry.owner = self.owner
        self._telemetry.tell(held, at_last=at_last)

    def _turn(self, *, reconcile: bool) -> int:
        total = 0
        with databases.translated(self.ledger.engine, "events were published"):
            for stream in self._hold():
                try:
                    total += self._serve(stream, reconcile=reconcile)
                except StaleLease as error:
                    emit("warning", {"verb": "relay", "error": str(error)})
                    self._streams.pop(stream.held.stream, None)
        return total

    def _serve(self, stream: RelayStream, *, reconcile: bool) -> int:
        name = stream.held.stream
        counts = self._counts.setdefault(name, Counter())
        if reconcile:
            lost = stream.reconcile()
            counts["lost"] += lost
            if lost:
                emit("warning", {"verb": "relay", "stream": name, "lost": lost})
            stream.tidy(self._cleaner)
        total = 0
        for _ in range(_BATCHES_A_TURN):
            added = stream.publish()
            counts["published"] += added
            total += added
            if not added:
                break
        return total

    def _hold(self) -> list[RelayStream]:
        """Renew due leases, acquire free ones, and return our streams."""
        tables = self.ledger.tables
        if time.monotonic() - self._renewed >= self._renew:
            for name, stream in list(self._streams.items()):
                try:
                    with self.ledger.transaction() as connection:
                        leases.renew(connection, tables, stream.held, self._lease)
                except StaleLease:
                    del self._streams[name]
            self._renewed = time.monotonic()
        with self.ledger.engine.connect() as connection:
            wanted = set(outbox.streams(connection, tables)) - set(self._streams)
        for name in sorted(wanted):
            with self.ledger.transaction() as connection:
                held = leases.acquire(
                    connection, tables, name, leases.RELAY, self.owner, self._lease
                )
            if held is not None:
                self._at("relay.leased")
                self._streams[name] = RelayStream(
                    *(self.ledger, self._server, held, self.owner, self._lease, self._bound),
                    self._at,
                )
        return [self._streams[name] for name in sorted(self._streams)]
