"""The consumer: effects in the ledger's database happen once for each event that was committed."""

from __future__ import annotations

import contextlib
import decimal
import functools
import os
import select
import sys
import threading
import types

import pytest
import sqlalchemy as sa

import agentbus
from agentbus.errors import BackendUnavailable, ConfigError, EventsLost, UsageError
from agentbus.events import (
    Consumer,
    EventSchemas,
    Guarantee,
    Ledger,
    Relay,
    StaleLease,
    consumer,
    parked,
    register,
    registered,
    registration,
)
from agentbus.testing import MemoryServer
from tests.events.shop import (
    STREAM,
    act,
    effects,
    entries,
    expire,
    pass_by,
    register as make_known,
    rows,
    send,
    uuids,
)


class Killed(BaseException):
    """Stands for the end of a process, which no handler of errors sees."""


def killer(step: str):
    def at(reached: str) -> None:
        if reached == step:
            raise Killed

    return at


def test_a_handler_acts_on_each_event_once_in_order(ledger, relay, consume):
    send(ledger, *"abc")
    relay.run_once()
    seen = []

    def handle(event, session) -> None:
        seen.append(event)
        act(event, session)

    mine = consume(handle)

    assert mine.run_once() == 3
    assert mine.run_once() == 0

    assert effects(ledger) == ["a", "b", "c"]
    assert [event.event_uuid for event in seen] == ["a", "b", "c"]
    assert (seen[0].stream_name, seen[0].event_type, seen[0].outbox_id) == (STREAM, "Placed", 1)
    assert seen[0].payload == {"name": "a"}
    assert seen[0].metadata["__creation_timestamp_ms__"] > 0
    assert mine.counts == {"handled": 3, "duplicates": 0}
    lease = next(row for row in rows(ledger, "lease") if row.role == "welcome")
    assert f"{lease.checkpoint_ms}-{lease.checkpoint_seq}" == seen[-1].redis_id
    assert lease.checkpoint_outbox_id == 3


def test_a_child_that_a_handler_forks_ends_outside_of_its_parents_transaction(
    ledger, relay, consume
):
    send(ledger, *"ab")
    relay.run_once()
    parent, ended = os.getpid(), []

    def handle(event, session) -> None:
        act(event, session)
        child = os.fork()
        if child == 0:
            sys.exit(3)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    mine = consume(handle)
    try:
        assert mine.run_once() == 2
    finally:
        if os.getpid() != parent:
            os._exit(9)

    assert ended == [3, 3]
    assert effects(ledger) == ["a", "b"]


def test_a_relay_and_a_consumer_among_greenlets_are_refused(ledger, relay, consume, monkeypatch):
    patcher = types.ModuleType("gevent.monkey")
    patcher.is_module_patched = lambda what: what == "socket"
    monkeypatch.setitem(sys.modules, "gevent.monkey", patcher)

    for waiting in (relay, consume()):
        with pytest.raises(UsageError, match="would stop all greenlets, since gevent"):
            waiting.run()


def test_each_consumer_acts_on_every_event(ledger, relay, consume):
    send(ledger, "a")
    relay.run_once()

    assert consume(name="one").run_once() == 1
    assert consume(name="two").run_once() == 1

    assert effects(ledger) == ["a", "a"]


def test_events_pass_a_server_in_memory(ledger):
    send(ledger, "a", "b")

    with MemoryServer() as server:
        bus = server.connect()
        with contextlib.closing(Relay(ledger, bus)) as relay:
            assert relay.run_once() == 2
        mine = register(act, STREAM, name="welcome")
        with contextlib.closing(Consumer(mine, ledger, bus)) as consumer:
            assert consumer.run_once() == 2

    assert effects(ledger) == ["a", "b"]


def test_a_duplicate_is_passed_and_not_handled(ledger, relay, consume, valkey, project):
    send(ledger, "a")
    relay.run_once()
    mine = consume()
    mine.run_once()
    entry = valkey.ask("XRANGE", f"{project}:ev:shop%3Aorders", "-", "+")[0][1]
    valkey.ask("XADD", f"{project}:ev:shop%3Aorders", "*", *entry)

    assert mine.run_once() == 1

    assert effects(ledger) == ["a"]
    assert mine.counts["duplicates"] == 1
    assert mine.run_once() == 0


