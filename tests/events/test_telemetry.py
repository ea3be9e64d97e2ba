"""What relays and consumers tell the metrics: what they did, how long it took, how far behind they are."""

from __future__ import annotations

import json
import threading

import pytest

import agentbus
from agentbus.admin.health import events
from agentbus.events import Consumer, EventSchemas, Relay, forget_consumer, register
from agentbus.events.redis import RedisClient
from agentbus.events.supervisor.quarantine import Quarantined, _write, release_consumer
from tests.events.shop import STREAM, act, effects, send
from tests.test_prometheus import scraped, value


@pytest.fixture
def relay(ledger, bus):
    made = Relay(ledger, bus)
    yield made
    made.close()


@pytest.fixture
def told(valkey, project):
    """Return a function that reads what was told, by role."""

    def _told(role: str) -> list[dict[str, str]]:
        found = []
        for _, flat in valkey.ask("XRANGE", f"{project}:metrics", "-", "+"):
            fields = {flat[i].decode(): flat[i + 1].decode("utf-8") for i in range(0, len(flat), 2)}
            if fields["role"] == role:
                found.append(fields)
        return found

    return _told


def test_a_consumer_tells_what_it_did_and_how_far_behind_it_is(ledger, bus, relay, told):
    send(ledger, *"abc")
    relay.run_once()
    mine = Consumer(register(act, STREAM, name="welcome"), ledger, bus, at_once=2)
    mine._turn()
    mine.close()

    (one,) = told("welcome")

    assert (one["kind"], one["stream"], one["worker"]) == ("events", STREAM, mine.owner)
    assert (one["handled"], one["lag_events_count"]) == ("2", "1")
    assert int(one["lag_ms"]) > 0
    assert sum(json.loads(one["handler_ran"])) == 2
    assert float(one["handler_ms"]) > 0


def test_a_consumer_tells_the_error_that_blocks_it_until_it_is_over(ledger, bus, relay, told):
    broken = [True]

    def handler(_event: object, _session: object) -> None:
        if broken:
            raise ValueError("no such address")

    send(ledger, "a")
    relay.run_once()
    mine = Consumer(register(handler, STREAM, name="welcome"), ledger, bus)
    mine.run_once()
    mine._reporter._report(at_last=True)
    broken.clear()
    mine.run_once()
    mine._reporter._report(at_last=True)
    mine.close()

    blocked, *_, last = told("welcome")
    assert blocked["last_error"].endswith(": ValueError: no such address")
    assert (blocked["lag_events_count"], blocked["parked_events"]) == ("1", "0")
    assert "last_error" not in last
    assert (last["lag_events_count"], last["parked_events"]) == ("0", "0")


def test_a_consumer_tells_how_many_events_it_has_parked_and_the_last_error(
    ledger, bus, relay, told
):
    def handler(_event: object, _session: object) -> None:
        raise ValueError("no" + "o" * 1000)

    send(ledger, *"ab")
    relay.run_once()
    parks = register(handler, STREAM, name="welcome", on_error="park", attempts=1)
    mine = Consumer(parks, ledger, bus)
    mine.run_once()
    mine._reporter._report(at_last=True)
    mine.close()

    *_, last = (one for one in told("welcome") if "parked_events" in one)
    assert last["parked_events"] == "2"
    assert len(last["last_error"]) == 300
    assert last["last_error"].startswith("ValueError: nooo")


@pytest.mark.parametrize("batch", [False, True])
def test_a_handler_that_runs_for_long_does_not_hide_the_lag(
    ledger, bus, relay, told, valkey, project, monkeypatch, batch
):
    for name in ("reporter.EVERY", "telemetry.EVERY", "telemetry._LAG_EVERY"):
        monkeypatch.setattr(f"agentbus.events.{name}", 0.01)
    ended = threading.Event()

    def handler(_events: object, _session: object) -> None:
        assert ended.wait(60)

    send(ledger, *"abc")
    relay.run_once()
    mine = Consumer(register(handler, STREAM, name="slow", batch=batch), ledger, bus)
    thread = threading.Thread(target=mine.run)
    thread.start()
    try:
        last = "0-0"
        for _ in range(2):
            # The first event is still in the handler.
            reply = valkey.ask("XREAD", "BLOCK", 9000, "STREAMS", f"{project}:metrics", last)
            last = reply[0][1][-1][0]
        first, *_, again = told("slow")
    finally:
        mine.stop()
        ended.set()
        thread.join()

    assert (first["lag_events_count"], again["lag_events_count"]) == ("3", "3")
    assert int(again["lag_ms"]) > int(first["lag_ms"])


