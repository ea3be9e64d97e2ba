"""Events across databases: several ledgers publish to a stream, and others consume it."""

from __future__ import annotations

import shutil
import time

import pytest
import sqlalchemy as sa

import agentbus
from agentbus.errors import EventsLost, ForeignLedger
from agentbus.events import (
    Cleanup,
    Consumer,
    Guarantee,
    Ledger,
    Relay,
    forget_consumer,
    forget_reader,
    register,
    register_consumer,
    skip_events,
    standing,
)
from agentbus.events.redis import RedisClient
from agentbus.events.stream_reader import StreamReader
from tests.events.shop import STREAM, act, effects, entries, rows, send, uuids

KEY = "shop%3Aorders"


@pytest.fixture
def other(engines, tmp_path) -> Ledger:
    """A second service's ledger, in a SQLite database of its own."""
    made = Ledger(engines(f"sqlite:///{tmp_path / 'other.db'}"))
    made.create()
    with made.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE effects (uuid VARCHAR(64), note VARCHAR(200))")
    return made


@pytest.fixture
def relays(ledger, other, bus):
    """The relays of both ledgers."""
    made = [Relay(ledger, bus), Relay(other, bus)]
    yield made
    for each in made:
        each.close()


@pytest.fixture
def there(other, bus):
    """Return a function that makes consumers with the second ledger."""
    made = []

    def _there(handler=act, name: str = "welcome", **options) -> Consumer:
        of_consumer = {
            each: options.pop(each) for each in ("cleanup", "at_once") if each in options
        }
        made.append(
            Consumer(register(handler, STREAM, name=name, **options), other, bus, **of_consumer)
        )
        return made[-1]

    yield _there
    for each in made:
        each.close()


def turns(relays, number: int = 2) -> None:
    for _ in range(number):
        for relay in relays:
            relay.run_once()


def wipe(valkey, bus) -> None:
    keys = bus.scope.keys
    valkey.ask("DEL", keys.events(STREAM), keys.relay(STREAM), keys.event_readers(STREAM))


def published(ledger) -> list[str]:
    return [row.event_uuid for row in rows(ledger, "outbox") if row.position_ms is not None]


def test_two_ledgers_send_to_a_stream_and_consumers_of_both_act_on_all_events_once(
    ledger, other, relays, consume, there
):
    send(ledger, "a", "b")
    send(other, "c", "d")
    turns(relays, 1)

    assert (consume().run_once(), there().run_once()) == (4, 4)
    assert effects(ledger) == effects(other) == ["a", "b", "c", "d"]


def test_a_consumer_with_another_database_may_act_at_least_once(ledger, other, relays, there):
    seen = []
    send(ledger, "a")
    turns(relays, 1)

    mine = there(lambda event: seen.append(event.event_uuid), guarantee=Guarantee.AT_LEAST_ONCE)

    assert (mine.run_once(), seen) == (1, ["a"])
    assert [row.event_uuid for row in rows(other, "processed")] == ["a"]


def test_nothing_goes_that_a_consumer_with_another_database_has_not_passed(
    ledger, relays, consume, there, valkey, project
):
    mine = there(at_once=1)
    mine.run_once()
    send(ledger, *"abc")
    turns(relays, 1)
    consume().run_once()

    turns(relays)
    kept = uuids(valkey, project), published(ledger)
    mine.run_once()
    turns(relays, 3)

    assert kept == (["a", "b", "c"], ["a", "b", "c"])
    assert (uuids(valkey, project), published(ledger)) == (["c"], [])


def test_after_a_wipe_both_ledgers_publish_again_what_any_consumer_needs(
    ledger, other, relays, consume, there, valkey, bus, project
):
    mine = there(at_once=1)
    mine.run_once()
    send(ledger, *"ab")
    send(other, *"cd")
    turns(relays, 1)
    quick = consume()
    quick.run_once()
    turns(relays)

    wipe(valkey, bus)
    # The consumer has not come back, and its record is lost with all else.
    turns(relays, 3)

    assert sorted(uuids(valkey, project)) == ["a", "b", "c", "d"]
    assert (mine.run_once(), effects(other)) == (4, ["a", "b", "c", "d"])
    assert quick.run_once() == 4
    assert effects(ledger) == ["a", "b", "c", "d"]


def test_what_strangers_trimmed_is_published_again_by_both_relays(
    ledger, other, relays, consume, there, valkey, project
):
    mine = there()
    mine.run_once()
    send(ledger, *"ab")
    turns(relays, 1)
    send(other, *"cd")
    turns(relays, 1)
    valkey.ask("XTRIM", f"{project}:ev:{KEY}", "MAXLEN", 1)

    turns(relays, 4)

    assert sorted(uuids(valkey, project)) == ["a", "b", "c", "d"]
    assert mine.run_once() == consume().run_once() == 4
    assert effects(ledger) == effects(other) == ["a", "b", "c", "d"]


def test_events_get_ids_beyond_the_checkpoint_of_a_consumer_with_another_database(
    ledger, other, relays, there, valkey, bus, project
):
    ahead = f"{round(time.time() * 1000) + 3_600_000}-0"
    event = ("event_type", "Placed", "event_uuid", "z", "outbox_id", 1, "payload", "{}")
    valkey.ask("XADD", f"{project}:ev:{KEY}", ahead, *event, "metadata", "{}", "ledger", 7)
    mine = there()
    assert mine.run_once() == 1
    # The server loses all, and its clock was an hour ahead.
    wipe(valkey, bus)
    send(ledger, "a")
    relays[0].run_once()
    assert entries(valkey, project)[0]["id"] < ahead

    mine._recorded_at = -1e9
    mine.run_once()
    turns(relays)
    mine.run_once()

    assert entries(valkey, project)[0]["id"] > ahead
    assert effects(other) == ["a", "z"]


