"""Archives of events: each published entry once, and nothing of them goes before it is archived."""

from __future__ import annotations

import datetime

import pyarrow.dataset
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

import agentbus
from agentbus.errors import UsageError
from agentbus.events import Ledger, Relay, send_event
from agentbus.pipeline.archives import verify as verifying
from agentbus.pipeline.archives.archiver import release
from agentbus.pipeline.archives.compaction import compact
from agentbus.pipeline.archives.files import archive_files
from agentbus.pipeline.archives.reader import read
from agentbus.pipeline.replays.selection import Wanted, check
from agentbus.pipeline.rows.typed_columns import typed
from tests.events.shop import pass_by, register
from tests.tiers import nightly

NAME = "shop:orders"
STREAM = "ev:shop%3Aorders"


@pytest.fixture
def ledger(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    made = Ledger(engine)
    made.create()
    yield made
    engine.dispose()


@pytest.fixture
def relay(ledger, settings):
    with agentbus.connect(settings.url, project=settings.project, agent="ada") as bus:
        made = Relay(ledger, bus)
        yield made
        made.close()


@pytest.fixture
def send(ledger, relay):
    """Return a function that sends events of these UUIDs and has them published."""

    def _send(*names: str, **metadata) -> None:
        with Session(ledger.engine) as session:
            for name in names:
                send_event(
                    *(session, NAME, "Placed", {"name": name}),
                    event_uuid=name,
                    metadata=metadata or None,
                )
            session.commit()
        relay.run_once()

    return _send


@pytest.fixture
def passes(ledger, relay, valkey, project):
    """Return a function that has a consumer pass all that there is, and the relay act on that."""

    def _passes() -> None:
        register(ledger, "welcome", NAME)
        pass_by(ledger, "welcome", ids(valkey, project)[-1])
        for _ in range(3):
            relay.run_once()

    return _passes


def ids(valkey, project):
    found = valkey.ask("XRANGE", f"{project}:{STREAM}", "-", "+")
    return [entry_id.decode() for entry_id, _ in found]


def archived(path):
    """Return the UUIDs that any reader of Parquet sees, sorted."""
    table = pyarrow.dataset.dataset(archive_files(path), partitioning="hive").to_table(
        ["kind", "fields"]
    )
    rows = table.to_pylist()
    return sorted(dict(row["fields"])["event_uuid"] for row in rows if row["kind"] == "event")


def test_events_are_archived_once_with_what_they_say(
    spark, run, send, settings, path, valkey, project
):
    send("a", "b", correlation_id="order-7")
    first = run()
    send("c")
    second = run()

    rows = {
        row["event_uuid"]: row
        for row in typed(read(spark, path, kinds=["event"]), "event").collect()
    }
    states = verifying.status(settings, path).streams
    verified = verifying.verify(spark, settings, path)
    # All days are closed by then: what was typed from fields is in columns now.
    compact(spark, path, before=f"{datetime.datetime.now(datetime.UTC).year + 1}-12-31")
    compacted = read(spark, path, kinds=["event"]).collect()

    assert [done.rows for done in (*first, *second)] == [2, 1]
    assert sorted(rows) == ["a", "b", "c"]
    one = rows["a"]
    assert one["stream"] == STREAM
    assert (one["topic"], one["event"], one["queue"], one["agent"]) == (NAME, "Placed", None, None)
    assert (one["payload"], one["correlation_id"]) == ('{"name":"a"}', "order-7")
    assert (one["outbox_id"], one["bytes"], rows["c"]["correlation_id"]) == (1, 12, None)
    assert abs((one["created_at"] - one["time"]).total_seconds()) < 3600
    assert set(one["fields"]) == {"event_uuid", "outbox_id", "metadata", "ledger"}
    assert one["id"] == ids(valkey, project)[0]
    assert [(state.stream, state.kind, state.rows) for state in states] == [(STREAM, "event", 3)]
    assert [(v.stream, v.rows, v.ok) for v in verified] == [(STREAM, 3, True)]
    assert [(r["event_uuid"], r["outbox_id"]) for r in compacted] == [("a", 1), ("b", 2), ("c", 3)]


def test_an_archive_that_knew_no_events_takes_those_that_are_there(run, send, path):
    send("a")
    run(wanted="channel,queues,dead-letters,metrics")

    run()

    assert archived(path) == ["a"]


def test_events_are_chosen_by_their_word_or_by_their_stream(run, send, valkey, project, path):
    send("a")
    valkey.ask("XADD", f"{project}:q:mail", "1-1", "payload", "1")

    (by_word,) = run(wanted="events")
    send("b")
    (by_name,) = run(wanted=STREAM)

    assert (by_word.rows, by_name.rows) == (1, 1)
    assert archived(path) == ["a", "b"]


def test_what_is_held_goes_when_it_is_archived(run, send, passes, ledger, valkey, project):
    run(hold=True)
    send("a", "b")
    run(hold=True)
    send("c", "d")
    passes()
    held = _kept(ledger)

    run(hold=True)
    passes()

    assert held == ["c", "d"]
    assert _kept(ledger) == []
    assert len(ids(valkey, project)) == 1


def test_what_was_held_is_released(run, send, passes, settings, ledger, path, valkey, project):
    send("a")
    run(hold=True)
    send("b", "c")
    passes()

    released = release(settings, path)
    passes()

    assert released == [STREAM]
    assert (_kept(ledger), len(ids(valkey, project))) == ([], 1)
    # What is left is the relay's: no reader needs anything.
    assert valkey.ask("HVALS", f"{project}:{STREAM}:readers") == [b"none"]


@pytest.mark.slow
def test_events_that_a_wiped_server_lost_are_archived_after_all(
    spark, run, send, passes, relay, settings, path, valkey, project
):
    send("a")
    run(hold=True)
    send("b", "c")
    passes()

    valkey.ask("DEL", *(f"{project}:{STREAM}{end}" for end in ("", ":relay", ":readers")))
    # The relay is there before the archive, which alone knew how far it was.
    for _ in range(3):
        relay.run_once()
    run(hold=True)

    assert archived(path) == ["a", "b", "c"]
    assert all(v.ok for v in verifying.verify(spark, settings, path))


def test_events_that_are_published_again_are_archived_again_under_new_ids(
    run, send, relay, path, valkey, project
):
    send("a", "b")
    run()

    # Somebody removed what was there, and no consumer had passed it.
    valkey.ask("XTRIM", f"{project}:{STREAM}", "MAXLEN", 0)
    relay.run_once()
    (done,) = run()

    assert (done.rows, done.lost) == (2, 0)
    assert archived(path) == ["a", "a", "b", "b"]


@pytest.mark.slow
def test_a_stream_that_was_emptied_and_goes_on_has_its_gap_counted(
    spark, run, settings, path, valkey, project
):
    key = f"{project}:{STREAM}"
    for number in (1, 2, 3):
        valkey.ask("XADD", key, f"{number}-0", "event_uuid", f"{number}")
        if number == 1:
            run()
    valkey.ask("XTRIM", key, "MAXLEN", 0)
    (emptied,) = run()
    valkey.ask("XADD", key, "4-0", "event_uuid", "4")
    (went_on,) = run()

    assert [(done.rows, done.lost) for done in (emptied, went_on)] == [(0, 2), (1, 0)]
    assert archived(path) == ["1", "4"]
    (verified,) = verifying.verify(spark, settings, path)
    assert (verified.rows, verified.lost, verified.ok) == (2, 2, True)


@pytest.mark.parametrize("more", [0, nightly(5)])
def test_events_whose_end_a_server_lost_stop_no_archive(
    more, spark, run, send, relay, settings, path, valkey, project
):
    send("a", "b", "c")
    run()
    key = f"{project}:{STREAM}"
    # As a server that comes back with what it had saved before.
    found = valkey.ask("XRANGE", key, "-", "+", "COUNT", 1)
    valkey.ask("DEL", key)
    for entry_id, flat in found:
        valkey.ask("XADD", key, entry_id, *flat)

    before = run(), verifying.status(settings, path).lag
    send(*(f"d{n}" for n in range(more)))
    (after,) = run()

    assert before == ([], 0)
    assert (after.rows, after.lost) == (2 + more, 0)
    assert archived(path) == sorted(["a", "b", "b", "c", "c", *(f"d{n}" for n in range(more))])
    assert all(v.ok for v in verifying.verify(spark, settings, path))


def test_events_are_replayed_by_their_relay_alone():
    with pytest.raises(UsageError, match="their relay alone"):
        check(Wanted(streams=(STREAM,), queue="mail"))


def _kept(ledger):
    """Return the UUIDs that are still in the outbox."""
    box = ledger.tables.outbox
    with ledger.engine.connect() as connection:
        return list(connection.execute(sa.select(box.c.event_uuid).order_by(box.c.id)).scalars())
