"""One worker for the queues whose names match a pattern."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

import agentbus
import agentbus.aio
from agentbus import UsageError
from agentbus.core.keys import Keys
from agentbus.retry import Backoff
from agentbus.store.scope import Intervals
from agentbus.workers import match
from agentbus.workers.match import matches
from tests.conftest import Connect
from tests.servers import Server, Shell, ask
from tests.tiers import on_one_store

PATIENCE = 30.0
SOON = Backoff(first=0.01)


@pytest.fixture
def intervals() -> Intervals:
    return Intervals(beat=0.1, look=0.1, fetch=0.05)


@pytest.fixture(autouse=True)
def found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """New queues are looked for all the time."""
    monkeypatch.setattr(match, "DISCOVERY", 0.05)


class Heard:
    """What a handler was called with: queues and payloads."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[str, Any]] = SimpleQueue()

    def __call__(self, delivery: Any) -> None:
        self._queue.put((delivery.queue, delivery.payload))

    def next(self, number: int = 1) -> list[tuple[str, Any]]:
        """Return the next ones, waiting for them."""
        return [self._queue.get(timeout=PATIENCE) for _ in range(number)]


@contextlib.contextmanager
def started(worker: Any) -> Iterator[Any]:
    """Run a worker in a thread, until the end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as failure:  # noqa: BLE001 (checked at the end)
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert failures == []


def until(met: Callable[[], object]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def idle(worker: Any) -> bool:
    """Return whether no queue has a worker."""
    return not worker._running() and not any(one.wanted for one in worker._queues.values())


@pytest.mark.parametrize(
    ("pattern", "queue", "met"),
    [
        ("mail*", "mail", True),
        ("mail*", "mail.eu", True),
        ("mail*", "email", False),
        ("mail?", "mail1", True),
        ("mail[12]", "mail3", False),
        ("Mail", "mail", False),
        ("*", "~webhooks", False),
        ("~*", "~webhooks", True),
        ("[*]", "*", True),
        ("a[*", "a[b", True),
    ],
)
def test_a_pattern_matches_names(pattern: str, queue: str, met: bool) -> None:
    assert matches(pattern, queue) is met


def test_it_runs_the_tasks_of_all_queues_that_match_also_of_later_ones(bus: agentbus.Bus) -> None:
    heard = Heard()
    for queue in ("mail.a", "mail.b", "other", "mail*"):
        bus.queue(queue).publish(queue)
    with started(bus.subscribe_many("mail*", heard)) as worker:
        assert sorted(heard.next(3)) == [(name, name) for name in ("mail*", "mail.a", "mail.b")]
        until(lambda: idle(worker))
        bus.queue("mail.new").publish("later")
        assert heard.next() == [("mail.new", "later")]
        bus.queue("mail.a").publish("again")
        assert heard.next() == [("mail.a", "again")]
        until(lambda: worker.done == 5)
    assert bus.queue("other").remaining() == 1
    assert worker.queues == ["mail*", "mail.a", "mail.b", "mail.new"]


@on_one_store
def test_delayed_tasks_and_retries_run_when_they_are_due(bus: agentbus.Bus) -> None:
    heard: SimpleQueue[tuple[Any, int]] = SimpleQueue()

    def fails_once(delivery: agentbus.Delivery) -> None:
        heard.put((delivery.payload, delivery.attempt))
        if delivery.attempt == 1:
            raise ValueError

    worker = bus.subscribe_many("mail*", fails_once, backoff=Backoff(first=1.5))
    with started(worker):
        bus.queue("mail.a").publish("x", delay=0.2)
        assert [heard.get(timeout=PATIENCE) for _ in range(2)] == [("x", 1), ("x", 2)]
        until(lambda: worker.done == 1)
    assert worker.failed == 1


@on_one_store
def test_a_failed_task_is_buried_with_its_queue_and_the_order_of_a_key_holds(
    bus: agentbus.Bus,
) -> None:
    heard = Heard()

    def handler(delivery: agentbus.Delivery) -> None:
        heard(delivery)
        if delivery.queue == "mail.bad":
            raise ValueError

    for number in range(20):
        bus.queue("mail.a").publish(number, ordering_key="k")
    bus.queue("mail.bad").publish("x")
    with started(bus.subscribe_many("mail*", handler, attempts=2, backoff=SOON, concurrency=4)):
        found = heard.next(22)
        until(lambda: bus.queue("mail.bad").dead_letters())
    assert [payload for queue, payload in found if queue == "mail.a"] == list(range(20))


def test_it_takes_over_what_a_dead_program_held(connect: Connect) -> None:
    bus, eve, heard = connect(), connect("eve"), Heard()
    bus.queue("mail.a").publish("x")
    eve.queue("mail.a").fetch(visibility=0.2)
    with started(bus.subscribe_many("mail*", heard, visibility=0.2)):
        assert heard.next() == [("mail.a", "x")]


@on_one_store
def test_no_queue_waits_for_another_ones_backlog(bus: agentbus.Bus) -> None:
    heard = Heard()

    def handler(delivery: Any) -> None:
        heard(delivery)
        time.sleep(0.002)

    bus.queue("mail.a").publish_many(range(500))
    for number in range(10):
        bus.queue(f"mail.b{number}").publish_many(["x", "y", "z"])
    with started(bus.subscribe_many("mail*", handler)) as worker:
        found = heard.next(530)
        until(lambda: worker.done == 530)
    last = max(at for at, (queue, _) in enumerate(found) if queue != "mail.a")
    assert last < 400


@on_one_store
def test_more_queues_than_run_at_once_take_turns(bus: agentbus.Bus) -> None:
    heard = Heard()
    for number in range(40):
        bus.queue(f"mail.{number}").publish_many(range(5))
    with started(bus.subscribe_many("mail*", heard)) as worker:
        heard.next(200)
        until(lambda: worker.done == 200)


@on_one_store
def test_so_many_tasks_run_at_once_of_all_queues(bus: agentbus.Bus) -> None:
    running, most, guard = 0, 0, threading.Lock()

    def handler(_delivery: Any) -> None:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with guard:
            running -= 1

    for number in range(6):
        bus.queue(f"mail.{number}").publish_many(range(5))
    with started(bus.subscribe_many("mail*", handler, concurrency=2)) as worker:
        until(lambda: worker.done == 30)
    assert most == 2


async def test_an_asynchronous_bus_has_one_too(abus: agentbus.AsyncBus) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    running = most = 0

    async def handler(delivery: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        await heard.put(delivery.queue)

    for number in range(6):
        await abus.queue(f"mail.{number}").publish_many(range(5))
    worker = abus.subscribe_many("mail*", handler, concurrency=3)
    task = asyncio.ensure_future(worker.run())
    found = [await asyncio.wait_for(heard.get(), PATIENCE) for _ in range(30)]
    worker.stop()
    assert await task == 30
    assert len(set(found)) == 6
    assert most <= 3


def test_a_paused_queue_is_left_until_it_is_resumed(connect: Connect) -> None:
    bus, eve, heard = connect(), connect("eve"), Heard()
    for queue in ("mail.a", "mail.b"):
        bus.queue(queue).publish("first")
    with started(bus.subscribe_many("mail*", heard)):
        heard.next(2)
        eve.pause(queue="mail.a")
        bus.queue("mail.a").publish("later")
        bus.queue("mail.b").publish("now")
        assert heard.next() == [("mail.b", "now")]
        eve.resume(queue="mail.a")
        assert heard.next() == [("mail.a", "later")]


@on_one_store
def test_an_idle_one_confirms_the_pause_of_its_agent_and_ends_when_it_is_sent_away(
    connect: Connect,
) -> None:
    bus, eve, heard = connect(), connect("eve"), Heard()
    bus.queue("mail.a").publish("first")
    worker = bus.subscribe_many("mail*", heard)
    with started(worker):
        heard.next()
        until(lambda: idle(worker))
        assert [(one.worker, one.queue) for one in eve.workers()] == [(worker.name, "mail*")]
        assert eve.pause(agent="ada").confirmed == (worker.name,)
        bus.queue("mail.a").publish("second")
        eve.resume(agent="ada")
        assert heard.next() == [("mail.a", "second")]
        until(lambda: idle(worker))
        assert eve.delete(worker=worker.name).gone == (worker.name,)


def test_it_goes_on_after_a_restart_of_the_server(own_server: Server, project: str) -> None:
    heard = Heard()
    with agentbus.connect(own_server.url, project=project, agent="ada") as bus:
        bus.queue("mail.a").publish("first")
        with started(bus.subscribe_many("mail*", heard)) as worker:
            assert heard.next() == [("mail.a", "first")]
            until(lambda: idle(worker))
            own_server.kill()
            own_server.start()
            bus.queue("mail.a").publish("second")
            assert heard.next() == [("mail.a", "second")]
            # Now the queue has a worker.
            own_server.kill()
            own_server.start()
            bus.queue("mail.b").publish("third")
            assert heard.next() == [("mail.b", "third")]


@on_one_store
def test_nothing_is_left_of_it_but_its_queues(bus: agentbus.Bus) -> None:
    heard = Heard()
    bus.queue("mail.a").publish("x")
    with started(bus.subscribe_many("mail*", heard)):
        heard.next()
    assert bus.workers() == []
    assert ask(bus, "EXISTS", bus.scope.keys.bell("mail*")) == 0
    assert [finding for finding in bus.health().findings if "mail" in str(finding)] == []


@on_one_store
def test_a_handler_that_ends_the_worker_ends_it(bus: agentbus.Bus) -> None:
    def leaves(_delivery: Any) -> None:
        raise SystemExit(3)

    bus.queue("mail.a").publish("x")
    with pytest.raises(SystemExit):
        bus.subscribe_many("mail*", leaves).run()


@pytest.mark.parametrize(
    "options", [{"drain": True}, {"count": 1}, {"concurrency": 0}, {"attempts": 0}], ids=str
)
def test_wrong_options_are_refused(bus: agentbus.Bus, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        bus.subscribe_many("mail*", print, **options)


@pytest.mark.parametrize("number", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_many_idle_queues_cost_one_script_and_one_read_on_one_connection(
    number: int, own_server: Server, project: str, intervals: Intervals
) -> None:
    heard = Heard()
    with agentbus.connect(own_server.url, project=project, agent="idler") as bus:
        bus.scope.intervals = intervals
        for queue in range(number):
            bus.queue(f"mail.{queue}").publish(queue)
        worker = bus.subscribe_many("mail*", heard)

        def calls() -> dict[str, int]:
            stats = own_server.ask("INFO", "commandstats").decode().splitlines()
            found = (line.partition(":calls=") for line in stats if line.startswith("cmdstat_"))
            counts = {name[8:]: int(rest.partition(",")[0]) for name, _, rest in found}
            beats = own_server.ask("HGET", Keys(project).beat(worker.name), "number")
            return counts | {"beats": int(beats or 0)}

        def connections() -> int:
            listed: bytes = own_server.ask("CLIENT", "LIST")
            return sum(b"agentbus:idler" in line for line in listed.splitlines())

        with started(worker):
            heard.next(number)

            def quiet() -> bool:
                before = calls()
                until(lambda: calls()["beats"] >= before["beats"] + 5)
                after = calls()
                grown = {name: after[name] - before.get(name, 0) for name in after}
                scripts, reads = grown["evalsha"], grown["xread"]
                return max(scripts, reads) <= grown["beats"] + 2 and connections() == 1

            # The queues are tidied once, after their first tasks.
            until(quiet)
            assert idle(worker)


def test_the_verb_takes_the_tasks_of_all_queues_that_match(
    real_shell: Shell, real_url: str, project: str
) -> None:
    with agentbus.connect(real_url, project=project, agent="eve") as bus:
        tasks = [bus.queue(name).publish(name) for name in ("mail.a", "mail.b")]
        working = real_shell.start(
            *("work", "--match", "mail.*", "--json", "--"),
            *("sh", "-c", "cat; echo $AGENTBUS_QUEUE >&2"),
        )
        results = [
            bus.queue(name).result(task, wait=PATIENCE)
            for name, task in zip(("mail.a", "mail.b"), tasks, strict=True)
        ]
        working.send_signal(signal.SIGTERM)
        out, _ = working.communicate(timeout=PATIENCE)
    assert results == ["mail.a", "mail.b"]
    assert working.returncode == 0
    assert {json.loads(line)["task_id"] for line in out.splitlines()} == set(tasks)


@pytest.mark.parametrize(
    "words", [["--match"], ["--match", "m*", "--drain"], ["--match", "m*", "--count", "1"]], ids=str
)
def test_the_verb_refuses_what_does_not_go_together(real_shell: Shell, words: list[str]) -> None:
    program = ("--", "true") if "m*" in words else ()
    assert real_shell.run("work", *words, *program).returncode == 2
