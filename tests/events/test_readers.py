"""Readers that are no consumers, such as an archive: nothing that they need goes before they have it."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from agentbus.core.timespec import following
from agentbus.errors import ConfigError
from agentbus.events import Consumer, Ledger, Relay, consumer, register as declare, standing
from agentbus.queues import janitor
from tests.events.shop import (
    STREAM,
    act,
    effects,
    entries,
    expire,
    pass_by,
    register,
    rows,
    send,
    uuids,
)

ARCHIVE = "archive:a"
ROLE = f"reader:{ARCHIVE}"


@pytest.fixture
def keep(bus):
    """Return a function that says up to which id the archive has read; None: it needs nothing more."""

    def _keep(read: str | None) -> None:
        needed = None if read is None else following(tuple(map(int, read.split("-"))))
        bus._run("keep", janitor.keep_events(bus.scope, ARCHIVE, STREAM, needed))

    return _keep


def published(ledger) -> list[str]:
    return [row.event_uuid for row in rows(ledger, "outbox") if row.position_ms is not None]


def turns(relay, number: int = 2) -> None:
    """Have what was said noted, and then acted on."""
    for _ in range(number):
        relay.run_once()


def wipe(valkey, bus) -> None:
    """Have the server lose all that it knows of the stream."""
    keys = bus.scope.keys
    valkey.ask("DEL", keys.events(STREAM), keys.relay(STREAM), keys.event_readers(STREAM))


def passed(ledger, relay, valkey, project, name: str = "welcome") -> list[str]:
    """Publish three events, have a consumer pass them all, and return their ids."""
    register(ledger, name)
    send(ledger, *"abc")
    relay.run_once()
    ids = [entry["id"] for entry in entries(valkey, project)]
    pass_by(ledger, name, ids[-1])
    return ids


def test_what_an_archive_has_not_read_is_kept_in_the_stream_and_in_the_outbox(
    ledger, relay, keep, valkey, project
):
    keep("0-0")
    ids = passed(ledger, relay, valkey, project)

    turns(relay)
    whole = uuids(valkey, project), published(ledger)
    keep(ids[1])
    turns(relay)

    assert whole == (["a", "b", "c"], ["a", "b", "c"])
    assert published(ledger) == ["c"]
    # The last that was passed stays, as it does without an archive.
    assert uuids(valkey, project) == ["b", "c"]


def test_an_archive_that_lets_go_is_forgotten(ledger, relay, keep, bus, valkey, project):
    keep("0-0")
    passed(ledger, relay, valkey, project)
    turns(relay)

    keep(None)
    turns(relay, 3)

    assert uuids(valkey, project) == ["c"]
    assert published(ledger) == []
    assert {row.role for row in rows(ledger, "lease")} == {"relay", "welcome"}
    # The relays of other ledgers have to see it, too.
    kept = valkey.ask("HGETALL", bus.scope.keys.event_readers(STREAM))
    assert kept == [ARCHIVE.encode(), b"none"]


def test_without_a_consumer_nothing_goes_that_an_archive_has_read(
    ledger, relay, keep, valkey, project
):
    send(ledger, "a")
    relay.run_once()
    keep(entries(valkey, project)[-1]["id"])

    turns(relay)

    assert (uuids(valkey, project), published(ledger)) == (["a"], ["a"])


def test_after_a_server_was_wiped_what_an_archive_needs_is_published_again(
    ledger, relay, bus, keep, valkey, project
):
    keep("0-0")
    ids = passed(ledger, relay, valkey, project)
    keep(ids[0])
    turns(relay)

    wipe(valkey, bus)
    # The archive has not come back, and its hold is lost with all else.
    turns(relay)

    found = entries(valkey, project)
    assert [entry["event_uuid"] for entry in found] == ["b", "c"]
    assert all(_numbers(entry["id"]) > _numbers(ids[-1]) for entry in found)
    assert published(ledger) == ["b", "c"]


def test_another_relay_knows_what_an_archive_needs(ledger, relay, bus, keep, valkey, project):
    keep("0-0")
    passed(ledger, relay, valkey, project)
    turns(relay)

    wipe(valkey, bus)
    expire(ledger)
    other = Relay(ledger, bus)
    turns(other)
    other.close()

    assert uuids(valkey, project) == ["a", "b", "c"]


def test_what_is_published_again_for_an_archive_has_no_effect_again(
    ledger, bus, keep, valkey, project
):
    mine = Consumer(declare(act, STREAM, name="welcome"), ledger, bus)
    relay = Relay(ledger, bus, keep_processed=0)
    keep("0-0")
    send(ledger, *"ab")
    relay.run_once()
    mine.run_once()
    turns(relay)

    wipe(valkey, bus)
    turns(relay)
    mine.run_once()
    relay.close()
    mine.close()

    assert uuids(valkey, project) == ["a", "b"]
    assert effects(ledger) == ["a", "b"]


def test_an_archive_that_begins_late_holds_what_follows(ledger, relay, keep, valkey, project):
    passed(ledger, relay, valkey, project)
    turns(relay)

    keep("0-0")
    send(ledger, "d")
    relay.run_once()
    pass_by(ledger, "welcome", entries(valkey, project)[-1]["id"])
    turns(relay)

    assert (uuids(valkey, project), published(ledger)) == (["c", "d"], ["d"])


def test_an_archive_never_goes_back_in_the_ledger(ledger, relay, keep, valkey, project):
    keep("0-0")
    ids = passed(ledger, relay, valkey, project)
    keep(ids[1])
    turns(relay)

    keep(ids[0])
    turns(relay)

    (row,) = [row for row in rows(ledger, "lease") if row.role == ROLE]
    assert f"{row.checkpoint_ms}-{row.checkpoint_seq}" == ids[1]


@pytest.mark.parametrize("needed", ["soon", "-", "", "18446744073709551615-0", "7"])
def test_what_a_stranger_says_that_it_needs_moves_no_id(
    ledger, relay, bus, valkey, project, needed
):
    ids = passed(ledger, relay, valkey, project)
    valkey.ask("HSET", bus.scope.keys.event_readers(STREAM), b"\xff\0", needed)

    turns(relay)
    send(ledger, "d")
    relay.run_once()

    assert uuids(valkey, project)[-1] == "d"
    (row,) = [row for row in rows(ledger, "lease") if row.role.startswith("reader:")]
    assert (row.checkpoint_ms, row.checkpoint_seq) <= _numbers(ids[-1])
    assert _numbers(entries(valkey, project)[-1]["id"])[0] < 2**53


def test_a_full_stream_waits_for_an_archive_and_tells_which(ledger, bus, keep, valkey, project):
    relay = Relay(ledger, bus, bound=3)
    keep("0-0")
    ids = passed(ledger, relay, valkey, project)
    turns(relay)
    send(ledger, "d")

    turns(relay)
    (found,) = standing(ledger)
    behind = {one.role: one.lag for one in found.leases}
    keep(ids[-1])
    turns(relay, 3)
    relay.close()

    assert behind == {"relay": 1, ROLE: 4, "welcome": 1}
    assert uuids(valkey, project) == ["c", "d"]


def test_status_tells_for_whom_events_are_kept(
    sqlite_database, engines, bus, keep, valkey, project, real_shell
):
    ledger = Ledger(engines(sqlite_database))
    ledger.create()
    keep("0-0")
    relay = Relay(ledger, bus)
    passed(ledger, relay, valkey, project)
    turns(relay)
    relay.close()
    with ledger.transaction() as connection:
        aged = sa.update(ledger.tables.outbox).values(created_ms=ledger.now() - 120_000)
        connection.execute(aged)

    for verb in ("events", "outbox"):
        done = real_shell.run(verb, "status", "--database", sqlite_database)

        assert done.returncode == 0
        assert f"3 events are kept for the reader {ARCHIVE}, the oldest since 2m" in done.stderr


def test_no_consumer_takes_the_role_of_a_reader():
    with pytest.raises(ConfigError, match="reader:"):
        consumer(STREAM, name=ROLE)(act)


def _numbers(entry_id: str) -> tuple[int, int]:
    ms, seq = map(int, entry_id.split("-"))
    return ms, seq
