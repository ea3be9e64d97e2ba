"""Typed tasks with a schedule: their workers publish them, each tick once."""

from __future__ import annotations

import threading

import pytest

import agentbus
from agentbus import Bus, InvalidPayload, Tasks, UsageError
from agentbus.tasks import Scheduler, Schedules
from agentbus.tasks.declared_schedules import definitions
from agentbus.tasks.ticks import Tick
from tests.tiers import on_one_store


@on_one_store
def test_a_task_with_a_period_is_published_by_its_worker(bus: Bus) -> None:
    tasks, ran = Tasks(), threading.Semaphore(0)

    @tasks.task(queue="reports", every=0.05)
    def report(pages: int = 3) -> int:
        ran.release()
        return pages

    worker = tasks.worker(bus)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        assert all(ran.acquire(timeout=20) for _ in range(3))
        (found,) = Schedules(bus).list()
        assert (found.name, found.queue, found.every) == ("reports.report", "reports", 0.05)
        # Once the worker stops, the last task may be left to another one.
        assert bus.queue("reports").result(str(found.last_task), wait=20) == 3
    finally:
        worker.stop()
        running.join()


async def test_a_coroutine_with_a_period_is_published_by_its_worker(
    abus: agentbus.AsyncBus,
) -> None:
    tasks = Tasks()

    @tasks.task(queue="reports", every=0.05)
    async def report() -> None:
        worker.stop()

    worker = tasks.worker(abus)

    assert await worker.run() >= 1


@on_one_store
def test_a_unique_task_is_not_published_by_a_tick_before_the_one_before_it_has_ended(
    bus: Bus,
) -> None:
    tasks = Tasks()

    @tasks.task(queue="reports", every=0.01, unique="until_done")
    def report(pages: int = 3) -> int:
        return pages

    schedules, scheduler = Schedules(bus), Scheduler(bus)
    schedules.sync(definitions([report]), owner="app")
    ticks: list[Tick] = []
    while len(ticks) < 3:
        ticks += scheduler.run_once()

    (waiting,) = {tick.task_id for tick in ticks}
    assert report.publish(bus).id == schedules.trigger("reports.report") == waiting
    assert bus.queue("reports").remaining() == 1


def test_a_unique_schedule_needs_a_key(bus: Bus) -> None:
    with pytest.raises(UsageError, match="the schedule 'poll' is unique, and has no key"):
        Schedules(bus).add("poll", "fetch", every=60, unique="until_done")


@on_one_store
def test_schedules_that_a_program_no_longer_declares_are_removed(bus: Bus) -> None:
    def declared(*names: str) -> list[str]:
        tasks = Tasks()
        for name in names:
            tasks.task(queue="reports", name=name, cron="0 6 * * *", timezone="Europe/Berlin")(
                lambda: None
            )
        tasks.task(queue="reports", name="plain")(lambda: None)
        worker = tasks.worker(bus, owner="app:tasks")
        worker.stop()
        worker.run()
        return [one.name for one in Schedules(bus).list()]

    Schedules(bus).add("by hand", "reports", every=60.0)

    assert declared("a", "b") == ["by hand", "reports.a", "reports.b"]
    assert declared("b") == ["by hand", "reports.b"]
    assert declared() == ["by hand"]


@on_one_store
def test_a_task_with_a_schedule_has_no_arguments(bus: Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="reports", every=60)
    def report(pages: int) -> int:
        return pages

    with pytest.raises(InvalidPayload, match="incomplete"):
        tasks.worker(bus)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"every": 30, "cron": "* * * * *"}, "has both"),
        ({"cron": "61 * * * *"}, "minute"),
        ({"cron": "* * * * *", "timezone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"every": 0}, "period"),
        ({"timezone": "Europe/Berlin"}, "timezone without a schedule"),
        ({"every": 30, "missed": "some"}, "missed is 'some'"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_where_it_is_declared(
    times: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        Tasks().task(queue="reports", **times)  # type: ignore[call-overload]
