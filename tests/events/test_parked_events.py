"""Parked events, their retries on request, and replays that come too late."""

from __future__ import annotations

import contextlib

import pytest
import sqlalchemy as sa

from agentbus.errors import NotFound, ReplayTooOld
from agentbus.events import (
    Consumer,
    EventSchemas,
    Guarantee,
    Relay,
    drop,
    parked,
    register,
    retry,
)
from tests.events.shop import STREAM, act, effects, entries, expire, rows, send


class Killed(BaseException):
    """Stands for the end of a process, which no handler of errors sees."""


class Poisoned:
    """A handler that fails for one event until it is told that all is well."""

    def __init__(self) -> None:
        self.well = False
        self.attempts: list[int] = []

    def __call__(self, event, context, session) -> None:
        act(event, session)
        if event.event_uuid == "b":
            self.attempts.append(context.attempt)
            if not self.well:
                raise ValueError("never")


@pytest.fixture
def handler() -> Poisoned:
    return Poisoned()


@pytest.fixture
def welcome(ledger, bus, handler):
    """A consumer that has put one of three events aside."""
    send(ledger, *"abc")
    relay = Relay(ledger, bus)
    relay.run_once()
    relay.close()
    made = Consumer(
        register(handler, STREAM, name="welcome", on_error="park", attempts=1), ledger, bus
    )
    made.run_once()
    yield made
    made.close()


def look_again(consumer: Consumer) -> int:
    """Have a consumer take its lease anew, look for wishes, and act on what there is."""
    consumer.close()
    return consumer.run_once()


def test_who_puts_an_event_aside_says_so(welcome, caplog):
    said = [record.__dict__.get("error", "") for record in caplog.get_records("setup")]

    assert [one for one in said if "Placed b is parked: ValueError: never" in one]


def test_what_is_parked_is_told(ledger, welcome):
    (one,) = parked(ledger)

    assert (one.consumer, one.error, one.attempts) == ("welcome", "ValueError: never", 1)
    assert (one.event.event_uuid, one.event.payload, one.waits) == ("b", {"name": "b"}, False)
    assert abs(one.parked_at * 1000 - ledger.now()) < 60_000
    assert parked(ledger, "another") == []
    assert parked(ledger, after=one.id) == []


def test_a_parked_event_that_is_asked_for_is_handled_once(ledger, welcome, handler):
    handler.well = True
    assert retry(ledger) == 1
    assert parked(ledger)[0].waits

    look_again(welcome)
    look_again(welcome)

    assert effects(ledger) == ["a", "b", "c"]
    assert parked(ledger) == []
    assert handler.attempts == [1, 2]
    assert welcome.counts["handled"] == 3


def test_a_parked_event_that_fails_again_stays_aside_until_it_is_asked_for_again(
    ledger, welcome, handler
):
    retry(ledger, "welcome")

    look_again(welcome)
    look_again(welcome)

    assert effects(ledger) == ["a", "c"]
    (one,) = parked(ledger)
    assert (one.attempts, one.waits) == (2, False)
    assert handler.attempts == [1, 2]


def test_a_parked_event_that_kills_its_process_is_not_tried_again_unasked(ledger, bus, welcome):
    retry(ledger)
    welcome.close()

    def crash(event, session) -> None:
        act(event, session)
        raise Killed

    mine = register(crash, STREAM, name="welcome", on_error="park", attempts=1)
    # Closed in the end alone: who dies gives nothing back, but here its thread would live on.
    with contextlib.closing(Consumer(mine, ledger, bus)) as dead:
        with pytest.raises(Killed):
            dead.run_once()
        expire(ledger)
        again = Consumer(mine, ledger, bus)
        again.run_once()
        again.close()

    assert effects(ledger) == ["a", "c"]
    assert [(one.attempts, one.waits) for one in parked(ledger)] == [(2, False)]