def test_health_reads_what_a_consumer_tells(
    ledger, bus, relay, tmp_path, monkeypatch, valkey, project
):
    config = tmp_path / "bus.yaml"
    config.write_text("health:\n  lag_ms: [off, 0]\n  lag_events: [off, 0]\n")
    monkeypatch.setenv("AGENTBUS_CONFIG", str(config))
    send(ledger, *"abc")
    relay.run_once()
    mine = Consumer(register(act, STREAM, name="welcome"), ledger, bus, at_once=2)
    mine._turn()
    mine.close()

    with agentbus.connect(valkey.url, project=project) as strict:
        found = {one.check: one for one in strict.health().findings}

    assert set(found) >= {"lag_ms", "lag_events"}
    assert found["lag_events"].subject == f"{STREAM}/welcome"
    assert found["lag_events"].figure == 1


def test_health_reads_what_a_supervisor_gave_up(bus):
    server = RedisClient(bus.runner)
    _write(server, [Quarantined("welcome", STREAM, "1970-01-01T00:00:00Z", "crash_loop", 5, "no")])
    server.close()

    (found,) = [one for one in bus.health().findings if one.check == "quarantined"]

    assert found.text == (
        "the consumer 'welcome' was quarantined at 1970-01-01T00:00:00Z (crash loop): no"
    )
    release_consumer(bus, "welcome")
    assert bus.health().critical == 0


def test_each_quarantine_is_counted_once(bus, told):
    record = Quarantined("welcome", STREAM, "1970-01-01T00:00:00Z", "crash_loop", 5, "no")
    with RedisClient(bus.runner) as server:
        for _ in range(2):
            _write(server, [record])
            _write(server, [record])
            release_consumer(bus, "welcome")

    found = [(one["kind"], one["stream"], one["reason"]) for one in told("welcome")]

    assert found == 2 * [("quarantine", STREAM, "crash_loop")]


def test_a_consumer_that_was_forgotten_is_not_missed(ledger, bus, relay):
    send(ledger, *"ab")
    relay.run_once()
    mine = Consumer(register(act, STREAM, name="welcome"), ledger, bus, at_once=1)
    mine._turn()
    mine.close()
    before = scraped(bus)

    forget_consumer(ledger, STREAM, "welcome", bus=bus)

    gone = {"consumer": "welcome", "stream": STREAM}
    assert value(before, "agentbus_consumer_lag_events", **gone) == 1
    assert value(scraped(bus), "agentbus_consumer_lag_events", **gone) is None
    assert bus.runner.run(events.reports(bus.runner.scope))[1] == []


def test_counts_are_told_once(ledger, bus, relay, told):
    mine = Consumer(register(act, STREAM, name="welcome"), ledger, bus)
    for name in "ab":
        send(ledger, name)
        relay.run_once()
        mine.run_once()
        mine.close()

    assert [one.get("handled") for one in told("welcome")] == ["1", "1"]


def test_an_unknown_event_type_is_told_by_the_name_that_alerts_know(ledger, bus, relay, told):
    schemas = EventSchemas()
    schemas.register(STREAM, "Shipped", {})
    send(ledger, "a")
    relay.run_once()
    mine = Consumer(register(act, STREAM, name="welcome"), ledger, bus, schemas=schemas)
    mine.run_once()
    mine.close()

    assert [one["unknown_event_type"] for one in told("welcome")] == ["1"]
    (found,) = [one for one in bus.health().findings if one.check == "unknown_events"]
    assert (found.subject, found.figure) == (f"{STREAM}/welcome", 1)


def test_a_relay_tells_what_it_published_and_what_waits(ledger, bus, told):
    send(ledger, *"abc")
    relay = Relay(ledger, bus, bound=2)
    relay.run_once()
    relay.close()

    (one,) = told("relay")

    assert (one["published"], one["lag_events_count"]) == ("2", "1")


def test_metrics_that_cannot_be_told_stop_nobody(ledger, bus, relay, valkey, project):
    valkey.ask("SET", f"{project}:metrics", "spoilt")
    send(ledger, "a")
    relay.run_once()
    mine = Consumer(register(act, STREAM, name="welcome"), ledger, bus)

    mine.run_once()
    mine.close()

    assert effects(ledger) == ["a"]


def test_metrics_of_queues_leave_out_those_of_events(ledger, bus, relay, valkey, project):
    send(ledger, "a")
    relay.run_once()
    mine = Consumer(register(act, STREAM, name="welcome"), ledger, bus)
    mine.run_once()
    mine.close()

    assert valkey.ask("XLEN", f"{project}:metrics") > 0
    assert list(bus.metrics()) == []
