"""Another program's values in the place of the bus's own records jam neither workers nor orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import agentbus
from agentbus.admin.pause import orders
from agentbus.core.errors import BackendUnavailable, ConfigError
from agentbus.store.operation import attempt
from agentbus.store.scope import Scope
from agentbus.store.steps import Command, ServerReply
from agentbus.workers.registry import workers
from tests import inprocess
from tests.servers import ask
from tests.test_pausing_workers import intervals, running
from tests.tiers import nightly, on_one_store

# The fixtures are used by their names.
__all__ = ["intervals", "running"]

RECORDS = [
    *("beat", "paused", "agents", "topics", "heard", "agents:sessions", "agents:waiting"),
    "sessions",
    *("queues", "metrics", "stats:mail:default", "quarantined", "triggers", "tidied:results"),
    *("stats:mail", "attempts:mail:cancelled"),
    *("after", "after:mail", "after:mail:of", "positions:mail", "readers:mail"),
    "positions:mail:default",
]
VALUES = {
    "string": ("SET", "x"),
    "list": ("RPUSH", "x"),
    "zset": ("ZADD", "inf", "x"),
    "hash": ("HSET", "x", "x"),
}
HASHES = {
    "stats:mail",
    "attempts:mail:cancelled",
    "paused",
    "heard",
    "quarantined",
    "after",
    "positions:mail",
    "positions:mail:default",
    "readers:mail",
    "sessions",
}


@pytest.mark.parametrize(
    ("record", "value"),
    [
        (record, value) if value == "string" else nightly(record, value)
        for record in RECORDS
        for value in VALUES
        if value != "hash" or record not in HASHES
    ],
)
def test_a_foreign_value_jams_no_order_no_check_and_no_worker(bus, record, value):
    queue, done = bus.queue("mail"), []
    queue.publish(1)

    def spoil() -> None:
        command, *words = VALUES[value]
        ask(bus, "DEL", f"{bus.project}:{record}")
        ask(bus, command, f"{bus.project}:{record}", *words)

    spoil()
    bus.health()
    assert (bus.halt(wait=0).kind, bus.resume()) == ("project", True)
    spoil()
    bus.pause(queue="mail", wait=0)
    assert bus.resume(queue="mail")
    spoil()
    assert bus.paused() == []
    bus.workers()
    queue.publish_many([2, 3])
    bus.subscribe("mail", lambda task: done.append(task.payload), drain=True).run()

    assert done == [1, 2, 3]


# Run inside this process, a verb leaves its connection to the collector.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("url", ["valkey"], indirect=True)
@pytest.mark.parametrize("number", ["inf", "-inf", "1e300"])
def test_an_infinite_time_is_shown(bus, number, url):
    for record in ("agents", "topics", "beat"):
        ask(bus, "ZADD", f"{bus.project}:{record}", number, "ada")
    ask(bus, "HSET", f"{bus.project}:beat:ada", "queue", "mail", "agent", "bob")
    where = ["--url", url, "--project", bus.project]

    for verb in (
        ["agent", "list", "--all"],
        ["list", "--agents"],
        ["list", "--topics"],
        ["health"],
    ):
        done = inprocess.run(*verb, *where)
        assert (done.code in (0, 6), done.err) == (True, b"")


@on_one_store
@pytest.mark.parametrize("record", ["beat", "paused", "queues", "quarantined", "ch:main"])
def test_health_names_a_foreign_value(bus, record):
    ask(bus, "SET", f"{bus.project}:{record}", "x")

    (found,) = [one for one in bus.health().findings if one.check == "foreign_key"]

    assert (found.subject, found.severity) == (f"{bus.project}:{record}", "critical")


@on_one_store
def test_a_halt_reaches_the_workers_whose_registry_was_overwritten(
    bus: agentbus.Bus, running: Callable[..., Any]
) -> None:
    worker = running().name
    ask(bus, "SET", f"{bus.project}:beat", "x")

    assert bus.halt(wait=20).confirmed == (worker,)


@on_one_store
def test_a_worker_registers_again_after_its_record_was_overwritten(
    bus: agentbus.Bus, running: Callable[..., Any]
) -> None:
    worker = running().name
    ask(bus, "SET", f"{bus.project}:beat:{worker.replace(':', '%3A')}", "x")

    assert bus.halt(wait=20).confirmed == (worker,)


@pytest.mark.parametrize("reply", [7, b"x", [b"a"], [[b"a"]], [None, None]])
def test_a_reply_of_another_shape_is_an_error_in_a_sentence(reply):
    asking = attempt(orders(Scope("p", "ada")), where="it", deadline=1)
    assert isinstance(next(asking), Command)

    with pytest.raises(BackendUnavailable, match=r"^the answer of it to 'HSCAN' cannot be read"):
        asking.send(reply)


def test_an_error_reply_of_a_batch_is_an_error_in_a_sentence():
    asking = attempt(workers(Scope("p", "ada")), where="it", deadline=1)
    next(asking)

    with pytest.raises(ConfigError, match=r"^it refused 'batch': NOPERM"):
        asking.send([[b"1", b"2"], ServerReply("NOPERM no permissions")])


def test_an_error_of_what_the_caller_passed_in_stays_as_it_is(bus):
    def payloads() -> Iterator[int]:
        yield 1
        raise LookupError("mine")

    with pytest.raises(LookupError, match=r"^'?mine"):
        bus.queue("mail").publish_many(payloads())