@pytest.mark.parametrize(
    "step",
    [
        "consumer.leased",
        "consumer.read",
        "consumer.deduped",
        "consumer.handled",
        "consumer.checkpointed",
    ],
)
def test_what_ends_before_the_commit_did_nothing(ledger, relay, consume, step):
    send(ledger, "a", "b")
    relay.run_once()
    with pytest.raises(Killed):
        consume(at=killer(step)).run_once()
    assert effects(ledger) == []
    assert rows(ledger, "processed") == []
    expire(ledger)

    consume().run_once()

    assert effects(ledger) == ["a", "b"]


def test_what_ends_after_the_commit_did_all(ledger, relay, consume):
    send(ledger, "a", "b")
    relay.run_once()
    with pytest.raises(Killed):
        consume(at=killer("consumer.committed")).run_once()
    assert effects(ledger) == ["a"]
    expire(ledger)

    consume().run_once()

    assert effects(ledger) == ["a", "b"]


def test_of_two_consumers_of_one_name_one_waits(ledger, relay, consume):
    send(ledger, "a")
    relay.run_once()
    first, second = consume(), consume()
    first.run_once()
    send(ledger, "b")
    relay.run_once()

    assert second.run_once() == 0
    assert not second.holds
    first.close()

    assert second.run_once() == 1
    assert effects(ledger) == ["a", "b"]


def test_a_consumer_that_was_overtaken_while_it_handled_did_nothing(
    ledger, relay, consume, engines
):
    send(ledger, "a")
    relay.run_once()
    lease = ledger.tables.lease

    def overtaken(event, session) -> None:
        act(event, session)
        # As another consumer would: in SQLite nobody else can write now, so it is done from here.
        session.execute(
            sa.update(lease).where(lease.c.role == "welcome").values(token=lease.c.token + 1)
        )

    mine = consume(overtaken)

    assert mine.run_once() == 0
    assert not mine.holds

    assert effects(ledger) == []
    assert rows(ledger, "processed") == []


def test_a_stale_consumer_does_not_move_the_checkpoint_back(ledger, relay, consume):
    send(ledger, "a", "b")
    relay.run_once()
    stale, fresh = consume(at_once=1), consume()
    stale._hold()
    expire(ledger)
    assert fresh.run_once() == 2
    before = rows(ledger, "lease")

    assert stale.run_once() == 0

    assert rows(ledger, "lease") == before
    assert effects(ledger) == ["a", "b"]


def test_the_token_grows_with_every_take_over(ledger, relay, consume):
    send(ledger, "a")
    relay.run_once()
    tokens = []
    for _ in range(3):
        mine = consume()
        mine.run_once()
        tokens.append(mine._transactions.held.token)
        mine.close()

    assert tokens == [1, 2, 3]


def test_a_failing_handler_blocks_and_is_tried_again(ledger, relay, consume):
    send(ledger, *"abc")
    relay.run_once()
    attempts = []

    def handle(event, context, session) -> None:
        act(event, session)
        if event.event_uuid == "b":
            attempts.append(context.attempt)
            if len(attempts) < 3:
                raise ValueError("not yet")

    mine = consume(handle)

    assert mine.run_once() == 1
    assert mine.failure.event.event_uuid == "b"
    assert str(mine.failure.error) == "not yet"
    assert effects(ledger) == ["a"]
    assert mine.run_once() == 0
    assert mine.run_once() == 2

    assert attempts == [1, 2, 3]
    assert effects(ledger) == ["a", "b", "c"]
    assert mine.failure is None


