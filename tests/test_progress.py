"""A handler says how far its task is, and `task show` and the dashboards show it."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

import agentbus
from agentbus.errors import UsageError
from agentbus.retry import Backoff
from tests.conftest import Connect
from tests.servers import Shell

PATIENCE = 60.0
SOON = Backoff(first=0.01)


class Work:
    """A worker in a thread, whose handler stops at each step until the test has looked."""

    def __init__(self, bus: agentbus.Bus, handler: Any, **options: Any) -> None:
        self.worker = bus.subscribe("mail", handler, drain=True, backoff=SOON, **options)
        self._running = threading.Thread(target=self.worker.run)

    def __enter__(self) -> Work:
        self._running.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._running.join(PATIENCE)


def shown(bus: agentbus.Bus, task: str, wanted: Any) -> Any:
    """Wait for a task to be shown with some fraction."""
    waited = threading.Event()
    while (found := bus.task(task).progress) is None or found.fraction != wanted:
        waited.wait(0.01)
    return found


@pytest.mark.parametrize("options", [{}, {"concurrency": 3}], ids=str)
def test_the_progress_of_a_running_task_is_shown(
    bus: agentbus.Bus, connect: Connect, options: dict[str, Any]
) -> None:
    looked = threading.Semaphore(0)

    def handler(delivery: agentbus.Delivery) -> None:
        for page in (1, 2):
            delivery.progress(page / 10, f"page {page} of 10")
            assert looked.acquire(timeout=PATIENCE)

    task = bus.queue("mail").publish(1)
    assert bus.task(task).progress is None
    with Work(connect("bob"), handler, **options):
        first = shown(bus, task, 0.1)
        looked.release()
        second = shown(bus, task, 0.2)
        looked.release()

    assert (first.text, second.text) == ("page 1 of 10", "page 2 of 10")
    assert second.at >= first.at
    assert bus.task(task).progress is None


def test_each_attempt_begins_without_progress(bus: agentbus.Bus, connect: Connect) -> None:
    looked, begun = threading.Event(), threading.Event()

    def handler(delivery: agentbus.Delivery) -> None:
        if delivery.attempt == 1:
            delivery.progress(0.5)
            assert looked.wait(PATIENCE)
            raise ValueError("again")
        begun.set()
        delivery.progress(0.125)
        assert looked.wait(PATIENCE)

    task = bus.queue("mail").publish(1)
    with Work(connect("bob"), handler) as work:
        assert shown(bus, task, 0.5).text == ""
        looked.set()
        assert begun.wait(PATIENCE)

    assert work.worker.done == 1


async def test_a_coroutine_says_it_without_waiting(abus: agentbus.aio.AsyncBus) -> None:
    seen: list[Any] = []
    task = await abus.queue("mail").publish(1)

    async def handler(delivery: agentbus.AsyncDelivery) -> None:
        delivery.progress(0.25, "fetched")
        while (found := (await abus.task(task)).progress) is None:
            pass
        seen.append((found.fraction, found.text))

    await abus.subscribe("mail", handler, drain=True).run()

    assert seen == [(0.25, "fetched")]


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan"), float("inf"), True, "0.5", None])
def test_a_progress_that_is_no_fraction_is_refused(bus: agentbus.Bus, wrong: Any) -> None:
    bus.queue("mail").publish(1)
    (delivery,) = bus.queue("mail").fetch()

    with pytest.raises(UsageError, match="the progress is"):
        delivery.progress(wrong)
    with pytest.raises(UsageError, match="text of a progress"):
        delivery.progress(0.5, 7)  # type: ignore[arg-type]


def test_long_and_hostile_texts_are_shown_as_text(bus: agentbus.Bus, connect: Connect) -> None:
    hostile = "\x1b[31m" + '{"a":\n"\ud800"' + "x" * 1000
    looked = threading.Event()

    def handler(delivery: agentbus.Delivery) -> None:
        delivery.progress(1, hostile)
        assert looked.wait(PATIENCE)

    task = bus.queue("mail").publish(1)
    with Work(connect("bob"), handler):
        found = shown(bus, task, 1.0)
        looked.set()

    assert found.text == hostile[:200].replace("\ud800", "?")


def test_what_another_program_wrote_as_progress_is_left_out(
    bus: agentbus.Bus, connect: Connect
) -> None:
    looked, begun = threading.Event(), threading.Event()

    def handler(_delivery: agentbus.Delivery) -> None:
        begun.set()
        assert looked.wait(PATIENCE)

    task = bus.queue("mail").publish(1)
    with Work(connect("bob"), handler) as work:
        assert begun.wait(PATIENCE)
        record = bus.scope.keys.beat(work.worker.name)
        said = [b"{", b"7", b"[]", *(json.dumps({task: one}).encode() for one in FORGED)]
        for one in said:

            def op(value: bytes = one) -> Any:
                from agentbus.store.steps import Command

                yield Command("HSET", record, "progress", value)

            bus._run("test", op())
            assert bus.task(task).progress is None
        looked.set()


FORGED: list[Any] = [7, [], [2, "x", 1], [0.5, 1, 1], [0.5, "x", "y"], {"a": 1}, None, [0.5, "x"]]


def test_task_show_prints_the_progress(real_shell: Shell, real_url: str, project: str) -> None:
    looked = threading.Event()

    def handler(delivery: agentbus.Delivery) -> None:
        delivery.progress(0.4, "page 4 of 10")
        assert looked.wait(PATIENCE)

    with agentbus.connect(real_url, project=project, agent="bob") as bus:
        task = bus.queue("mail").publish(1)
        assert real_shell.records("task", "show", task)[0]["progress"] is None
        with Work(bus, handler):
            shown(bus, task, 0.4)
            (record,) = real_shell.records("task", "show", task)
            text = real_shell.ok("task", "show", task)
            looked.set()

    assert (record["progress"]["fraction"], record["progress"]["text"]) == (0.4, "page 4 of 10")
    assert record["progress"]["timestamp"].endswith("Z")
    assert f"progress  40%, page 4 of 10, at {record['progress']['timestamp']}" in text
