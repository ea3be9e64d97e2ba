"""Rows of processed events are deleted once they are old, by relays and by consumers that are told to."""

from __future__ import annotations

import pytest

from agentbus.errors import ConfigError
from agentbus.events import Cleanup, Consumer, Relay, register
from agentbus.events.cleanup import Cleaner
from tests.events.shop import STREAM, act, rows, send


def handled(ledger, bus, *names: str) -> None:
    """Send events, have them handled, and removed from the outbox."""
    send(ledger, *names)
    relay = Relay(ledger, bus)
    relay.run_once()
    mine = Consumer(register(act, STREAM, name="welcome"), ledger, bus)
    mine.run_once()
    mine.close()
    relay.run_once()
    relay.close()


def test_a_consumer_deletes_the_rows_that_are_older_than_its_retention(ledger, bus):
    handled(ledger, bus, *"abcde")
    made = register(act, STREAM, name="welcome")
    for retention, left in ((3600.0, 5), (-1.0, 0)):
        mine = Consumer(made, ledger, bus, cleanup=Cleanup(retention, batch=2))
        mine.run_once()
        mine.close()

        assert len(rows(ledger, "processed")) == left


def test_rows_stay_until_all_consumers_have_passed_their_events(ledger, bus):
    send(ledger, "a")
    relay = Relay(ledger, bus)
    relay.run_once()
    relay.close()
    for name in ("slow", "welcome"):
        mine = Consumer(register(act, STREAM, name=name), ledger, bus, cleanup=Cleanup(-1.0))
        mine._hold()
        if name == "welcome":
            mine.run_once()
        mine.close()

    assert [row.consumer for row in rows(ledger, "processed")] == ["welcome"]


def test_the_next_cleanup_comes_after_the_interval(ledger, bus):
    handled(ledger, bus, "a")
    cleaner = Cleaner(ledger, Cleanup(-1.0, 3600.0))

    assert cleaner.clean(STREAM) == 1
    handled(ledger, bus, "b")
    assert cleaner.clean(STREAM) == 0


@pytest.mark.parametrize("wrong", [{"interval": -1.0}, {"batch": 0}])
def test_a_cleanup_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ConfigError, match="cleanup"):
        Cleanup(**wrong)