def test_a_failing_event_is_parked_after_its_attempts(ledger, relay, consume):
    send(ledger, *"abc")
    relay.run_once()
    attempts = []

    def handle(event, context, session) -> None:
        act(event, session)
        if event.event_uuid == "b":
            attempts.append(context.attempt)
            raise ValueError("never \0 \ud800")

    mine = consume(handle, on_error="park", attempts=2)
    mine.run_once()
    mine.run_once()

    assert attempts == [1, 2]
    assert effects(ledger) == ["a", "c"]
    (letter,) = rows(ledger, "parked")
    assert (letter.consumer, letter.event_uuid, letter.attempts) == ("welcome", "b", 2)
    assert letter.error == "ValueError: never \\0 \\ud800"
    assert '"name":"b"' in letter.event
    assert rows(ledger, "attempts") == []
    assert [row.event_uuid for row in rows(ledger, "processed")] == ["a", "b", "c"]
    assert mine.counts["parked"] == 1


def test_a_handlers_changes_to_a_payload_are_not_parked(ledger, relay, consume):
    send(ledger, "a")
    relay.run_once()

    def handle(event, session) -> None:
        event.payload["price"] = decimal.Decimal(1)
        del event.payload["name"]
        raise ValueError("never")

    mine = consume(handle, on_error="park", attempts=2)
    mine.run_once()
    assert mine.failure.event.payload == {"name": "a"}
    mine.run_once()

    (one,) = parked(ledger)
    assert one.event.payload == {"name": "a"}


def test_an_event_that_ends_its_process_is_parked_after_its_attempts(ledger, relay, consume):
    send(ledger, "a", "b")
    relay.run_once()

    def crash(event, session) -> None:
        if event.event_uuid == "a":
            raise Killed
        act(event, session)

    for _ in range(2):
        with pytest.raises(Killed):
            consume(crash, on_error="park", attempts=2).run_once()
        expire(ledger)

    assert consume(crash, on_error="park", attempts=2).run_once() == 2

    (letter,) = rows(ledger, "parked")
    assert (letter.event_uuid, letter.attempts) == ("a", 2)
    assert "process ended" in letter.error
    assert effects(ledger) == ["b"]


def test_a_batch_is_one_transaction(ledger, relay, consume):
    send(ledger, *"abc")
    relay.run_once()
    sizes = []

    def handle(events, session) -> None:
        sizes.append(len(events))
        for event in events:
            act(event, session)

    mine = consume(handle, batch=True)
    assert mine.run_once() == 3
    send(ledger, "d")
    relay.run_once()
    assert mine.run_once() == 1

    assert sizes == [3, 1]
    assert effects(ledger) == ["a", "b", "c", "d"]
    assert len(rows(ledger, "processed")) == 4


def test_a_batch_holds_no_duplicates(ledger, relay, consume, valkey, project):
    send(ledger, "a", "b")
    relay.run_once()
    key = f"{project}:ev:shop%3Aorders"
    for _, flat in valkey.ask("XRANGE", key, "-", "+"):
        valkey.ask("XADD", key, "*", *flat)
    seen = []

    def handle(events, session) -> None:
        seen.extend(event.event_uuid for event in events)

    mine = consume(handle, batch=True)
    assert mine.run_once() == 4

    assert seen == ["a", "b"]
    assert mine.counts == {"handled": 2, "duplicates": 2}


def test_a_batch_that_fails_is_tried_one_by_one(ledger, relay, consume):
    send(ledger, *"abc")
    relay.run_once()

    def handle(events, session) -> None:
        for event in events:
            act(event, session)
            if event.event_uuid == "b":
                raise ValueError

    mine = consume(handle, batch=True, on_error="park", attempts=1)

    assert mine.run_once() == 3

    assert effects(ledger) == ["a", "c"]
    assert [row.event_uuid for row in rows(ledger, "parked")] == ["b"]