def test_an_overtaken_consumer_does_not_act_on_a_parked_event(ledger, bus, welcome, handler):
    handler.well = True

    def overtake(event, context, session) -> None:
        act(event, session)
        lease = ledger.tables.lease
        session.execute(
            sa.update(lease).where(lease.c.role == "welcome").values(token=lease.c.token + 1)
        )

    retry(ledger)
    welcome.close()
    mine = register(overtake, STREAM, name="welcome", on_error="park", attempts=1)
    stale = Consumer(mine, ledger, bus)
    stale.run_once()
    stale.close()

    assert effects(ledger) == ["a", "c"]
    assert len(parked(ledger)) == 1


def test_between_parked_events_a_consumer_gives_signs_of_life_and_may_be_stopped(
    ledger, bus, welcome
):
    retry(ledger)
    welcome.close()
    beats = []
    mine = register(act, STREAM, name="welcome", on_error="park")
    consumer = Consumer(mine, ledger, bus, beat=lambda: beats.append(consumer.stop()))
    consumer._turn()
    assert (len(beats), effects(ledger)) == (1, ["a", "b", "c"])
    consumer.close()


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
def test_a_parked_event_is_acted_on_outside_a_transaction(ledger, bus, welcome, guarantee):
    heard = []
    retry(ledger)
    welcome.close()
    mine = register(
        lambda event: heard.append(event.event_uuid),
        *(STREAM,),
        name="welcome",
        guarantee=guarantee,
        on_error="park",
    )
    consumer = Consumer(mine, ledger, bus)
    consumer.run_once()
    consumer.close()

    assert heard == ["b"]
    assert parked(ledger) == []


def test_a_parked_event_goes_to_a_batch_handler_by_itself(ledger, bus, welcome):
    retry(ledger)
    welcome.close()
    heard = []

    def many(events, session) -> None:
        heard.append([event.event_uuid for event in events])
        for event in events:
            act(event, session)

    mine = register(many, STREAM, name="welcome", batch=True, on_error="park")
    consumer = Consumer(mine, ledger, bus)
    consumer.run_once()
    consumer.close()

    assert heard == [["b"]]
    assert effects(ledger) == ["a", "b", "c"]


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_a_parked_event_that_does_not_fit_its_schema_stays_aside_until_it_fits(
    ledger, bus, welcome, guarantee
):
    welcome.close()
    heard = []

    def hear(event, context, session=None) -> None:
        heard.append(event.event_uuid)

    def hear_in_transaction(event, context, session) -> None:
        hear(event, context)

    handler = hear_in_transaction if guarantee is Guarantee.EXACTLY_ONCE else hear
    mine = register(handler, STREAM, name="welcome", guarantee=guarantee, on_error="park")
    for allowed in ("a", "b"):
        schemas = EventSchemas()
        schemas.register(STREAM, "Placed", {"properties": {"name": {"const": allowed}}})
        retry(ledger)
        with contextlib.closing(Consumer(mine, ledger, bus, schemas=schemas)) as consumer:
            consumer.run_once()
        if allowed == "a":
            (one,) = parked(ledger)
            assert one.error.startswith("InvalidPayload: ")
            assert (one.attempts, one.waits, heard) == (2, False, [])

    assert (parked(ledger), heard) == ([], ["b"])


def test_a_dropped_event_counts_as_processed(ledger, welcome, handler):
    handler.well = True

    assert drop(ledger, ids=[one.id for one in parked(ledger)]) == 1
    look_again(welcome)

    assert effects(ledger) == ["a", "c"]
    assert parked(ledger) == []
    assert [row.event_uuid for row in rows(ledger, "processed")] == ["a", "b", "c"]


@pytest.mark.parametrize("doing", [parked, retry, drop])
def test_an_id_that_is_not_there_changes_nothing(ledger, welcome, doing):
    (one,) = parked(ledger)

    with pytest.raises(NotFound, match="id 4711"):
        doing(ledger, ids=[one.id, 4711])

    assert parked(ledger) == [one]


# -- replays that come too late --------------------------------------------------------------------


