"""The consumer: reads a stream from its checkpoint on, and runs the handler on each event."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.core import greenlets
from agentbus.core.errors import AgentBusError, BackendUnavailable, OutcomeUnknown, StaleLease
from agentbus.core.loggers import emit
from agentbus.core.signals import StopEvent, stops_at_signals
from agentbus.core.stream import position
from agentbus.events import databases, kill_points, leases, parked_events, readers
from agentbus.events.cleanup import Cleaner, Cleanup
from agentbus.events.declare import PARK
from agentbus.events.guarantee import Guarantee
from agentbus.events.handler_errors import HandlerError, error_text, handlers_error
from agentbus.events.lease_renewer import LeaseRenewer
from agentbus.events.leases import LEASE_SECONDS, RENEW_SECONDS
from agentbus.events.redis import RedisClient
from agentbus.events.reporter import Reporter
from agentbus.events.schemas import REGISTERED
from agentbus.events.stream_reader import StreamReader
from agentbus.events.transaction import EventTransactions
from agentbus.events.validate import EventValidator
from agentbus.queues.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agentbus.events.declare import Declaration
    from agentbus.events.event import StreamEvent
    from agentbus.events.ledger import Ledger
    from agentbus.events.schemas import EventSchemas
    from agentbus.events.tables import Position
    from agentbus.queues.runner import BlockingBus

READ_AT_ONCE = 100
POLL = 1.0
_WAIT = 1.0
_LONGEST_PAUSE = 5.0
# Seconds until a checkpoint is recorded again: a wiped server has forgotten it.
_RECORDED_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    """The event that blocks a consumer, the error of its last attempt, and the number of attempts."""

    event: StreamEvent
    error: BaseException
    attempts: int


class Consumer:
    """Runs a declared handler on a stream's events, in one of several processes at a time.

    `failure` is the failure that blocks it now; `counts` has the numbers of events `handled`,
    `duplicates`, `parked`, and of attempts that `failed` or met an `unknown` type. `at_once` is the
    number of events that it reads, and passes to a batch handler, at once. The lease is renewed
    every `renew` seconds (10, or a third of it); every `poll` seconds it looks for a free lease and
    for parked events to retry. It deletes old rows of processed events, as `cleanup` says.
    `at` is called at each kill point, for tests; `beat` by the loop of `run` at least once a
    second, except while a handler runs or a server is unavailable.
    """

    def __init__(
        self,
        registration: Declaration,
        ledger: Ledger,
        bus: BlockingBus,
        *,
        schemas: EventSchemas = REGISTERED,
        lease: float = LEASE_SECONDS,
        renew: float | None = None,
        poll: float = POLL,
        cleanup: Cleanup | None = None,
        backoff: Backoff | None = None,
        at_once: int = READ_AT_ONCE,
        at: Callable[[str], None] | None = None,
        beat: Callable[[], None] | None = None,
    ) -> None:
        self.registration = registration = registration.of(bus.runner.settings.app)
        self.ledger = ledger
        self.owner = bus.runner.scope.token()
        self.counts: Counter[str] = Counter()
        self.failure: Failure | None = None
        self.checkpoint = (0, 0)
        self._validator = EventValidator(registration, ledger, schemas)
        self._lease = lease
        self._renew = renew or min(RENEW_SECONDS, lease / 3)
        self._poll = poll
        self._cleaner = Cleaner(ledger, cleanup or Cleanup())
        self._backoff = backoff or Backoff()
        self._at_once = at_once
        self._at = at or kill_points.hook()
        self._beat = beat or (lambda: None)
        self._server = RedisClient(bus.runner)
        self._reader = StreamReader(ledger, self._server, registration.stream)
        self._reporter = Reporter(
            *(ledger, bus.runner, registration.stream, registration.name, self.counts),
            self._failing,
        )
        # Both are set while the lease is held.
        self._transactions: EventTransactions | None = None
        self._renewer: LeaseRenewer | None = None
        # The UUID of an event whose counted attempt has no outcome yet: a retry counts as the same
        # attempt.
        self._cut_off: str | None = None
        self._renewed = 0.0
        self._stopped = StopEvent()
        self._checked = -math.inf
        # The checkpoint that the relays of all ledgers know, when it was recorded, and the lowest id
        # that any reader needs.
        self._recorded: Position | None = None
        self._recorded_at = -math.inf
        self._lowest = (0, 0)

    @property
    def holds(self) -> bool:
        """Tell whether this consumer holds the lease, as far as it knows."""
        return self._transactions is not None

    def _failing(self) -> str:
        if (failure := self.failure) is None:
            return ""
        event, error = failure.event, failure.error
        return f"{event.event_type} {event.event_uuid}: {type(error).__name__}: {error}"

    def run_once(self) -> int:
        """Handle the available events, up to one that fails; returns the number passed.

        A failing event is tried once, and then reported in `failure`. Returns 0 while another
        process holds the lease. Raises `BackendUnavailable`, `EventsLost`, `ConfigError`.
        """
        total = 0
        while True:
            passed = self._turn()
            total += passed
            if not passed or self.failure is not None or self._stopped.is_set():
                return total

    @stops_at_signals
    def run(self, on_round: Callable[[int], None] | None = None) -> None:
        """Handle events until `stop` is called, retrying failed handlers and unavailable servers.

        `on_round` is called after each round that passed events, with their number. In the main thread,
        SIGTERM and SIGINT stop it, unless the program handles them. Raises `EventsLost`, `ConfigError`.
        """
        greenlets.check("a consumer")
        pause = 0.1
        try:
            while not self._stopped.is_set():
                self._beat()
                try:
                    passed = self._turn()
                    if self.holds:
                        self._reporter.between()
                    if passed and on_round is not None:
                        on_round(passed)
                    if self.failure is not None:
                        self._wait_to_retry(self.failure)
                    elif not passed and self.holds:
                        self._reader.wait(self.checkpoint, _WAIT)
                    elif not passed:
                        for _ in self._pauses(self._poll):
                            continue
                    pause = 0.1
                except (BackendUnavailable, OutcomeUnknown) as error:
                    self._warn(error)
                    for _ in self._pauses(pause):
                        continue
                    pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            self.close()

    def stop(self) -> None:
        """Make `run` return after the current event; idempotent, and safe in a signal handler."""
        self._stopped.set()

    def close(self) -> None:
        """Release the lease, and close the connection to the server."""
        transactions = self._transactions
        self._drop()
        if transactions is not None:
            # If the database is down, the lease expires.
            with (
                contextlib.suppress(BackendUnavailable),
                self.ledger.committing("a lease was released") as connection,
            ):
                transactions.release(connection)
        self._server.close()

    # -- one turn --

    def _turn(self) -> int:
        """Handle the events of one read; returns how many entries were passed."""
        with databases.translated(self.ledger.engine, "events were consumed"):
            try:
                transactions = self._hold()
                if transactions is None:
                    return 0
                self._record_checkpoint(_RECORDED_EVERY)
                self._retry_parked(transactions)
                self._cleaner.clean(self.registration.stream, self._lowest)
                passed = self._read(transactions)
                if not passed and self.checkpoint != self._recorded:
                    self._record_checkpoint(0.0)
                return passed
            except StaleLease as error:
                self._warn(error)
                self._drop()
                return 0
            except Exception:
                # A commit without a reply may have moved the checkpoint: read it first.
                self._renewed = -math.inf
                raise

    def _record_checkpoint(self, after: float) -> None:
        """Record the checkpoint for the relays of all ledgers, at most once in `after` seconds."""
        now = time.monotonic()
        if now >= self._recorded_at + after:
            stream, name = self.registration.stream, self.registration.name
            self._lowest = readers.record(self.ledger, self._server, stream, name, self.checkpoint)
            self._recorded, self._recorded_at = self.checkpoint, now

    def _retry_parked(self, transactions: EventTransactions) -> None:
        """Retry the parked events for which a retry was requested, if a check is due."""
        now, stream = time.monotonic(), self.registration.stream
        if now < self._checked + self._poll:
            return
        self._checked = now
        with self.ledger.engine.connect() as connection:
            self._validator.look(connection)
            wanted = parked_events.due(connection, self.ledger, stream, self.registration.name)
        for event in wanted:
            if self._stopped.is_set():
                return
            self._beat()
            self._hold()
            try:
                wrong = self._validator.wrong_parked(event)
                self.counts["handled"] += transactions.retry(event, wrong)
            except HandlerError as error:
                self._failed(handlers_error(error))

    def _read(self, transactions: EventTransactions) -> int:
        entry_ids = self._reader.past(transactions.held, self.checkpoint, self._at_once)
        if entry_ids:
            self._at("consumer.read")
        else:
            transactions.rest()
        events: list[StreamEvent] = []
        passed = 0
        for entry_id in entry_ids:
            try:
                events.append(self._reader.event(entry_id))
            except ValueError as error:
                # Another program wrote the entry, which was never sent as an event.
                self._warn(error)
                self.counts["foreign"] += 1
                passed += self._act(transactions, events)
                events = []
                if self.failure is not None:
                    return passed
                transactions.skip_entry(position(entry_id))
                self.checkpoint = position(entry_id)
                passed += 1
        return passed + self._act(transactions, events)

    def _act(self, transactions: EventTransactions, events: Sequence[StreamEvent]) -> int:
        together = self.registration.batch and len(events) > 1 and self.failure is None
        together = together and all(self._validator.wrong(event) is None for event in events)
        if together:
            if self._batch(transactions, events):
                return len(events)
            # Decode the events again: the handler may have changed their payloads.
            events = [self._reader.event(event.redis_id) for event in events]
        for number, event in enumerate(events):
            if self._stopped.is_set() or not self._one(transactions, event):
                return number
            self._hold()
        return len(events)

    def _batch(self, transactions: EventTransactions, events: Sequence[StreamEvent]) -> bool:
        """Handle many events in one transaction; return False to try each event alone."""
        if self.registration.on_error == PARK and not transactions.begin(events):
            return False
        try:
            handled = transactions.exactly_once(events)
        except HandlerError as error:
            handlers_error(error)
            self.counts["failed"] += 1
            return False
        self._passed(events[-1], handled, len(events))
        return True

    def _one(self, transactions: EventTransactions, event: StreamEvent) -> bool:
        """Handle an event; False if it failed and blocks."""
        parks, most = self.registration.on_error == PARK, self.registration.attempts
        attempt, wrong = self._attempt(event), self._validator.wrong(event)
        if wrong is not None and not self._validator.known(event):
            self.counts["unknown"] += 1
            return self._block(event, wrong, attempt)
        if parks:
            attempt, before = transactions.count(event, again=self._cut_off == event.event_uuid)
            self._cut_off = event.event_uuid
            if attempt > most and wrong is None:
                why = before or "its process ended while it was handled"
                return self._park(transactions, event, why, attempt - 1)
        try:
            if wrong is not None:
                raise HandlerError from wrong
            handled = self._apply(transactions, event, attempt)
        except HandlerError as error:
            cause = handlers_error(error)
            # Decode the event again, without the handler's changes to its payload.
            event = self._reader.event(event.redis_id)
            self._cut_off = None
            if parks and attempt >= most:
                self.counts["failed"] += 1
                return self._park(transactions, event, error_text(cause), attempt)
            if parks:
                transactions.failed(event, cause)
            return self._block(event, cause, attempt)
        self._passed(event, handled, 1)
        return True

    def _apply(self, transactions: EventTransactions, event: StreamEvent, attempt: int) -> int:
        guarantee = self.registration.guarantee
        if guarantee is Guarantee.EXACTLY_ONCE:
            return transactions.exactly_once([event], attempt)
        if guarantee is Guarantee.AT_LEAST_ONCE:
            return transactions.at_least_once(event, attempt)
        try:
            return transactions.at_most_once(event, attempt)
        except HandlerError as error:
            # The checkpoint has already passed the event, so it is not retried.
            self._failed(error.__cause__ or error)
            return 1

    def _attempt(self, event: StreamEvent) -> int:
        if (before := self.failure) is None or before.event.event_uuid != event.event_uuid:
            return 1
        return before.attempts + 1

    def _passed(self, event: StreamEvent, handled: int, of: int) -> None:
        self.checkpoint, self.failure = event.position, None
        self.counts["handled"] += handled
        self.counts["duplicates"] += of - handled

    def _park(
        self, transactions: EventTransactions, event: StreamEvent, error: str, attempts: int
    ) -> bool:
        transactions.park(event, error, attempts)
        self.checkpoint, self.failure = event.position, None
        self.counts["parked"] += 1
        self._warn(AgentBusError(f"{event.event_type} {event.event_uuid} is parked: {error}"))
        return True

    def _block(self, event: StreamEvent, error: BaseException, attempts: int) -> bool:
        self.failure = Failure(event, error, attempts)
        self._failed(error)
        return False

    def _failed(self, error: BaseException) -> None:
        self.counts["failed"] += 1
        self._warn(error)

    # -- the lease --

    def _hold(self) -> EventTransactions | None:
        """Acquire the lease if it is free, or renew it when it is due. Raises `StaleLease`."""
        tables, consumer = self.ledger.tables, self.registration
        if self._transactions is None:
            with self.ledger.transaction() as connection:
                held = leases.acquire(
                    connection, tables, consumer.stream, consumer.name, self.owner, self._lease
                )
            if held is None:
                return None
            self._at("consumer.leased")
            self._renewed, self._checked = time.monotonic(), -math.inf
            self._recorded_at = -math.inf
            self.checkpoint, self.failure = held.checkpoint, None
            self._transactions = EventTransactions(
                *(consumer, self.ledger, held, self.owner, self._lease, self._at),
                *(self._reporter.ran, self._beat),
            )
            self._renewer = LeaseRenewer(self.ledger, held, self._lease, self._renew)
            self._reporter.start(self.owner)
        elif time.monotonic() - self._renewed >= self._renew:
            held = self._transactions.held
            with self.ledger.transaction() as connection:
                self.checkpoint = leases.renew(connection, tables, held, self._lease)
            self._renewed = time.monotonic()
        return self._transactions

    def _drop(self) -> None:
        if self._renewer is not None:
            self._renewer.stop()
        if self.holds:
            self._reporter.stop()
        self._transactions = self._renewer = None

    def _wait_to_retry(self, failure: Failure) -> None:
        """Wait before a failed event is retried, and keep the lease meanwhile."""
        for _ in self._pauses(self._backoff.after(failure.attempts)):
            with databases.translated(self.ledger.engine, "a lease was renewed"):
                try:
                    self._hold()
                except StaleLease:
                    self._drop()
                    return

    def _pauses(self, seconds: float) -> Iterator[None]:
        """Wait in parts, sending a heartbeat and possibly renewing a lease after each part."""
        until, most = time.monotonic() + seconds, min(self._renew, _WAIT)
        while (left := until - time.monotonic()) > 0 and not self._stopped.wait(min(left, most)):
            self._beat()
            yield

    def _warn(self, error: BaseException) -> None:
        said = str(error) if isinstance(error, AgentBusError) else error_text(error)
        fields: dict[str, object] = {"verb": "consume", "consumer": self.registration.name}
        # The text of an error of the bus says enough.
        raised = None if isinstance(error, AgentBusError) else error
        emit("warning", fields | {"error": said}, error=raised)