def test_a_failed_batchs_changes_to_payloads_are_not_seen_one_by_one(ledger, relay, consume):
    send(ledger, *"abc")
    relay.run_once()

    def handle(events, session) -> None:
        for event in events:
            act(event, session)
            if event.payload.pop("name") == "b":
                raise ValueError("b")

    consume(handle, batch=True, on_error="park", attempts=1).run_once()

    assert effects(ledger) == ["a", "c"]
    (one,) = parked(ledger)
    assert (one.event.payload, one.error) == ({"name": "b"}, "ValueError: b")


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_an_event_that_ends_its_process_in_a_batch_is_parked_after_its_attempts(
    ledger, relay, consume, attempts
):
    send(ledger, *"abc")
    relay.run_once()
    sizes = []

    def crash(events, session) -> None:
        sizes.append(len(events))
        for event in events:
            if event.event_uuid == "b":
                raise Killed
            act(event, session)

    # In a batch it cannot be known which event it was.
    for _ in range(max(2, attempts)):
        with pytest.raises(Killed):
            consume(crash, batch=True, on_error="park", attempts=attempts).run_once()
        expire(ledger)
    consume(crash, batch=True, on_error="park", attempts=attempts).run_once()

    (letter,) = rows(ledger, "parked")
    assert (letter.event_uuid, letter.attempts) == ("b", attempts)
    assert "process ended" in letter.error
    assert effects(ledger) == ["a", "c"]
    assert rows(ledger, "attempts") == []
    assert sizes[0] == 3
    assert set(sizes[1:]) == {1}


def test_a_batch_that_failed_before_a_stop_is_no_ended_process(ledger, relay, consume):
    send(ledger, "a", "b")
    relay.run_once()
    attempts = []

    def handle(events, context, session) -> None:
        attempts.append((len(events), context.attempt))
        mine.stop()
        raise ValueError("not yet")

    mine = consume(handle, batch=True, on_error="park", attempts=2)
    mine.run_once()
    mine.close()
    mine = consume(handle, batch=True, on_error="park", attempts=2)
    mine.run_once()
    mine.close()

    assert attempts == [(2, 1), (2, 1)]
    assert rows(ledger, "attempts") == []


def test_a_batch_during_which_the_database_was_lost_is_tried_again_as_one(ledger, relay, consume):
    lost = [sa.exc.OperationalError("", None, ConnectionResetError(), connection_invalidated=True)]
    sizes = []

    def at(step: str) -> None:
        if step == "consumer.deduped" and lost:
            raise lost.pop()

    send(ledger, "a", "b")
    relay.run_once()
    mine = consume(
        lambda events, session: sizes.append(len(events)), at=at, batch=True, on_error="park"
    )
    with pytest.raises(BackendUnavailable):
        mine.run_once()
    mine.run_once()

    assert sizes == [2]
    assert rows(ledger, "attempts") == []


def test_batches_are_marked_until_all_events_are_handled(ledger, relay, consume):
    send(ledger, *"abcd")
    relay.run_once()
    marks = []

    def handle(events, session) -> None:
        marks.append(session.execute(sa.select(ledger.tables.attempts)).all())

    consume(handle, batch=True, on_error="park", at_once=2).run_once()

    first, second = marks
    assert first == second
    assert [row.event_uuid for row in first] == [""]
    assert rows(ledger, "attempts") == []


def test_a_batch_of_duplicates_leaves_no_attempts(ledger, relay, consume, valkey, project):
    send(ledger, "a", "b")
    relay.run_once()
    mine = consume(lambda events, session: None, batch=True, on_error="park")
    mine.run_once()
    key = f"{project}:ev:shop%3Aorders"
    for _, flat in valkey.ask("XRANGE", key, "-", "+"):
        valkey.ask("XADD", key, "*", *flat)
    mine.run_once()

    assert mine.counts == {"handled": 2, "duplicates": 2}
    assert rows(ledger, "attempts") == []


def test_at_least_once_a_handler_runs_again_when_its_process_ended(ledger, relay, consume):
    send(ledger, "a")
    relay.run_once()
    seen = []
    least = Guarantee.AT_LEAST_ONCE
    with pytest.raises(Killed):
        consume(
            lambda event: seen.append(event.event_uuid),
            guarantee=least,
            at=killer("consumer.handled"),
        ).run_once()
    expire(ledger)

    mine = consume(lambda event, context: seen.append(context.consumer), guarantee=least)
    assert mine.run_once() == 1
    assert mine.run_once() == 0

    assert seen == ["a", "welcome"]
    assert len(rows(ledger, "processed")) == 1