def test_a_copy_of_a_database_is_refused_until_it_has_an_identity_of_its_own(
    sqlite_database, engines, bus, tmp_path, valkey, project
):
    place = sqlite_database.removeprefix("sqlite:///")
    ledger = Ledger(engines(sqlite_database))
    ledger.create()
    first = Relay(ledger, bus)
    send(ledger, "a")
    first.run_once()
    first.close()
    shutil.copy(place, tmp_path / "copy.db")
    copy = Ledger(engines(f"sqlite:///{tmp_path / 'copy.db'}"))
    again, twin = Relay(ledger, bus), Relay(copy, bus)
    send(ledger, "b")
    again.run_once()
    send(copy, "c")

    with pytest.raises(ForeignLedger, match="copy") as raised:
        twin.run_once()
    copy.renew_identity()
    twin.close()
    third = Relay(copy, bus)
    third.run_once()

    assert raised.value.exit_code == 2
    assert set(uuids(valkey, project)) == {"a", "b", "c"}
    again.close()
    third.close()


def test_a_consumer_is_named_by_its_application(ledger, relay, real_url, project, monkeypatch):
    send(ledger, "a", "b")
    relay.run_once()
    declared = register(act, STREAM, name="welcome")
    handled = []
    for app in ("fr_api", "be_api"):
        monkeypatch.setenv("AGENTBUS_APP", app)
        with agentbus.connect(real_url, project=project) as bus:
            mine = Consumer(declared, ledger, bus)
            handled.append((mine.registration.name, mine.run_once()))
            mine.close()

    assert handled == [("fr_api.welcome", 2), ("be_api.welcome", 2)]
    assert effects(ledger) == ["a", "a", "b", "b"]


def test_events_that_no_ledger_kept_for_a_consumer_are_told(
    ledger, relays, consume, there, valkey, bus
):
    mine = there(at_once=1)
    send(ledger, *"abcd")
    turns(relays, 1)
    mine._turn()
    # Relays that never knew of it.
    valkey.ask("DEL", bus.scope.keys.event_readers(STREAM))
    consume().run_once()
    relays[0].run_once()

    with pytest.raises(EventsLost, match="up to 3 events"):
        mine._turn()


def test_a_registered_consumer_is_kept_for_and_a_forgotten_one_is_not(
    ledger, other, relays, consume, bus, valkey, project
):
    register_consumer(other, STREAM, "welcome", bus=bus)
    send(ledger, "a", "b")
    turns(relays, 1)
    consume().run_once()
    turns(relays)
    kept = published(ledger)

    forget_consumer(other, STREAM, "welcome", bus=bus)
    turns(relays, 3)

    assert (kept, published(ledger)) == (["a", "b"], [])
    assert {row.role for row in rows(ledger, "lease")} == {"relay", "welcome"}


def test_a_consumer_whose_database_is_gone_can_be_forgotten(ledger, other, relays, consume, bus):
    register_consumer(other, STREAM, "welcome", bus=bus)
    send(ledger, "a")
    turns(relays, 1)
    consume().run_once()
    turns(relays)
    (gone,) = [each.role for row in standing(ledger) for each in row.leases if each.reader]

    forget_reader(bus, STREAM, gone)
    turns(relays, 3)

    assert gone == f"reader:consumer:{other.identity()}:welcome"
    assert published(ledger) == []


def test_a_consumer_registered_past_what_others_published_begins_after_it(
    ledger, other, relays, there, bus
):
    send(ledger, "a")
    turns(relays, 1)
    register_consumer(other, STREAM, "welcome", past=True, bus=bus)
    send(ledger, "b")
    turns(relays, 1)

    there().run_once()

    assert effects(other) == ["b"]


def test_skipped_events_of_another_ledger_are_not_handled_when_they_come_again(
    ledger, other, relays, there, bus, valkey
):
    mine = there()
    mine.run_once()
    send(ledger, "a", "b")
    turns(relays, 1)
    mine.close()

    skipped = skip_events(other, bus, STREAM, "welcome", to="end")
    wipe(valkey, bus)
    turns(relays)
    again = there()
    again.run_once()

    assert skipped.events == 2
    assert again.counts["handled"] == 0
    assert effects(other) == []


def test_a_consumers_lag_counts_the_events_of_other_ledgers(ledger, other, relays, bus):
    send(ledger, "a", "b")
    turns(relays, 1)

    with RedisClient(bus.runner) as server:
        number, since = StreamReader(other, server, STREAM).behind((0, 0))

    assert number == 2
    assert abs(since - ledger.now()) < 60_000


def test_a_foreign_event_with_the_number_of_an_old_row_is_not_too_old(ledger, other, relays, there):
    mine = there(cleanup=Cleanup(-1.0, 0.0))
    send(other, *"abc")
    turns(relays, 1)
    mine.run_once()
    turns(relays, 3)
    mine.run_once()
    assert rows(other, "processed") == []

    send(ledger, "d")
    turns(relays, 1)

    mine._checked = -1e9
    assert mine.run_once() == 1
    assert effects(other) == ["a", "b", "c", "d"]


def test_a_consumer_keeps_what_tells_duplicates_while_others_may_need_an_event_again(
    ledger, other, relays, consume, there
):
    consume(name="slow", at_once=1)._turn()
    mine = there(cleanup=Cleanup(-1.0, 0.0))
    mine.run_once()
    send(ledger, "a", "b")
    turns(relays, 1)
    mine.run_once()
    mine._recorded_at = -1e9
    mine.run_once()

    kept = [row.event_uuid for row in rows(other, "processed")]
    with other.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM effects")).scalar() == 2

    assert kept == ["a", "b"]
