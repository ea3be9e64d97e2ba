"""A drain ends when nothing is left for its group, and reports what was buried meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import agentbus
import agentbus.aio
from agentbus.errors import TaskBuried, TimedOut, UsageError
from tests.conftest import Connect
from tests.servers import Shell

PATIENCE = 60.0


def fails(_: agentbus.Delivery) -> None:
    raise agentbus.Bury("no such address")


def until(condition: Any) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.005)


def test_a_drain_waits_for_a_task_that_another_worker_holds(
    bus: agentbus.Bus, connect: Connect
) -> None:
    queue, said = bus.queue("mail"), []
    queue.publish("held")
    (held,) = connect("bob").queue("mail").fetch()

    def ack() -> None:
        until(bus.workers)
        said.append("acked")
        held.ack()

    other = threading.Thread(target=ack)
    other.start()
    connect("eve").subscribe("mail", lambda _: None, drain=True).run()
    said.append("drained")
    other.join()

    assert said == ["acked", "drained"]


def test_a_drain_takes_over_the_task_of_a_dead_worker(bus: agentbus.Bus, connect: Connect) -> None:
    bus.queue("mail").publish("held")
    connect("bob").queue("mail").fetch(visibility=0.1)
    attempts = []

    bus.subscribe(
        "mail", lambda task: attempts.append(task.attempt), drain=True, visibility=0.1
    ).run()

    assert attempts == [2]


def test_a_drain_does_not_wait_for_what_is_not_due(bus: agentbus.Bus) -> None:
    queue, done = bus.queue("mail"), []
    queue.publish("later", delay=3600)
    queue.publish("due", delay=0)
    queue.publish("now")

    bus.subscribe("mail", lambda task: done.append(task.payload), drain=True).run()

    assert sorted(done) == ["due", "now"]


def test_a_drain_of_one_group_does_not_wait_for_another(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish(1)
    queue.fetch(group="audit")

    assert bus.subscribe("mail", lambda _: None, drain=True).run() == 1


def test_a_drain_counts_what_any_worker_of_its_group_buried_meanwhile(
    bus: agentbus.Bus, connect: Connect
) -> None:
    queue = bus.queue("mail")
    queue.publish("before")
    bus.subscribe("mail", fails, drain=True).run()
    queue.publish_many(["by another", "done"])
    (held,) = connect("bob").queue("mail").fetch(count=1)

    worker = bus.subscribe("mail", lambda _: held.bury("no") and None, drain=True)

    assert (worker.run(), worker.buried) == (1, 1)


def test_work_raises_if_a_task_was_buried_while_it_drained(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    bus.subscribe("mail")(fails)

    with pytest.raises(TaskBuried, match="1 task of 'mail' was buried") as buried:
        bus.work(drain=True)

    assert buried.value.exit_code == 8
    assert buried.value.shell_hint == "see 'agentbus dlq list mail'"
    assert bus.work(drain=True) == 0


async def test_work_in_a_loop_raises_it_too(abus: agentbus.aio.AsyncBus) -> None:
    await abus.queue("mail").publish_many([1, 2])
    abus.subscribe("mail")(fails)

    with pytest.raises(TaskBuried, match="2 tasks of 'mail' were buried"):
        await abus.work(drain=True)


def test_a_drain_ends_at_its_timeout(bus: agentbus.Bus, connect: Connect) -> None:
    bus.queue("mail").publish("held")
    connect("bob").queue("mail").fetch()

    with pytest.raises(TimedOut, match="'mail' was not drained in"):
        bus.subscribe("mail", fails, drain=True, drain_timeout=0.05).run()
    bus.subscribe("mail")(fails)
    with pytest.raises(TimedOut):
        bus.work(drain=True, drain_timeout=0.05)


# The second one is longer than a thread can wait.
@pytest.mark.parametrize("timeout", [PATIENCE, 1e10])
def test_a_drain_that_ends_in_time_raises_nothing(bus: agentbus.Bus, timeout: float) -> None:
    assert bus.subscribe("mail", fails, drain=True, drain_timeout=timeout).run() == 0


@pytest.mark.parametrize("options", [{"drain_timeout": 1}, {"drain": True, "drain_timeout": 0}])
def test_a_drain_timeout_that_means_nothing_is_refused(
    bus: agentbus.Bus, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="drain timeout"):
        bus.subscribe("mail", fails, **options)


# -- in the shell --


def test_a_buried_task_makes_a_drain_red(real_shell: Shell) -> None:
    real_shell.ok("publish", "mail", '"x"')
    buries = ("work", "mail", "--drain", "--attempts", "1", "--", "false")

    done = real_shell.run(*buries)

    assert done.returncode == 8
    assert "1 task of 'mail' was buried" in done.stderr
    assert "agentbus dlq list mail" in done.stderr
    # The next drain has buried nothing.
    assert real_shell.run(*buries).returncode == 0


def test_a_drain_that_takes_too_long_exits_with_3(real_shell: Shell) -> None:
    real_shell.ok("publish", "mail", '"x"')

    limits = ("--drain-timeout", "0.2", "--grace", "0")
    done = real_shell.run("work", "mail", "--drain", *limits, "--", "sleep", "1000")

    assert done.returncode == 3
    assert "was not drained in 0.2 s" in done.stderr
    assert real_shell.run("work", "mail", "--drain-timeout", "1", "--", "true").returncode == 2


def test_a_drain_whose_last_task_ends_within_the_grace_is_drained(real_shell: Shell) -> None:
    real_shell.ok("publish", "mail", "1")

    options = ("--drain", "--drain-timeout", "0.2", "--grace", "30")
    done = real_shell.run("work", "mail", *options, "--", "sleep", "1")

    assert done.returncode == 0, done.stderr


def test_a_limit_longer_than_a_thread_can_wait_is_a_limit_as_any_other(shell: Shell) -> None:
    shell.ok("publish", "mail", '"x"')

    done = shell.run("work", "mail", "--drain", "--drain-timeout", "9999999999", "--", "true")

    assert done.returncode == 0
    assert "Traceback" not in done.stderr
