"""Rows that another program wrote into a ledger's tables are named, and take nothing else with them."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from agentbus.errors import BackendUnavailable, Unhealthy
from agentbus.events import Consumer, Relay, parked, register, standing
from tests.events.shop import STREAM, send

# SQLite alone lets a column hold values of any type.
pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def forge(ledger, statement: str, value: object) -> None:
    """Run a statement with one value."""
    with ledger.transaction() as connection:
        connection.execute(sa.text(statement), {"v": value})


@pytest.mark.parametrize(
    ("table", "column", "value", "what"),
    [
        ("outbox", "created_ms", b"x", "a number"),
        ("outbox", "stream", b"x", "a text"),
        ("lease", "checkpoint_ms", "x", "a number"),
    ],
)
def test_a_value_of_another_type_is_named(ledger, database, table, column, value, what) -> None:
    send(ledger, "a")
    with ledger.transaction() as connection:
        lease = {"stream": STREAM, "role": "welcome", "owner": ""}
        connection.execute(sa.insert(ledger.tables.lease).values(lease))
    forge(ledger, f"UPDATE agentbus_{table} SET {column} = :v", value)

    with pytest.raises(Unhealthy, match=f"'{column}' of the ledger holds .*should hold {what}"):
        standing(ledger)


@pytest.mark.parametrize("metadata", ["[]", "1", "x"])
def test_an_event_whose_metadata_is_forged_is_passed_as_no_event(
    ledger, database, bus, metadata
) -> None:
    seen: list[str] = []
    welcome = register(lambda event, _: seen.append(event.event_uuid), STREAM, name="welcome")
    consumer, relay = Consumer(welcome, ledger, bus), Relay(ledger, bus)
    consumer.run_once()
    send(ledger, "a", "b", "c")
    forge(ledger, "UPDATE agentbus_outbox SET metadata = :v WHERE event_uuid = 'b'", metadata)

    relay.run_once()
    consumer.run_once()
    consumer.close()
    relay.close()

    assert (seen, consumer.counts["foreign"]) == (["a", "c"], 1)


def test_a_parked_event_that_was_forged_is_listed_beside_sound_ones(ledger, database, bus) -> None:
    welcome = register(_refuse, STREAM, name="welcome", on_error="park", attempts=1)
    consumer, relay = Consumer(welcome, ledger, bus), Relay(ledger, bus)
    consumer.run_once()
    send(ledger, "a", "b")
    relay.run_once()
    consumer.run_once()
    consumer.close()
    relay.close()
    forge(ledger, "UPDATE agentbus_parked SET event = :v WHERE event_uuid = 'a'", '{"x":1}')

    assert [(one.event.event_uuid, one.event.event_type) for one in parked(ledger)] == [
        ("a", "?"),
        ("b", "Placed"),
    ]


def test_half_a_position_is_an_error_in_a_sentence(ledger, database, bus) -> None:
    relay, second = Relay(ledger, bus), Relay(ledger, bus)
    send(ledger, "a")
    relay.run_once()
    relay.close()
    forge(ledger, "UPDATE agentbus_outbox SET position_seq = :v", None)

    with pytest.raises(BackendUnavailable, match="refused 'XRANGE'"):
        second.run_once()
    second.close()


def test_an_event_beyond_what_the_database_holds_is_named(
    ledger, database, bus, valkey, project
) -> None:
    relay = Relay(ledger, bus)
    send(ledger, "a")
    relay.run_once()
    key = f"{project}:ev:shop%3Aorders"
    valkey.ask("XADD", key, f"{2**64 - 2}-1", "event_type", "Placed")
    send(ledger, "b")

    def twice() -> None:
        relay.run_once()
        relay.run_once()

    with pytest.raises(Unhealthy, match="cannot hold a value"):
        twice()
    relay.close()


def _refuse(_event: object, _session: object) -> None:
    raise ValueError("no")
