"""A step of a task that was recorded is not run again by a later attempt."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest

import agentbus
from agentbus import Tasks
from agentbus.errors import InvalidName, InvalidPayload, StaleDelivery, UsageError
from agentbus.retry import Backoff, Bury, Snooze
from tests.conftest import Connect
from tests.servers import ROOT, Server, ask
from tests.tiers import nightly

SOON = Backoff(first=0.01)


def drain(bus: agentbus.Bus, handler: Any, **options: Any) -> int:
    return bus.subscribe("mail", handler, drain=True, **{"backoff": SOON, **options}).run()


def runs(bus: agentbus.Bus, task: str) -> dict[str, str]:
    """Return the record of a task's attempts."""
    flat = ask(bus, "HGETALL", bus.scope.keys.runs(task, "default"))
    if isinstance(flat, dict):
        return {k.decode(): v.decode() for k, v in flat.items()}
    return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}


def steps(bus: agentbus.Bus, task: str) -> set[str]:
    return {field for field in runs(bus, task) if field.startswith("step")}


class Order:
    """A handler with three steps, which fails after as many calls as it is told."""

    def __init__(self, *failing: int) -> None:
        self.failing = {*failing}
        self.calls: list[str] = []

    def charge(self, what: str, *, times: int = 1) -> dict[str, Any]:
        self.calls.append(what)
        if len(self.calls) in self.failing:
            raise ValueError(what)
        return {"what": what, "times": times}

    def __call__(self, delivery: agentbus.Delivery) -> list[Any]:
        return [
            delivery.step("reserve", self.charge, "reserved"),
            delivery.step("charge", self.charge, "charged", times=2),
            delivery.step("send", self.charge, "sent"),
        ]


@pytest.mark.parametrize("options", [{}, {"concurrency": 3}], ids=str)
@pytest.mark.parametrize("failing", [(), (1,), (2,), (3,), (1, 2, 4, 6)], ids=str)
def test_an_attempt_goes_on_after_the_last_finished_step(
    bus: agentbus.Bus, failing: tuple[int, ...], options: dict[str, Any]
) -> None:
    order = Order(*failing)
    task = bus.queue("mail").publish(1)

    drain(bus, order, attempts=9, **options)

    failed = len(failing)
    assert [one for one in order.calls if one == "reserved"] != []
    assert len(order.calls) == 3 + failed
    assert bus.result(task) == [
        {"what": "reserved", "times": 1},
        {"what": "charged", "times": 2},
        {"what": "sent", "times": 1},
    ]
    assert steps(bus, task) == set()


async def test_the_steps_of_coroutines_are_awaited(abus: agentbus.aio.AsyncBus) -> None:
    calls: list[str] = []

    async def fetch(url: str) -> str:
        await asyncio.sleep(0)
        calls.append(url)
        return url.upper()

    async def handler(delivery: agentbus.AsyncDelivery) -> str:
        first = await delivery.step("fetch", fetch, "a")
        second = await delivery.step("length", len, first)
        if delivery.attempt == 1:
            raise ValueError("again")
        return f"{first} {second}"

    task = await abus.queue("mail").publish(1)
    await abus.subscribe("mail", handler, drain=True, backoff=SOON).run()

    assert await abus.result(task) == "A 1"
    assert calls == ["a"]


def test_a_result_is_the_same_whether_it_was_recorded_or_not(bus: agentbus.Bus) -> None:
    seen: list[Any] = []

    def handler(delivery: agentbus.Delivery) -> None:
        seen.append(delivery.step("pair", lambda: (1, None)))
        seen.append(delivery.step("nothing", lambda: None))
        if delivery.attempt < 3:
            raise ValueError("again")

    bus.queue("mail").publish(1)
    drain(bus, handler)

    assert seen == [[1, None], None] * 3


def test_a_snoozed_task_keeps_its_steps(bus: agentbus.Bus) -> None:
    calls: list[int] = []

    def handler(delivery: agentbus.Delivery) -> None:
        delivery.step("once", calls.append, 1)
        if len(seen) < 2:
            seen.append(1)
            raise Snooze(0.01)

    seen: list[int] = []
    task = bus.queue("mail").publish(1)
    drain(bus, handler)

    assert calls == [1]
    assert steps(bus, task) == set()


@pytest.mark.parametrize("how", ["dead", "cancelled", "settled by hand"])
def test_no_step_is_left_however_the_task_ends(bus: agentbus.Bus, how: str) -> None:
    task = bus.queue("mail").publish(1)

    def handler(delivery: agentbus.Delivery) -> None:
        delivery.step("one", int)
        assert steps(bus, task) == {"steps", "step:one"}
        if how == "dead":
            raise Bury("enough")
        if how == "settled by hand":
            delivery.ack()
            return
        bus.cancel(task)
        while not delivery.cancelled:
            pass
        raise ValueError("stopped")

    drain(bus, handler)

    assert bus.task(task).state == {"settled by hand": "done"}.get(how, how)
    assert steps(bus, task) == set()


def test_the_results_outlast_a_long_pause(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1)
    (delivery,) = bus.queue("mail").fetch()
    delivery.step("one", int)
    delivery.retry(after=3600)

    left = ask(bus, "TTL", bus.scope.keys.runs(task, "default"))

    assert left > 29 * 86_400


def test_a_task_without_steps_records_none(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1)

    drain(bus, lambda _delivery: None)

    assert runs(bus, task) == {}


