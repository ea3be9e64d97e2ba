"""What is told of those who act on events: how far behind they are, and when somebody is needed."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from agentbus.events import Consumer, LeaseStanding, Relay, register, standing
from tests.events.shop import STREAM, act, send


@pytest.mark.parametrize(
    ("expires", "lag", "lag_ms", "parked", "alert"),
    [
        (20.0, 0, 0, 0, None),
        (None, 0, 0, 0, None),
        (20.0, 10_000, 60_000, 0, None),
        (20.0, 10_001, 0, 0, "warn"),
        (20.0, 1, 60_001, 0, "warn"),
        (20.0, 0, 0, 1, "warn"),
        (20.0, 1, 300_001, 0, "page"),
        (None, 1, 0, 0, "page"),
        (-1.0, 1, 0, 0, "page"),
    ],
)
def test_an_operator_is_told_when_one_is_needed(expires, lag, lag_ms, parked, alert):
    one = LeaseStanding(STREAM, "welcome", "ada", 1, expires, "0-0", lag, lag_ms, parked)

    assert one.alert == alert


@pytest.mark.parametrize(
    ("lag", "lag_ms", "alert"), [(1, 0, None), (10_000, 60_000, None), (1, 60_001, "warn")]
)
def test_a_reader_that_holds_events_back_is_told_without_a_page(lag, lag_ms, alert):
    one = LeaseStanding(STREAM, "reader:archive:a", "", 0, None, "0-0", lag, lag_ms, 0)

    assert one.alert == alert


def test_a_lag_begins_when_its_oldest_event_was_sent(ledger, bus):
    mine = Consumer(register(act, STREAM, name="welcome"), ledger, bus)
    relay = Relay(ledger, bus)
    send(ledger, "a")
    relay.run_once()
    mine.run_once()
    send(ledger, "b")
    relay.run_once()
    send(ledger, "c")
    box = ledger.tables.outbox
    with ledger.transaction() as connection:
        for name, age in (("b", 90_000), ("c", 30_000)):
            aged = sa.update(box).where(box.c.event_uuid == name)
            connection.execute(aged.values(created_ms=ledger.now() - age))

    (found,) = standing(ledger)
    behind = {one.role: (one.lag, one.lag_ms // 10_000, one.alert) for one in found.leases}
    relay.close()
    mine.close()

    assert behind == {"relay": (1, 3, None), "welcome": (2, 9, "warn")}


def test_events_that_no_relay_has_ever_published_are_told(ledger):
    send(ledger, *"ab")

    (stream,) = standing(ledger)

    assert stream.leases == ()
    (relay,) = stream.roles
    assert (relay.role, relay.owner, relay.lag, relay.alert) == ("relay", "", 2, "page")