def test_at_least_once_a_failing_handler_runs_again(ledger, relay, consume):
    send(ledger, "a")
    relay.run_once()
    seen = []

    def handle(event) -> None:
        seen.append(event.event_uuid)
        if len(seen) < 2:
            raise ValueError

    mine = consume(handle, guarantee=Guarantee.AT_LEAST_ONCE)

    assert mine.run_once() == 0
    assert mine.run_once() == 1
    assert seen == ["a", "a"]


def test_at_most_once_a_handler_never_runs_again(ledger, relay, consume):
    send(ledger, "a", "b")
    relay.run_once()
    seen = []

    def handle(event) -> None:
        seen.append(event.event_uuid)
        raise ValueError

    mine = consume(handle, guarantee=Guarantee.AT_MOST_ONCE)

    assert mine.run_once() == 2
    assert mine.failure is None
    assert mine.counts["failed"] == 2
    assert seen == ["a", "b"]


def test_an_unknown_type_blocks_and_is_counted(ledger, relay, consume):
    send(ledger, "a")
    relay.run_once()
    schemas = EventSchemas()
    schemas.register(STREAM, "Other", {"type": "object"})
    mine = consume(on_error="park", attempts=1, schemas=schemas)

    assert mine.run_once() == 0
    assert mine.run_once() == 0
    assert mine.counts["unknown"] == 2
    assert effects(ledger) == []

    schemas.register(STREAM, "Placed", {"type": "object"})
    assert mine.run_once() == 1
    assert effects(ledger) == ["a"]


def test_a_payload_that_does_not_fit_its_schema_is_a_failure(ledger, relay, consume):
    send(ledger, "a", "b")
    relay.run_once()
    schemas = EventSchemas()
    schemas.register(STREAM, "Placed", {"properties": {"name": {"const": "b"}}})
    mine = consume(on_error="park", attempts=1, schemas=schemas)

    assert mine.run_once() == 2

    assert effects(ledger) == ["b"]
    assert [row.event_uuid for row in rows(ledger, "parked")] == ["a"]


def test_an_entry_that_is_no_event_is_passed(ledger, relay, consume, valkey, project):
    send(ledger, "a")
    relay.run_once()
    valkey.ask("XADD", f"{project}:ev:shop%3Aorders", "*", "hello", "world")
    send(ledger, "b")
    relay.run_once()
    mine = consume()

    assert mine.run_once() == 3

    assert effects(ledger) == ["a", "b"]
    assert mine.counts["foreign"] == 1


def test_after_a_wiped_server_no_event_is_lost_or_handled_twice(
    ledger, relay, consume, valkey, project
):
    send(ledger, *"abc")
    relay.run_once()
    quick, slow = consume(name="quick"), consume(name="slow", at_once=1)
    quick.run_once()
    slow._turn()
    valkey.ask("DEL", f"{project}:ev:shop%3Aorders", f"{project}:ev:shop%3Aorders:relay")
    assert quick.run_once() == 0
    send(ledger, "d")
    relay.run_once()

    quick.run_once()
    slow.run_once()

    assert effects(ledger) == sorted("abcd" * 2)


def test_duplicates_are_never_parked(ledger, relay, consume, valkey, project):
    send(ledger, *"ab")
    make_known(ledger, "slow")
    relay.run_once()
    mine = consume(on_error="park", attempts=1)
    mine.run_once()

    for _ in range(2):
        valkey.ask("DEL", f"{project}:ev:shop%3Aorders")
        relay.run_once()
        relay.run_once()
        assert mine.run_once() == 2

    assert mine.counts == {"handled": 2, "duplicates": 4}
    assert rows(ledger, "attempts") == []


def test_what_others_trimmed_comes_again_before_what_is_left(
    ledger, relay, consume, valkey, project
):
    send(ledger, *"abcd")
    relay.run_once()
    seen = []
    mine = consume(lambda event, session: seen.append(event.event_uuid), at_once=1)
    mine._turn()
    valkey.ask("XTRIM", f"{project}:ev:shop%3Aorders", "MAXLEN", 1)

    assert mine.run_once() == 0
    relay.run_once()
    mine.run_once()

    assert seen == ["a", "b", "c", "d"]


