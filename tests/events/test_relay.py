"""The relay: what is committed is published in its order, and again where the server lost it."""

from __future__ import annotations

import logging
import threading

import orjson
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

import agentbus
from agentbus.errors import AgentBusError, BackendUnavailable, ConfigError
from agentbus.events import Ledger, Relay, send_event
from tests.events.shop import (
    STREAM,
    entries,
    expire,
    pass_by,
    payload,
    register,
    rows,
    send,
    uuids,
)


def test_what_was_committed_is_published_in_order(ledger, relay, valkey, project):
    send(ledger, *"abc")

    assert relay.run_once() == 3

    found = entries(valkey, project)
    assert [payload(entry)["name"] for entry in found] == ["a", "b", "c"]
    assert [entry["outbox_id"] for entry in found] == ["1", "2", "3"]
    assert found[0]["event_type"] == "Placed"
    created = orjson.loads(found[0]["metadata"])["__creation_timestamp_ms__"]
    assert created == rows(ledger, "outbox")[0].created_ms


def test_what_was_published_is_not_published_again(ledger, relay, valkey, project):
    send(ledger, "a")
    relay.run_once()

    assert relay.run_once() == 0

    assert uuids(valkey, project) == ["a"]
    (row,) = rows(ledger, "outbox")
    assert f"{row.position_ms}-{row.position_seq}" == entries(valkey, project)[0]["id"]
    assert row.epoch == 1


def test_more_than_fit_one_batch_are_published_in_order(ledger, relay, valkey, project):
    names = [f"{n:05}" for n in range(1203)]
    with Session(ledger.engine) as session:
        for name in names:
            send_event(session, STREAM, "Placed", {}, event_uuid=name)
        session.commit()

    assert relay.run_once() == 1203

    assert uuids(valkey, project) == names


def test_streams_do_not_wait_for_each_other(ledger, relay, valkey, project):
    send(ledger, "a")
    send(ledger, "b", stream="mail")

    assert relay.run_once() == 2

    assert [entry["event_uuid"] for entry in entries(valkey, project, "mail")] == ["b"]


def test_an_older_transaction_tells_of_what_it_waited_for_after_it(
    postgres_database, engines, bus, valkey, project
):
    ledger = Ledger(engines(postgres_database))
    ledger.create()
    with Session(ledger.engine) as older, Session(ledger.engine) as younger:
        # The older one has the lower transaction id, and comes after the younger all the same.
        older.execute(sa.text("SELECT pg_current_xact_id()"))
        send_event(younger, STREAM, "Placed", {}, event_uuid="first")
        younger.commit()
        send_event(older, STREAM, "Placed", {}, event_uuid="second")
        older.commit()
    relay = Relay(ledger, bus)

    relay.run_once()
    relay.close()

    assert uuids(valkey, project) == ["first", "second"]


def test_a_transaction_that_runs_for_long_holds_nobody_up_and_is_not_forgotten(
    postgres_database, engines, bus, valkey, project
):
    ledger = Ledger(engines(postgres_database))
    ledger.create()
    relay = Relay(ledger, bus)
    with Session(ledger.engine) as slow:
        send_event(slow, STREAM, "Placed", {}, event_uuid="slow")
        send(ledger, "quick")
        relay.run_once()
        assert uuids(valkey, project) == ["quick"]
        slow.commit()

    relay.run_once()
    relay.close()

    assert uuids(valkey, project) == ["quick", "slow"]


def test_a_second_relay_leaves_the_stream_alone(ledger, relay, bus, valkey, project):
    send(ledger, "a")
    relay.run_once()
    send(ledger, "b")
    second = Relay(ledger, bus)

    assert second.run_once() == 0
    relay.close()

    assert second.run_once() == 1
    second.close()
    assert uuids(valkey, project) == ["a", "b"]


def test_a_relay_that_was_overtaken_publishes_nothing(ledger, relay, bus, valkey, project):
    send(ledger, "a")
    relay.run_once()
    expire(ledger)
    second = Relay(ledger, bus)
    send(ledger, "b")
    assert second.run_once() == 1
    send(ledger, "c")

    assert relay.run_once() == 0

    assert uuids(valkey, project) == ["a", "b"]
    assert second.run_once() == 1
    second.close()


def test_a_stale_relay_is_refused_by_the_server_itself(ledger, bus, valkey, project):
    send(ledger, "a", "b")
    reached = []

    def overtake(step: str) -> None:
        # Between what the first one read and what it adds, another one did both.
        if step == "relay.read" and not reached:
            reached.append(step)
            expire(ledger)
            second = Relay(ledger, bus)
            assert second.run_once() == 2
            second.close()

    first = Relay(ledger, bus, at=overtake)

    assert first.run_once() == 0

    first.close()
    assert uuids(valkey, project) == ["a", "b"]


