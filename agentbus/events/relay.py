"""The relay: publishes what is committed, stream by stream, and no effect before its cause."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from agentbus.core.errors import BackendUnavailable, OutcomeUnknown, StaleLease
from agentbus.core.loggers import emit
from agentbus.events import databases, kill_points, leases, outbox
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
KEEP_PROCESSED = 7 * 86_400.0
_POLL = 1.0
_BATCHES_A_TURN = 20
_LONGEST_PAUSE = 5.0


class Relay:
    """Publishes the events of a ledger on a bus; several share the streams, each having one at a time.

    At most `bound` events that not all consumers have passed lie in a stream; what is more waits in the
    outbox. Rows by which duplicates are known are kept for `keep_processed` seconds, or longer. `at` is
    called at each named step, for tests.
    """

    def __init__(
        self,
        ledger: Ledger,
        bus: BlockingBus,
        *,
        bound: int = BOUND,
        lease: float = LEASE_SECONDS,
        keep_processed: float = KEEP_PROCESSED,
        at: Callable[[str], None] | None = None,
    ) -> None:
        self.ledger = ledger
        self.owner = bus.runner.scope.token()
        self._bound = bound
        self._lease = lease
        self._renew = min(RENEW_SECONDS, lease / 3)
        self._keep = keep_processed
        self._at = at or kill_points.hook()
        self._server = RedisClient(bus.runner)
        self._lanes: dict[str, RelayStream] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._telemetry = Telemetry(ledger, self._server, leases.RELAY, self.owner)
        self._renewed = 0.0
        self._stopped = threading.Event()

    def run_once(self) -> int:
        """Publish what waits now, after a look at what the server has; returns how many events.

        Streams that another relay has are left to it. Raises `BackendUnavailable`, `ConfigError`.
        """
        return self._turn(reconcile=True)

    def run(self, on_round: Callable[[int], None] | None = None) -> None:
        """Publish until `stop` is called; trouble that may pass is waited out.

        `on_round` is called with how many events a round published, where it published any.
        """
        hints = OutboxNotifications(self.ledger, self._stopped)
        pause, due = 0.1, 0.0
        try:
            while not self._stopped.is_set():
                now = time.monotonic()
                try:
                    done = self._turn(reconcile=now >= due)
                    self._tell()
                except (BackendUnavailable, OutcomeUnknown) as error:
                    emit("warning", {"verb": "relay", "error": str(error)})
                    self._stopped.wait(pause)
                    # What is held stays held: forgotten, its leases would keep us out as well until they
                    # run out. Each lane looks anew at what the server has before it adds anything.
                    pause, due = min(pause * 2, _LONGEST_PAUSE), 0.0
                    continue
                pause = 0.1
                if now >= due:
                    due = now + _POLL
                if done and on_round is not None:
                    on_round(done)
                if not done:
                    hints.wait(max(0.0, due - time.monotonic()))
        finally:
            hints.close()
            self.close()

    @property
    def stopping(self) -> bool:
        """Tell whether `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Have `run` return when its turn is over; to be called as often as one likes."""
        self._stopped.set()

    def close(self) -> None:
        """Give the leases back, and close the connection to the server."""
        self._tell(at_last=True)
        try:
            with (
                databases.told(self.ledger.engine, "leases were given back"),
                self.ledger.transaction() as connection,
            ):
                for lane in self._lanes.values():
                    leases.release(connection, self.ledger.tables, lane.held)
        except BackendUnavailable:
            # They run out by themselves.
            pass
        self._lanes.clear()
        self._server.close()

    def _tell(self, *, at_last: bool = False) -> None:
        held = {name: self._counts.get(name, Counter()) for name in self._lanes}
        self._telemetry.tell(held, at_last=at_last)

    def _turn(self, *, reconcile: bool) -> int:
        total = 0
        with databases.told(self.ledger.engine, "events were published"):
            for lane in self._held(look=reconcile):
                try:
                    total += self._serve(lane, reconcile=reconcile)
                except StaleLease as error:
                    emit("warning", {"verb": "relay", "error": str(error)})
                    self._lanes.pop(lane.held.stream, None)
        return total

    def _serve(self, lane: RelayStream, *, reconcile: bool) -> int:
        counts = self._counts.setdefault(lane.held.stream, Counter())
        if reconcile:
            lost = lane.reconcile()
            counts["lost"] += lost
            if lost:
                emit("warning", {"verb": "relay", "stream": lane.held.stream, "lost": lost})
            lane.tidy(self._keep)
        total = 0
        for _ in range(_BATCHES_A_TURN):
            added = lane.publish()
            counts["published"] += added
            total += added
            if not added:
                break
        return total

    def _held(self, *, look: bool) -> list[RelayStream]:
        """Renew what is held, take what is free, and return the lanes that are ours."""
        made = self.ledger.tables
        if time.monotonic() - self._renewed >= self._renew:
            for stream, lane in list(self._lanes.items()):
                try:
                    with self.ledger.transaction() as connection:
                        leases.renew(connection, made, lane.held, self._lease)
                except StaleLease:
                    del self._lanes[stream]
            self._renewed = time.monotonic()
        with self.ledger.engine.connect() as connection:
            wanted = set(outbox.streams(connection, made)) - set(self._lanes)
        for stream in sorted(wanted):
            with self.ledger.transaction() as connection:
                held = leases.acquire(
                    connection, made, stream, leases.RELAY, self.owner, self._lease
                )
            if held is not None:
                self._at("relay.leased")
                self._lanes[stream] = RelayStream(
                    self.ledger, self._server, held, self._bound, self._at
                )
        return [self._lanes[stream] for stream in sorted(self._lanes)]