def test_events_that_nobody_has_any_more_are_told(ledger, relay, consume, valkey, project):
    send(ledger, *"abcd")
    relay.run_once()
    mine = consume(at_once=1)
    mine._turn()
    valkey.ask("XTRIM", f"{project}:ev:shop%3Aorders", "MAXLEN", 1)
    with ledger.transaction() as connection:
        connection.execute(sa.delete(ledger.tables.outbox))

    with pytest.raises(EventsLost, match="up to 3 events"):
        mine.run_once()


def test_a_checkpoint_below_what_was_purged_is_told(ledger, relay, consume, valkey, project):
    send(ledger, *"abcd")
    relay.run_once()
    first = entries(valkey, project)[0]
    mine = consume()
    mine.run_once()
    mine.close()
    relay.run_once()
    assert rows(ledger, "outbox") == []
    pass_by(ledger, "welcome", first["id"])

    with pytest.raises(EventsLost):
        consume().run_once()


def test_a_new_consumer_begins_with_what_is_there(ledger, relay, consume, valkey, project):
    send(ledger, *"abc")
    relay.run_once()
    consume(name="first").run_once()
    relay.run_once()
    assert uuids(valkey, project) == ["c"]

    assert consume(name="second").run_once() == 1


def test_a_running_consumer_handles_what_comes_and_stops(ledger, relay, consume):
    came = threading.Event()

    def handle(event, session) -> None:
        act(event, session)
        came.set()

    mine = consume(handle)
    thread = threading.Thread(target=mine.run)
    thread.start()
    try:
        send(ledger, "a")
        relay.run_once()
        assert came.wait(30)
    finally:
        mine.stop()
        thread.join()

    assert effects(ledger) == ["a"]
    assert all(row.owner == "" for row in rows(ledger, "lease") if row.role == "welcome")


def test_a_consumer_without_a_server_says_so_and_goes_on(ledger, own_server, project):
    with agentbus.connect(own_server.url, project=project, agent="ada", deadline=1) as bus:
        relay = Relay(ledger, bus)
        mine = Consumer(register(act, STREAM, name="welcome"), ledger, bus)
        send(ledger, "a")
        relay.run_once()
        own_server.kill()
        with pytest.raises(BackendUnavailable):
            mine.run_once()
        own_server.start()

        assert mine.run_once() == 1
        mine.close()
        relay.close()


def test_rows_of_duplicates_are_purged_when_none_can_come(ledger, bus, consume):
    send(ledger, "a", "b")
    relay = Relay(ledger, bus, keep_processed=-1)
    relay.run_once()
    slow = consume(name="slow", at_once=1)
    slow._turn()
    consume(name="quick").run_once()
    relay.run_once()

    kept = [(row.consumer, row.event_uuid) for row in rows(ledger, "processed")]
    relay.close()

    assert kept == [("quick", "b")]


def let_out(session, statement) -> None:
    session.execute(statement)


def wrap(session, statement) -> None:
    try:
        session.execute(statement)
    except sa.exc.DBAPIError as error:
        raise ValueError("my own") from error


def swallow(session, statement) -> None:
    with contextlib.suppress(Exception):
        session.execute(statement)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("treat", [let_out, wrap, swallow])
def test_a_connection_that_is_cut_while_a_handler_runs_is_no_fault_of_its(
    postgres_database, engines, bus, caplog, treat, batch
):
    ledger = Ledger(engines(postgres_database))
    ledger.create()
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE effects (uuid TEXT)")
    send(ledger, "a", "b")
    relay = Relay(ledger, bus)
    relay.run_once()
    relay.close()
    cut: list[int] = []

    def handle(events, session):
        if not cut:
            cut.append(session.execute(sa.text("SELECT pg_backend_pid()")).scalar_one())
            with ledger.engine.connect() as other:
                other.exec_driver_sql(f"SELECT pg_terminate_backend({cut[0]})")
            treat(session, sa.text("SELECT 1"))
        for event in events if batch else [events]:
            act(event, session)

    mine = register(handle, STREAM, name="parking", on_error="park", attempts=1, batch=batch)
    parking = Consumer(mine, ledger, bus)

    with pytest.raises(BackendUnavailable):
        parking.run_once()

    assert parking.counts["failed"] == 0
    assert caplog.text == ""
    assert parking.run_once() == 2
    parking.close()
    assert effects(ledger) == ["a", "b"]
    assert rows(ledger, "parked") == rows(ledger, "attempts") == []