def test_what_was_added_and_not_marked_is_published_again_after_it(
    ledger, relay, bus, valkey, project
):
    class Killed(BaseException):
        pass

    def kill(step: str) -> None:
        if step == "relay.added":
            raise Killed

    send(ledger, "a", "b")
    first = Relay(ledger, bus, at=kill)
    with pytest.raises(Killed):
        first.run_once()
    expire(ledger)

    assert relay.run_once() == 2

    first.close()
    assert uuids(valkey, project) == ["a", "b", "a", "b"]


def test_after_a_server_was_wiped_all_is_published_again_beyond_every_checkpoint(
    ledger, relay, valkey, project
):
    register(ledger, "slow")
    send(ledger, *"abc")
    relay.run_once()
    before = entries(valkey, project)
    pass_by(ledger, "slow", before[0]["id"])
    valkey.ask("DEL", f"{project}:ev:shop%3Aorders", f"{project}:ev:shop%3Aorders:relay")
    send(ledger, "d")

    assert relay.run_once() == 3

    after = entries(valkey, project)
    assert [entry["event_uuid"] for entry in after] == ["b", "c", "d"]
    assert all(_position(entry) > _position(before[-1]) for entry in after)


def test_an_idle_relay_notices_that_the_server_was_wiped(ledger, relay, valkey, project):
    send(ledger, "a")
    relay.run_once()
    valkey.ask("DEL", f"{project}:ev:shop%3Aorders")

    assert relay.run_once() == 1

    assert uuids(valkey, project) == ["a"]


def test_a_lost_tail_is_published_again_before_what_is_new(ledger, relay, valkey, project):
    send(ledger, *"abcde")
    relay.run_once()
    old = entries(valkey, project)
    lose_tail(valkey, project, 2)
    send(ledger, "f")

    assert relay.run_once() == 3

    after = entries(valkey, project)
    assert [entry["event_uuid"] for entry in after] == ["a", "b", "c", "d", "e", "f"]
    assert _position(after[3]) > _position(old[-1])


def test_a_tail_that_is_lost_while_a_batch_is_read_is_noticed(ledger, bus, valkey, project):
    armed = []

    def lose(step: str) -> None:
        if step == "relay.read" and armed:
            armed.clear()
            lose_tail(valkey, project, 1)

    relay = Relay(ledger, bus, at=lose)
    send(ledger, *"abc")
    relay.run_once()
    send(ledger, "d")
    armed.append(True)

    relay.run_once()
    relay.run_once()

    relay.close()
    assert uuids(valkey, project) == ["a", "b", "c", "d"]


def test_a_lost_tail_that_another_wrote_over_is_published_again(ledger, relay, valkey, project):
    send(ledger, *"abc")
    relay.run_once()
    lose_tail(valkey, project, 1)
    # As a relay would that was frozen since the first event.
    valkey.ask("XADD", f"{project}:ev:shop%3Aorders", "*", "event_uuid", "b", "outbox_id", "2")

    assert relay.run_once() == 1

    assert uuids(valkey, project) == ["a", "b", "b", "c"]


def test_what_others_trimmed_is_published_again_in_order(ledger, relay, valkey, project):
    register(ledger, "slow")
    send(ledger, *"abcd")
    relay.run_once()
    valkey.ask("XTRIM", f"{project}:ev:shop%3Aorders", "MAXLEN", 2)

    assert relay.run_once() == 4

    assert uuids(valkey, project) == ["a", "b", "c", "d"]


def test_a_stream_has_room_for_more_than_the_event_that_all_have_passed(
    sqlite_database, engines, bus
):
    ledger = Ledger(engines(sqlite_database))

    with pytest.raises(ConfigError, match="bound"):
        Relay(ledger, bus, bound=1)


def test_a_stream_takes_so_many_events_and_the_rest_waits(ledger, bus, valkey, project):
    register(ledger, "slow")
    relay = Relay(ledger, bus, bound=2)
    send(ledger, *"abc")
    assert relay.run_once() == 2
    assert relay.run_once() == 0

    pass_by(ledger, "slow", entries(valkey, project)[1]["id"])

    assert relay.run_once() == 1
    relay.close()
    assert uuids(valkey, project) == ["b", "c"]