def test_wrong_steps_are_refused(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    (delivery,) = bus.queue("mail").fetch()

    async def coroutine() -> None: ...

    delivery.step("one", int)
    with pytest.raises(UsageError, match="two steps 'one'"):
        delivery.step("one", int)
    with pytest.raises(InvalidName):
        delivery.step("a\nb", int)
    with pytest.raises(InvalidPayload, match="cannot be sent as JSON"):
        delivery.step("object", object)
    with pytest.raises(UsageError, match="is a coroutine function"):
        delivery.step("awaited", coroutine)


def test_names_of_steps_are_names(bus: agentbus.Bus) -> None:
    names = ["n", "outcome", "steps", "1", "a:b", "step:one", "*", "é"]
    calls: list[str] = []

    def handler(delivery: agentbus.Delivery) -> None:
        for name in names:
            delivery.step(name, calls.append, name)
        if delivery.attempt == 1:
            raise ValueError("again")

    task = bus.queue("mail").publish(1)
    drain(bus, handler)

    assert calls == names
    assert [one.outcome for one in bus.task(task).runs] == ["failed", "done"]


def test_one_that_lost_its_task_records_nothing(bus: agentbus.Bus, connect: Connect) -> None:
    task = bus.queue("mail").publish(1)
    (lost,) = bus.queue("mail").fetch(visibility=0.0001)
    eve = connect("eve").queue("mail")
    (mine,) = eve.fetch(visibility=0.0001)
    mine.step("one", lambda: "mine")

    with pytest.raises(StaleDelivery, match="another consumer has reclaimed"):
        lost.step("two", lambda: "lost")

    assert steps(bus, task) == {"steps", "step:one"}


def test_one_that_lost_its_task_begins_no_step(bus: agentbus.Bus, connect: Connect) -> None:
    bus.queue("mail").publish(1)
    (lost,) = bus.queue("mail").fetch(visibility=0.0001)
    lost.step("one", lambda: "lost")
    eve = connect("eve").queue("mail")
    (mine,) = eve.fetch(visibility=0.0001)
    mine.step("two", lambda: "mine")
    calls: list[int] = []

    # when it was frozen before a step
    monotonic = bus.scope.monotonic
    bus.scope.monotonic = lambda: monotonic() + 1.1
    with pytest.raises(StaleDelivery, match="was not begun: another consumer has reclaimed"):
        lost.step("two", calls.append, 1)

    assert calls == []
    assert mine.step("one", calls.append, 2) == "lost"


def test_a_typed_task_has_steps(bus: agentbus.Bus) -> None:
    tasks, calls = Tasks(), []

    @tasks.task(queue="mail", given=agentbus.Delivery, backoff=SOON)
    def send(delivery: agentbus.Delivery, to: str) -> int:
        number = delivery.step("count", lambda: calls.append(to) or len(calls))
        if delivery.attempt == 1:
            raise ValueError("again")
        return number

    handle = send.publish(bus, "ada")
    tasks.worker(bus, drain=True).run()

    assert handle.result() == 1
    assert calls == ["ada"]


_KILLED = """
import os, signal, sys, agentbus
from tests.servers import ask

def effect(bus, task, name):
    # The effect of a step, how often it had it, and how often after its end was recorded.
    ask(bus, "HINCRBY", "effects", f"{task} {name}", 1)
    if ask(bus, "HEXISTS", "ended", f"{task} {name}"):
        ask(bus, "INCR", "repeated")
    if ask(bus, "DECR", "lives") == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return name

with agentbus.connect(sys.argv[1], project="app") as bus:
    def handler(delivery):
        done = []
        for name in ("a", "b", "c", "d", "e"):
            done.append(delivery.step(name, effect, bus, delivery.id, name))
            ask(bus, "HSET", "ended", f"{delivery.id} {name}", 1)
            if ask(bus, "DECR", "lives") == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return done

    bus.subscribe("mail", handler, drain=True, attempts=1000, visibility=0.3).run()
"""


@pytest.mark.parametrize("kills", [3, nightly(100)])
def test_a_step_whose_end_was_recorded_is_never_repeated(
    own_server: Server, tmp_path: pathlib.Path, kills: int
) -> None:
    with agentbus.connect(own_server.url, project="app") as bus:
        tasks = [bus.queue("mail").publish(n) for n in range(max(2, kills // 10))]
        died = 0
        for kill in range(kills + 1):
            # Each process dies at another place: in the middle of a step, or between two.
            ask(bus, "SET", "lives", 1 + kill % 7 if kill < kills else -1)
            words = [sys.executable, "-c", _KILLED, own_server.url]
            ended = subprocess.run(words, cwd=ROOT, env=os.environ, check=False, timeout=120)
            assert ended.returncode in (0, -signal.SIGKILL)
            died += ended.returncode == -signal.SIGKILL
        effects = _counts(ask(bus, "HGETALL", "effects"))

        assert died > 0
        assert len(effects) == 5 * len(tasks)
        # One that was killed in the middle of a step had its effect, and could not record it.
        assert sum(effects.values()) - len(effects) <= died
        assert ask(bus, "GET", "repeated") is None
        for task in tasks:
            assert bus.result(task) == ["a", "b", "c", "d", "e"]
            assert steps(bus, task) == set()


def _counts(flat: Any) -> dict[str, int]:
    if isinstance(flat, dict):
        return {k.decode(): int(v) for k, v in flat.items()}
    return {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}