def test_a_running_consumer_waits_for_a_database_that_takes_no_writes(
    postgres_database, engines, bus, caplog
):
    ledger = Ledger(engines(postgres_database))
    ledger.create()
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE effects (uuid TEXT)")
    send(ledger, "a", "b")
    relay = Relay(ledger, bus)
    relay.run_once()
    relay.close()
    mine = Consumer(register(act, STREAM, name="parking", on_error="park"), ledger, bus, at_once=1)

    def on_round(passed: int) -> None:
        if mine.counts["handled"] == 2:
            mine.stop()
            return
        with ledger.engine.begin() as connection:
            connection.exec_driver_sql("SET default_transaction_read_only = on")

    mine.run(on_round)

    assert effects(ledger) == ["a", "b"]
    assert "read-only transaction" in str([record.__dict__ for record in caplog.records])
    assert rows(ledger, "parked") == rows(ledger, "attempts") == []


def ignore(session, statement) -> None:
    """Do without the statement after the handler's slow part."""


@pytest.mark.parametrize("noticed", [False, True], ids=["answered", "noticed"])
@pytest.mark.parametrize("treat", [let_out, wrap, swallow, ignore])
def test_a_handler_that_leaves_its_transaction_idle_for_too_long_fails(
    postgres_database, engines, bus, treat, noticed
):
    ledger = Ledger(engines(postgres_database))
    ledger.create()
    send(ledger, "a")
    relay = Relay(ledger, bus)
    relay.run_once()
    relay.close()

    def handle(event, session):
        raw = session.connection().connection.driver_connection
        session.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = '10ms'"))
        closed = select.poll()
        closed.register(raw.fileno(), select.POLLRDHUP)
        assert closed.poll(60_000)
        if noticed:
            # A busy process may read the server's message together with the answer before it.
            raw.pgconn.consume_input()
            raw.pgconn.notifies()
        treat(session, sa.text("SELECT 1"))

    mine = register(handle, STREAM, name="parking", on_error="park", attempts=1)
    with contextlib.closing(Consumer(mine, ledger, bus)) as parking:
        parking.run_once()

    (one,) = parked(ledger)
    assert one.error.startswith("HandlerFailed: the handler took longer than the database allows")
    assert "idle-in-transaction timeout" in one.error


def test_one_that_was_overtaken_does_not_take_for_lost_what_another_handled(
    ledger, relay, consume, valkey
):
    send(ledger, "a")
    relay.run_once()
    overtaken, other = consume(), consume()
    overtaken.run_once()
    expire(ledger)
    send(ledger, "b", "c", "d")
    relay.run_once()
    assert other.run_once() == 3
    relay.run_once()
    assert rows(ledger, "outbox") == []

    assert overtaken.run_once() == 0

    assert not overtaken.holds
    assert effects(ledger) == ["a", "b", "c", "d"]


def test_a_commit_whose_answer_was_lost_is_found_and_gone_on_from(ledger, relay, consume):
    answers = ["lost"]

    def at(step: str) -> None:
        if step == "consumer.committed" and answers:
            answers.clear()
            lost = ConnectionResetError("no answer")
            raise sa.exc.OperationalError("COMMIT", None, lost, connection_invalidated=True)

    send(ledger, *"abc")
    relay.run_once()
    mine = consume(at=at)
    with pytest.raises(BackendUnavailable):
        mine.run_once()

    # With the lease that it has, and from where that commit left the checkpoint.
    assert mine.run_once() == 2

    assert effects(ledger) == ["a", "b", "c"]
    assert mine.counts["duplicates"] == 0


def test_counting_an_attempt_leaves_the_lease_as_long_as_it_was_wished(ledger, relay, bus):
    send(ledger, "a")
    relay.run_once()
    mine = register(act, STREAM, name="parking", on_error="park")
    parking = Consumer(mine, ledger, bus, lease=1000)

    parking.run_once()

    (left,) = [row.expires_at_ms for row in rows(ledger, "lease") if row.role == "parking"]
    assert left > ledger.now() + 900_000
    parking.close()