def test_what_every_consumer_has_passed_is_removed(ledger, relay, valkey, project):
    register(ledger, "quick")
    register(ledger, "slow")
    send(ledger, *"abc")
    relay.run_once()
    found = entries(valkey, project)
    pass_by(ledger, "quick", found[2]["id"])
    pass_by(ledger, "slow", found[1]["id"])

    relay.run_once()

    assert uuids(valkey, project) == ["b", "c"]
    assert [row.event_uuid for row in rows(ledger, "outbox")] == ["c"]


def test_without_consumers_nothing_is_removed(ledger, relay, valkey, project):
    send(ledger, *"abc")

    relay.run_once()
    relay.run_once()

    assert uuids(valkey, project) == ["a", "b", "c"]
    assert len(rows(ledger, "outbox")) == 3


def test_an_id_of_the_outbox_is_never_given_again(ledger, relay, valkey, project):
    register(ledger, "quick")
    send(ledger, "a")
    relay.run_once()
    pass_by(ledger, "quick", entries(valkey, project)[0]["id"])
    relay.run_once()
    assert rows(ledger, "outbox") == []

    send(ledger, "b")

    assert [row.id for row in rows(ledger, "outbox")] == [2]


def test_a_running_relay_publishes_what_comes_and_stops(ledger, bus, valkey, project):
    relay = Relay(ledger, bus)
    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        send(ledger, "a")
        key = f"{project}:ev:shop%3Aorders"
        assert valkey.ask("XREAD", "BLOCK", 9000, "STREAMS", key, "0-0") is not None
    finally:
        relay.stop()
        relay.stop()
        thread.join()

    assert uuids(valkey, project) == ["a"]
    assert all(row.owner == "" for row in rows(ledger, "lease"))


def test_a_relay_without_a_server_says_so_and_loses_nothing(ledger, own_server, project):
    with agentbus.connect(own_server.url, project=project, agent="ada", deadline=1) as bus:
        relay = Relay(ledger, bus)
        send(ledger, "a")
        own_server.kill()
        with pytest.raises(BackendUnavailable):
            relay.run_once()
        own_server.start()

        assert relay.run_once() == 1
        relay.close()


def test_a_relay_keeps_its_streams_over_trouble_with_the_server(ledger, own_server, project):
    key = f"{project}:ev:shop%3Aorders"
    with agentbus.connect(own_server.url, project=project, agent="ada", deadline=1) as bus:
        relay = Relay(ledger, bus)
        published, troubled = threading.Event(), threading.Event()
        thread = threading.Thread(target=relay.run, args=(lambda _number: published.set(),))
        told = _Told(troubled)
        logging.getLogger("agentbus").addHandler(told)
        send(ledger, "a")
        thread.start()
        try:
            assert published.wait(60)
            own_server.kill()
            send(ledger, "b")
            assert troubled.wait(60)
            own_server.start()
            (last,) = own_server.ask("XREVRANGE", key, "+", "-", "COUNT", 1) or [[b"0-0"]]
            if len(own_server.ask("XRANGE", key, "-", "+")) < 2:
                # Far less than its own lease would keep it out.
                assert own_server.ask("XREAD", "BLOCK", 9000, "STREAMS", key, last[0]) is not None
        finally:
            relay.stop()
            thread.join()
            logging.getLogger("agentbus").removeHandler(told)

    assert [row.token for row in rows(ledger, "lease")] == [1]
    assert uuids(own_server, project) == ["a", "b"]


class _Told(logging.Handler):
    def __init__(self, event: threading.Event) -> None:
        super().__init__(logging.WARNING)
        self._event = event

    def emit(self, record: logging.LogRecord) -> None:
        self._event.set()


def test_a_key_that_another_program_took_is_told(ledger, relay, valkey, project):
    send(ledger, "a")
    valkey.ask("SET", f"{project}:ev:shop%3Aorders", "mine")

    with pytest.raises(AgentBusError, match="another type"):
        relay.run_once()


def test_a_relay_without_tables_says_what_to_do(engine, bus):
    with pytest.raises(ConfigError, match="create"):
        Relay(Ledger(engine), bus).run_once()


def lose_tail(valkey, project, count) -> None:
    """Put the stream back to what it was some entries ago, as a server does that lost its tail."""
    key = f"{project}:ev:shop%3Aorders"
    found = valkey.ask("XRANGE", key, "-", "+")
    valkey.ask("DEL", key)
    for entry_id, flat in found[:-count]:
        valkey.ask("XADD", key, entry_id, *flat)


def _position(entry: dict[str, str]) -> tuple[int, ...]:
    return tuple(map(int, entry["id"].split("-")))
