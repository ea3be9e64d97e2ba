"""Consumers that are made known, forgotten, and moved past events."""

from __future__ import annotations

import json
import threading

import pytest

from agentbus.errors import EventsLost, NotFound, Refused, UsageError
from agentbus.events import (
    forget_consumer,
    forget_reader,
    parked,
    register_consumer,
    skip_events,
    standing,
)
from agentbus.queues import janitor
from tests.events.shop import STREAM, effects, entries, expire, rows, send, uuids


def fail(event, session) -> None:
    """Stand for a handler that can never act on the second event."""
    from tests.events.shop import act

    act(event, session)
    if event.event_uuid == "b":
        raise ValueError("never")


def clear_outbox(ledger) -> None:
    with ledger.transaction() as connection:
        connection.execute(ledger.tables.outbox.delete())


# -- known before the first run --------------------------------------------------------------------


def test_nothing_is_removed_before_a_registered_consumer_has_passed_it(
    ledger, relay, consume, valkey, project
):
    assert register_consumer(ledger, STREAM, "late")
    send(ledger, *"abc")
    relay.run_once()
    consume(name="first").run_once()
    relay.run_once()

    assert uuids(valkey, project) == ["a", "b", "c"]
    assert consume(name="late").run_once() == 3


def test_a_consumer_may_begin_behind_what_is_published(ledger, relay, consume):
    send(ledger, *"ab")
    relay.run_once()

    assert register_consumer(ledger, STREAM, "late", past=True)
    send(ledger, "c")
    relay.run_once()
    consume(name="late").run_once()

    assert effects(ledger) == ["c"]


def test_a_consumer_that_is_known_stays_where_it_is(ledger, relay, consume):
    send(ledger, *"ab")
    relay.run_once()
    consume().run_once()
    before = rows(ledger, "lease")

    assert not register_consumer(ledger, STREAM, "welcome", past=True)

    assert rows(ledger, "lease") == before


@pytest.mark.parametrize("change", [register_consumer, forget_consumer])
def test_the_relay_is_no_consumer(ledger, change):
    with pytest.raises(UsageError, match="cannot be a consumer's name"):
        change(ledger, STREAM, "relay")


# -- gone for good ---------------------------------------------------------------------------------


def test_nothing_is_kept_for_a_forgotten_consumer(ledger, relay, consume, valkey, project):
    register_consumer(ledger, STREAM, "gone")
    send(ledger, *"abc")
    relay.run_once()
    consume().run_once()

    assert forget_consumer(ledger, STREAM, "gone") == 0
    relay.run_once()

    assert uuids(valkey, project) == ["c"]
    assert [one.role for one in standing(ledger)[0].leases] == ["relay", "welcome"]


def test_a_forgotten_consumer_that_comes_back_acts_on_nothing_twice(ledger, relay, consume):
    register_consumer(ledger, STREAM, "other")
    send(ledger, *"ab")
    relay.run_once()
    first = consume()
    first.run_once()
    first.close()

    forget_consumer(ledger, STREAM, "welcome")
    again = consume()
    again.run_once()

    assert effects(ledger) == ["a", "b"]
    assert again.counts["duplicates"] == 2


def test_a_consumer_that_runs_is_not_forgotten(ledger, relay, consume):
    send(ledger, "a")
    relay.run_once()
    consume().run_once()

    with pytest.raises(Refused, match="runs"):
        forget_consumer(ledger, STREAM, "welcome", force=True)

    expire(ledger)
    assert forget_consumer(ledger, STREAM, "welcome") == 0


def test_parked_events_are_dropped_only_when_that_is_asked_for(ledger, relay, consume):
    send(ledger, *"abc")
    relay.run_once()
    mine = consume(fail, on_error="park", attempts=1)
    mine.run_once()
    mine.close()

    with pytest.raises(Refused, match="parked events: 1"):
        forget_consumer(ledger, STREAM, "welcome")
    assert len(parked(ledger)) == 1

    assert forget_consumer(ledger, STREAM, "welcome", force=True) == 1
    assert parked(ledger) == []


def test_who_is_not_there_cannot_be_forgotten_or_moved(ledger, bus):
    with pytest.raises(NotFound, match="no consumer 'nobody'"):
        forget_consumer(ledger, STREAM, "nobody")
    with pytest.raises(NotFound, match="no consumer 'nobody'"):
        skip_events(ledger, bus, STREAM, "nobody")


def test_nothing_is_kept_for_an_archive_that_is_gone(ledger, bus, relay, consume):
    bus._run("keep", janitor.keep_events(bus.scope, "archive:a", STREAM, "0-1"))
    send(ledger, *"ab")
    relay.run_once()
    consume().run_once()
    relay.run_once()
    roles = {row.role: row for row in rows(ledger, "lease")}
    assert len(rows(ledger, "outbox")) == 2

    forget_reader(bus, STREAM, "reader:archive:a")
    relay.run_once()
    relay.run_once()

    assert "reader:archive:a" in roles
    assert rows(ledger, "outbox") == []
    assert "reader:archive:a" not in {row.role for row in rows(ledger, "lease")}


# -- moved past events -----------------------------------------------------------------------------