def test_a_lease_is_kept_while_a_handler_takes_longer_than_it_lasts(ledger, relay, bus, consume):
    send(ledger, "a")
    relay.run_once()
    renewed = threading.Event()
    if ledger.dialect == "postgresql":
        sa.event.listen(
            ledger.engine,
            "commit",
            lambda _: threading.current_thread().name == "lease-welcome" and renewed.set(),
        )
    else:
        renewed.set()

    def slow(event, session) -> None:
        assert renewed.wait(30)
        act(event, session)

    mine = Consumer(register(slow, STREAM, name="welcome"), ledger, bus, lease=0.3)

    assert mine.run_once() == 1
    mine.close()
    assert effects(ledger) == ["a"]


# -- declaring ----------------------------------------------------------------------------------


def test_a_declared_consumer_is_found_by_its_name_and_its_handler():
    @consumer("users", name="test-declared", on_error="park", attempts=2)
    def handle(event, context, session) -> None: ...

    found = registration("test-declared")

    assert registration(handle) is found
    assert registered()["test-declared"] is found
    assert (found.stream, found.on_error, found.attempts) == ("users", "park", 2)
    assert found.with_context


def test_two_consumers_of_one_name_are_refused():
    @consumer("users", name="test-twice")
    def one(event, session) -> None: ...

    with pytest.raises(ConfigError, match="two consumers"):

        @consumer("users", name="test-twice")
        def two(event, session) -> None: ...


async def coroutine(event, session) -> None: ...


def generator(event, session):
    yield


async def async_generator(event, session):
    yield


class AsyncObject:
    async def __call__(self, event, session) -> None: ...


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (lambda event: None, {}),
        (lambda: None, {}),
        (lambda a, b, c, d: None, {}),
        (lambda event, context, session: None, {"guarantee": Guarantee.AT_LEAST_ONCE}),
        (lambda event: None, {"guarantee": "exactly_once"}),
        (coroutine, {}),
        (generator, {}),
        (async_generator, {}),
        (AsyncObject(), {}),
        (functools.partial(AsyncObject()), {}),
        ("text", {}),
        (act, {"on_error": "ignore"}),
        (act, {"attempts": 0}),
        (act, {"attempts": True}),
        (act, {"name": "relay"}),
        (lambda event: None, {"batch": True, "guarantee": Guarantee.AT_LEAST_ONCE}),
    ],
)
def test_what_is_no_consumer_is_refused(handler, options):
    with pytest.raises(ConfigError):
        register(handler, "users", **{"name": "n", **options})


@pytest.mark.parametrize(
    ("handler", "guarantee"),
    [*zip([coroutine, generator, async_generator], Guarantee, strict=True)],
)
def test_an_event_whose_handler_only_returns_what_would_run_is_not_handled(
    ledger, relay, consume, handler, guarantee
):
    send(ledger, "a")
    relay.run_once()

    def exactly_once(event, session):
        return handler(event, session)

    def outside(event):
        return handler(event, None)

    wrapped = exactly_once if guarantee is Guarantee.EXACTLY_ONCE else outside
    mine = consume(wrapped, guarantee=guarantee, on_error="park", attempts=1)
    mine.run_once()

    assert mine.counts["failed"] == 1
    if guarantee is not Guarantee.AT_MOST_ONCE:
        (one,) = parked(ledger)
        assert "which nothing runs" in one.error


def test_a_consumer_that_was_not_declared_is_missed():
    with pytest.raises(ConfigError, match="not a consumer"):
        registration("nobody")


def test_a_known_consumer_keeps_what_it_has_not_seen(ledger, relay, consume, valkey, project):
    make_known(ledger, "late")
    send(ledger, "a")
    relay.run_once()
    consume(name="early").run_once()
    relay.run_once()

    assert uuids(valkey, project) == ["a"]
    assert consume(name="late").run_once() == 1


def test_a_stale_lease_is_a_refusal():
    assert StaleLease("x").exit_code == 4