def replayed(valkey, project, entry) -> str:
    """Add an entry again that was there before, as one who restores an archive would."""
    fields = [word for key, value in entry.items() if key != "id" for word in (key, value)]
    return valkey.ask("XADD", f"{project}:ev:shop%3Aorders", "*", *fields).decode()


@pytest.fixture
def forgetful(ledger, bus):
    """A relay that keeps nothing longer than it must."""
    made = Relay(ledger, bus, keep_processed=-1)
    yield made
    made.close()


def test_a_replay_of_what_is_forgotten_is_refused_until_it_is_removed(
    ledger, bus, forgetful, valkey, project
):
    send(ledger, *"ab")
    forgetful.run_once()
    old = entries(valkey, project)
    mine = Consumer(register(act, STREAM, name="welcome"), ledger, bus)
    mine.run_once()
    forgetful.run_once()
    assert rows(ledger, "processed") == []

    again = replayed(valkey, project, old[0])
    send(ledger, "c")
    forgetful.run_once()
    look_again(mine)

    assert isinstance(mine.failure.error, ReplayTooOld)
    assert again in mine.failure.error.hint
    assert effects(ledger) == ["a", "b"]
    valkey.ask("XDEL", f"{project}:ev:shop%3Aorders", again)
    look_again(mine)
    mine.close()
    assert effects(ledger) == ["a", "b", "c"]


@pytest.mark.parametrize("deaths", [0, 1])
def test_a_parked_replay_of_what_is_forgotten_is_not_handled_on_request(
    ledger, forgetful, consume, valkey, project, deaths
):
    send(ledger, "a")
    forgetful.run_once()
    (old,) = entries(valkey, project)
    look_again(first := consume(on_error="park", attempts=1))
    forgetful.run_once()
    first.close()
    for _ in range(deaths):
        # As if a process had ended during its attempt.
        row = {"consumer": "welcome", "event_uuid": "a", "attempts": 1}
        with ledger.transaction() as connection:
            connection.execute(sa.insert(ledger.tables.attempts), row)

    replayed(valkey, project, old)
    look_again(mine := consume(on_error="park", attempts=1))
    assert retry(ledger) == 1
    look_again(mine)

    assert effects(ledger) == ["a"]
    (one,) = parked(ledger)
    assert one.error.startswith("ReplayTooOld: ")
    assert (one.attempts, one.waits) == (2 + deaths, False)


def test_an_event_parked_before_it_was_forgotten_is_handled_on_request(
    ledger, welcome, handler, forgetful
):
    forgetful.run_once()
    forgetful.run_once()
    assert rows(ledger, "processed") == []
    handler.well = True
    retry(ledger)
    look_again(welcome)

    assert effects(ledger) == ["a", "b", "c"]


def test_a_replay_of_what_is_still_known_is_passed_over(ledger, bus, valkey, project):
    send(ledger, *"ab")
    relay = Relay(ledger, bus)
    relay.run_once()
    old = entries(valkey, project)
    mine = Consumer(register(act, STREAM, name="welcome"), ledger, bus)
    mine.run_once()
    relay.run_once()
    relay.close()

    replayed(valkey, project, old[0])
    look_again(mine)
    mine.close()

    assert mine.failure is None
    assert effects(ledger) == ["a", "b"]


def test_a_late_commit_with_an_old_id_is_no_replay(ledger, bus, forgetful):
    mine = Consumer(register(act, STREAM, name="welcome"), ledger, bus)
    send(ledger, "a", "b")
    forgetful.run_once()
    mine.run_once()
    forgetful.run_once()
    # As if its transaction had begun before those, and ended after all was forgotten of them.
    with ledger.transaction() as connection:
        box = ledger.tables.outbox
        values = {"stream": STREAM, "event_type": "Placed", "event_uuid": "late", "payload": "{}"}
        connection.execute(sa.insert(box).values(id=1, **values))
    forgetful.run_once()
    look_again(mine)
    mine.close()

    assert effects(ledger) == ["a", "b", "late"]