def test_what_others_trimmed_is_skipped_and_no_more(ledger, bus, relay, consume, valkey, project):
    send(ledger, *"abcd")
    relay.run_once()
    mine = consume(at_once=1)
    mine._turn()
    valkey.ask("XTRIM", f"{project}:ev:shop%3Aorders", "MAXLEN", 1)
    clear_outbox(ledger)
    with pytest.raises(EventsLost, match="skip_events"):
        mine.run_once()

    assert skip_events(ledger, bus, STREAM, "welcome").events == 3

    # Of the three, one had been acted on.
    assert consume().run_once() == 1
    assert effects(ledger) == ["a", "d"]


def test_what_was_purged_is_skipped(ledger, bus, relay, consume, valkey, project):
    from tests.events.shop import pass_by

    send(ledger, *"abcd")
    relay.run_once()
    first = entries(valkey, project)[0]
    mine = consume()
    mine.run_once()
    mine.close()
    relay.run_once()
    pass_by(ledger, "welcome", first["id"])
    with pytest.raises(EventsLost):
        consume().run_once()

    skip_events(ledger, bus, STREAM, "welcome")
    send(ledger, "e")
    relay.run_once()

    assert consume().run_once() == 1
    assert effects(ledger) == [*"abcde"]


def test_nothing_is_skipped_where_nothing_is_lost(ledger, bus, relay, consume):
    send(ledger, *"ab")
    relay.run_once()
    mine = consume(at_once=1)
    mine._turn()
    mine.close()

    done = skip_events(ledger, bus, STREAM, "welcome")

    assert (done.events, done.before) == (0, done.after)
    consume().run_once()
    assert effects(ledger) == ["a", "b"]


def test_an_event_that_a_consumer_is_stopped_by_is_skipped_while_it_runs(
    ledger, bus, relay, consume, valkey, project
):
    send(ledger, *"abc")
    relay.run_once()
    mine = consume(fail)
    done = threading.Event()
    thread = threading.Thread(target=mine.run, args=(lambda _passed: seen(),))

    def seen() -> None:
        if effects(ledger)[-1] == "c":
            done.set()

    # From then on it is known.
    mine.run_once()
    thread.start()
    try:
        poison = entries(valkey, project)[1]["id"]
        skipped = skip_events(ledger, bus, STREAM, "welcome", to=poison)
        assert done.wait(60)
    finally:
        mine.stop()
        thread.join(60)

    assert skipped.after == poison
    assert effects(ledger) == ["a", "c"]
    assert mine.failure is None
    assert {row.event_uuid for row in rows(ledger, "processed")} == {"a", "b", "c"}


def test_what_was_skipped_does_not_come_back_from_a_wiped_server(
    ledger, bus, relay, consume, valkey, project
):
    register_consumer(ledger, STREAM, "other")
    send(ledger, *"abc")
    relay.run_once()
    consume(at_once=1)._turn()

    assert skip_events(ledger, bus, STREAM, "welcome", to="end").events == 2
    valkey.ask("DEL", f"{project}:ev:shop%3Aorders")
    relay.run_once()
    again = consume()
    again.run_once()

    assert uuids(valkey, project) == ["a", "b", "c"]
    assert effects(ledger) == ["a"]


@pytest.mark.parametrize("to", ["0-0", "99999999999999-0"])
def test_nobody_is_moved_back_or_beyond_what_is_published(ledger, bus, relay, consume, to):
    send(ledger, "a")
    relay.run_once()
    consume().run_once()
    before = [row.checkpoint_ms for row in rows(ledger, "lease")]

    with pytest.raises(UsageError, match="not between"):
        skip_events(ledger, bus, STREAM, "welcome", to=to)

    assert [row.checkpoint_ms for row in rows(ledger, "lease")] == before


def test_what_is_no_id_is_refused(ledger, bus):
    with pytest.raises(UsageError, match="not the id of an entry"):
        skip_events(ledger, bus, STREAM, "welcome", to="soon")


# -- through the shell -----------------------------------------------------------------------------


def test_consumers_are_seen_to_through_the_shell(ledger, database, real_shell):
    real_shell.environment["AGENTBUS_DATABASE"] = database
    send(ledger, *"ab")
    assert real_shell.run("outbox", "relay", "--once").returncode == 0

    known = real_shell.run("events", "register", STREAM, "late", "--json")
    again = real_shell.run("events", "register", STREAM, "late")
    skipped = real_shell.run("events", "skip", STREAM, "late", "--to", "end")
    stays = real_shell.run("events", "skip", STREAM, "late")
    gone = real_shell.run("events", "forget", STREAM, "late")
    nobody = real_shell.run("events", "forget", STREAM, "late")

    assert json.loads(known.stdout) == {"stream": STREAM, "consumer": "late", "new": True}
    assert again.stdout == "late is known already, and stays where it is\n"
    assert skipped.stdout.endswith(": 2 events skipped\n")
    assert stays.stdout.endswith(": nothing was skipped\n")
    assert gone.stdout == "late is forgotten\n"
    assert nobody.returncode == 5
    assert "no consumer 'late'" in nobody.stderr


def test_options_of_other_actions_are_refused(ledger, database, real_shell):
    real_shell.environment["AGENTBUS_DATABASE"] = database

    refused = real_shell.run("events", "skip", STREAM, "late", "--force")

    assert refused.returncode == 2
    assert "--force goes with forget alone" in refused.stderr
