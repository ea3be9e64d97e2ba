"""The consumer: reads a stream past its checkpoint, and acts on each event as it was promised."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import exc

from agentbus.core.errors import AgentBusError, BackendUnavailable, OutcomeUnknown, StaleLease
from agentbus.core.loggers import emit
from agentbus.core.stream import position
from agentbus.events import databases, kill_points, leases, parked_events
from agentbus.events.declare import PARK
from agentbus.events.event import StreamEvent, decode
from agentbus.events.guarantee import Guarantee
from agentbus.events.lease_renewer import LeaseRenewer
from agentbus.events.leases import LEASE_SECONDS, RENEW_SECONDS
from agentbus.events.redis import RedisClient
from agentbus.events.schemas import REGISTERED
from agentbus.events.stream_reader import StreamReader
from agentbus.events.telemetry import Telemetry
from agentbus.events.transaction import EventTransactions, HandlerError, told
from agentbus.events.validate import EventValidator
from agentbus.queues.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.events.declare import Declaration
    from agentbus.events.leases import HeldLease
    from agentbus.events.ledger import Ledger
    from agentbus.events.schemas import EventSchemas
    from agentbus.queues.runner import BlockingBus

READ_AT_ONCE = 100
_WAIT = 1.0
_LONGEST_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class Failure:
    """The event that a consumer is stopped by, what its handler raised, and how often it was tried."""

    event: StreamEvent
    error: BaseException
    attempts: int


class Consumer:
    """Acts on the events of a stream by a registered handler; of several, one does, and the others wait.

    `failure` is what it is stopped by at present, `counts` how many events it `handled`, knew as
    `duplicates`, `parked`, and how often it `failed` or met an `unknown` type. `at_once` is how many events
    it reads, and with a batch handler gives it, at once. `at` is called at each named step, for tests,
    and `beat` by the loop of `run` at least once a second, unless an event is in hand or a server is away.
    """

    def __init__(
        self,
        registration: Declaration,
        ledger: Ledger,
        bus: BlockingBus,
        *,
        schemas: EventSchemas = REGISTERED,
        lease: float = LEASE_SECONDS,
        backoff: Backoff | None = None,
        at_once: int = READ_AT_ONCE,
        at: Callable[[str], None] | None = None,
        beat: Callable[[], None] | None = None,
    ) -> None:
        self.registration = registration
        self.ledger = ledger
        self.owner = bus.runner.scope.token()
        self.counts: Counter[str] = Counter()
        self.failure: Failure | None = None
        self.checkpoint = (0, 0)
        self._fitness = EventValidator(registration, ledger, schemas)
        self._lease = lease
        self._renew = min(RENEW_SECONDS, lease / 3)
        self._backoff = backoff or Backoff()
        self._at_once = at_once
        self._at = at or kill_points.hook()
        self._beat = beat or (lambda: None)
        self._server = RedisClient(bus.runner)
        self._entries = StreamReader(ledger, self._server, registration.stream)
        self._telemetry = Telemetry(ledger, self._server, registration.name, self.owner)
        self._held: HeldLease | None = None
        self._applying: EventTransactions | None = None
        self._renewing: LeaseRenewer | None = None
        # The event whose attempt was counted and had no outcome yet: what comes between is no attempt.
        self._cut_off: str | None = None
        self._renewed = 0.0
        self._stopped = threading.Event()
        self._glanced = -math.inf

    @property
    def holds(self) -> bool:
        """Tell whether this consumer has the lease, as far as it knows."""
        return self._held is not None

    def run_once(self) -> int:
        """Act on all events that are there, up to one that fails; returns how many it passed.

        A failing event is tried once, and told by `failure`. Returns 0 while another holds the lease.
        Raises `BackendUnavailable`, `EventsLost`, `ConfigError`.
        """
        total = 0
        while True:
            passed = self._turn()
            total += passed
            if not passed or self.failure is not None or self._stopped.is_set():
                return total

    def run(self, on_round: Callable[[int], None] | None = None) -> None:
        """Act on events until `stop` is called; waits out trouble that may pass, and failing handlers.

        `on_round` is called with how many events a round passed, where it passed any.
        Raises `EventsLost`, `ConfigError`.
        """
        pause = 0.1
        try:
            while not self._stopped.is_set():
                self._beat()
                try:
                    passed = self._turn()
                    self._tell()
                    if passed and on_round is not None:
                        on_round(passed)
                    if self.failure is not None:
                        self._wait_to_retry(self.failure)
                    elif not passed and self.holds:
                        self._entries.wait(self.checkpoint, _WAIT)
                    elif not passed:
                        self._stopped.wait(_WAIT)
                    pause = 0.1
                except (BackendUnavailable, OutcomeUnknown) as error:
                    self._warn(error)
                    self._rest(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            self.close()

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._stopped.wait(min(left, _WAIT)):
            self._beat()

    def stop(self) -> None:
        """Have `run` return after the event in hand; to be called as often as one likes."""
        self._stopped.set()

    def close(self) -> None:
        """Give the lease back, and close the connection to the server."""
        self._tell(at_last=True)
        held = self._held
        self._drop()
        if held is not None:
            try:
                with (
                    databases.told(self.ledger.engine, "a lease was given back"),
                    self.ledger.transaction() as connection,
                ):
                    leases.release(connection, self.ledger.tables, held)
            except BackendUnavailable:
                # It runs out by itself.
                pass
        self._server.close()

    def _tell(self, *, at_last: bool = False) -> None:
        if self.holds:
            self._telemetry.tell({self.registration.stream: self.counts}, at_last=at_last)

    # -- one turn --

    def _turn(self) -> int:
        """Act on what one read finds; returns how many entries were passed."""
        with databases.told(self.ledger.engine, "events were consumed"):
            try:
                held = self._hold()
                if held is None:
                    return 0
                self._glance()
                return self._read(held)
            except StaleLease as error:
                self._warn(error)
                self._drop()
                return 0
            except Exception:
                # A commit whose answer was lost may have moved the checkpoint: ask for it first.
                self._renewed = -math.inf
                raise

    def _glance(self) -> None:
        """Look, now and then, for parked events that are wanted again, and for what is forgotten."""
        now, mine = time.monotonic(), self.registration
        if now < self._glanced + _WAIT:
            return
        self._glanced = now
        with self.ledger.engine.connect() as connection:
            self._fitness.look(connection)
            wanted = parked_events.due(connection, self.ledger, mine.stream, mine.name)
        for one in wanted:
            if self._stopped.is_set():
                return
            self._beat()
            self._hold()
            assert self._applying is not None
            try:
                self.counts["handled"] += self._applying.again(one)
            except HandlerError as error:
                self._trouble(error)
                self.counts["failed"] += 1
                self._warn(error.__cause__ or error)

    def _read(self, held: HeldLease) -> int:
        found = self._entries.past(held, self.checkpoint, self._at_once)
        if found:
            self._at("consumer.read")
        events: list[StreamEvent] = []
        passed = 0
        for entry_id, flat in found:
            try:
                events.append(decode(self.registration.stream, entry_id, flat))
            except ValueError as error:
                # Another program wrote it: nobody sent it as an event.
                self._warn(error)
                self.counts["foreign"] += 1
                passed += self._act(events)
                events = []
                if self.failure is not None:
                    return passed
                assert self._applying is not None
                self._applying.pass_by(position(entry_id))
                self.checkpoint = position(entry_id)
                passed += 1
        return passed + self._act(events)

    def _act(self, events: Sequence[StreamEvent]) -> int:
        together = self.registration.batch and len(events) > 1 and self.failure is None
        together = together and all(self._fitness.wrong(event) is None for event in events)
        if together and self._batch(events):
            return len(events)
        for number, event in enumerate(events):
            if self._stopped.is_set() or not self._one(event):
                return number
            self._hold()
        return len(events)

    def _batch(self, events: Sequence[StreamEvent]) -> bool:
        """Act on many events in one transaction; False if it failed, and each is to be tried alone."""
        assert self._applying is not None
        try:
            handled = self._applying.exactly_once(events)
        except HandlerError as error:
            self._trouble(error)
            self.counts["failed"] += 1
            return False
        self._passed(events[-1], handled, len(events))
        return True

    def _one(self, event: StreamEvent) -> bool:
        """Act on an event; False if it failed and blocks."""
        mine, applying = self.registration, self._applying
        assert applying is not None
        wrong = self._fitness.wrong(event)
        if wrong is not None and not self._fitness.known(event):
            self.counts["unknown"] += 1
            return self._failed(event, wrong, self._tries(event))
        attempt, before = self._tries(event), None
        if mine.on_error == PARK:
            again = self._cut_off == event.event_uuid
            attempt, before = applying.count(event, again=again)
            self._cut_off = event.event_uuid
            if attempt > mine.attempts:
                return self._park(
                    event, before or "its process ended while it was handled", attempt - 1
                )
        try:
            if wrong is not None:
                raise HandlerError from wrong
            handled = self._apply(event, attempt)
        except HandlerError as error:
            self._trouble(error)
            self._cut_off = None
            cause = error.__cause__
            assert cause is not None
            if mine.on_error == PARK:
                if attempt >= mine.attempts:
                    self.counts["failed"] += 1
                    return self._park(event, told(cause), attempt)
                applying.failed(event, cause)
            return self._failed(event, cause, attempt)
        self._passed(event, handled, 1)
        return True

    def _apply(self, event: StreamEvent, attempt: int) -> int:
        assert self._applying is not None
        guarantee = self.registration.guarantee
        if guarantee is Guarantee.EXACTLY_ONCE:
            counted = self.registration.on_error == PARK
            return self._applying.exactly_once([event], attempt, counted=counted)
        if guarantee is Guarantee.AT_LEAST_ONCE:
            return self._applying.at_least_once(event, attempt)
        try:
            return self._applying.at_most_once(event, attempt)
        except HandlerError as error:
            # It was passed before its handler began, and is not tried again.
            self.counts["failed"] += 1
            self._warn(error.__cause__ or error)
            return 1

    def _tries(self, event: StreamEvent) -> int:
        before = self.failure
        if before is None or before.event.event_uuid != event.event_uuid:
            return 1
        return before.attempts + 1

    def _passed(self, event: StreamEvent, handled: int, of: int) -> None:
        self.checkpoint, self.failure = event.position, None
        self.counts["handled"] += handled
        self.counts["duplicates"] += of - handled

    def _park(self, event: StreamEvent, error: str, attempts: int) -> bool:
        assert self._applying is not None
        self._applying.park(event, error, attempts)
        self.checkpoint, self.failure = event.position, None
        self.counts["parked"] += 1
        self._warn(AgentBusError(f"{event.event_type} {event.event_uuid} is put aside: {error}"))
        return True

    def _failed(self, event: StreamEvent, error: BaseException, attempts: int) -> bool:
        self.failure = Failure(event, error, attempts)
        self.counts["failed"] += 1
        self._warn(error)
        return False

    def _trouble(self, error: HandlerError) -> None:
        """Raise what is no failure of the handler's: the connection was cut beneath it."""
        cause = error.__cause__
        if isinstance(cause, exc.DBAPIError) and cause.connection_invalidated:
            raise cause from None

    # -- the lease --

    def _hold(self) -> HeldLease | None:
        """Take the lease if it is free, or renew it when it is time. Raises `StaleLease`."""
        made = self.ledger.tables
        if self._held is None:
            mine = self.registration
            with self.ledger.transaction() as connection:
                held = leases.acquire(
                    connection, made, mine.stream, mine.name, self.owner, self._lease
                )
            if held is None:
                return None
            self._at("consumer.leased")
            self._held, self._renewed, self._glanced = held, time.monotonic(), -math.inf
            self.checkpoint, self.failure = held.checkpoint, None
            self._applying = EventTransactions(
                *(mine, self.ledger, held, self._lease, self._at), self._telemetry.ran
            )
            self._renewing = LeaseRenewer(self.ledger, held, self._lease, self._renew)
        elif time.monotonic() - self._renewed >= self._renew:
            with self.ledger.transaction() as connection:
                self.checkpoint = leases.renew(connection, made, self._held, self._lease)
            self._renewed = time.monotonic()
        return self._held

    def _drop(self) -> None:
        if self._renewing is not None:
            self._renewing.stop()
        self._held = self._applying = self._renewing = None

    def _wait_to_retry(self, failure: Failure) -> None:
        """Wait before a failed event is tried again, and keep the lease meanwhile."""
        until = time.monotonic() + self._backoff.after(failure.attempts)
        while (left := until - time.monotonic()) > 0 and not self._stopped.wait(
            min(left, self._renew, _WAIT)
        ):
            self._beat()
            with databases.told(self.ledger.engine, "a lease was renewed"):
                try:
                    self._hold()
                except StaleLease:
                    self._drop()
                    return

    def _warn(self, error: BaseException) -> None:
        said = str(error) if isinstance(error, AgentBusError) else told(error)
        emit("warning", {"verb": "consume", "consumer": self.registration.name, "error": said})
