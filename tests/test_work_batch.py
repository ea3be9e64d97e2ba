"""`work --batch N` gives a program several tasks at once; a handler of a list says which of them failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentbus
from agentbus.queues.delivery import Delivery
from agentbus.retry import Backoff
from tests.servers import Shell
from tests.tiers import on_one_store

SOON = Backoff(first=0.01)


def published(shell: Shell, *payloads: str, **options: Any) -> list[str]:
    return shell.ok("publish", "rows", "--lines", stdin="\n".join(payloads), **options).split()


def work(shell: Shell, script: str, *options: str) -> Any:
    return shell.run("work", "rows", "--drain", *options, "--", "sh", "-c", script)


def test_the_program_reads_the_payloads_as_lines(real_shell: Shell) -> None:
    ids = published(real_shell, *map(str, range(7)))

    done = work(real_shell, "cat >&2; echo $AGENTBUS_QUEUE $AGENTBUS_TASK_IDS >&2", "--batch", "5")

    first, last = " ".join(ids[:5]), " ".join(ids[5:])
    printed = [line.partition(" | ")[2] for line in done.stderr.splitlines() if " | " in line]
    assert printed == [*"01234", f"rows {first}", *"56", f"rows {last}"]
    assert all(f"{task} done in " in done.stderr for task in ids)
    assert f"{ids[0]} and 4 more | 0\n" in done.stderr


def test_as_many_lines_as_tasks_are_their_results(real_shell: Shell) -> None:
    ids = published(real_shell, "1", "2", "3")

    work(real_shell, "sed 's/.*/{\"got\": &}/'", "--batch", "10")

    results = [real_shell.ok("result", one).strip() for one in ids]
    assert results == ['{"got":1}', '{"got":2}', '{"got":3}']


def test_other_output_is_not_a_result(real_shell: Shell) -> None:
    ids = published(real_shell, "1", "2", "3")

    assert work(real_shell, "echo loaded", "--batch", "10").returncode == 0

    assert [real_shell.ok("result", one) for one in ids] == ["", "", ""]


@pytest.mark.parametrize("code", ["1", "65"])
def test_a_task_that_makes_it_fail_costs_the_others_one_attempt(
    real_shell: Shell, code: str
) -> None:
    ids = published(real_shell, "1", '"bad"', "3")

    done = work(
        real_shell,
        f"grep -q bad && exit {code}; exit 0",
        *("--batch", "10", "--attempts", "2", "--json"),
    )

    assert done.returncode == 8
    states = [real_shell.records("task", "show", one)[0] for one in ids]
    assert [one["state"] for one in states] == ["done", "dead", "done"]
    assert [one["attempts"] for one in states] == [2, 2, 2]
    assert states[1]["error"].endswith(f"exit {code}")


def test_one_task_is_given_alone_if_there_is_no_other(real_shell: Shell) -> None:
    (task,) = published(real_shell, "1")

    assert f"{task} | 1\n" in work(real_shell, "cat", "--batch", "10").stderr
    assert real_shell.ok("result", task) == "1\n"


@pytest.mark.parametrize(
    "options", [("--match",), ("--concurrency", "2"), ("--batch", "0"), ("--batch", "1001")]
)
def test_what_does_not_go_with_it_is_refused(real_shell: Shell, options: tuple[str, ...]) -> None:
    batch = () if "--batch" in options else ("--batch", "5")

    assert real_shell.run("work", "rows", *batch, *options, "--", "cat").returncode == 2


def test_a_task_that_had_not_started_when_its_worker_was_stopped_has_not_lost_an_attempt(
    real_shell: Shell,
) -> None:
    ids = published(real_shell, "1", "2")
    batch = ("work", "rows", "--batch", "2", "--attempts", "100")
    failing = real_shell.start(*batch, "--", "false")
    assert failing.stderr is not None
    assert any(" failed " in line for line in failing.stderr)
    failing.terminate()
    failing.communicate()

    def attempts() -> list[int]:
        return [real_shell.records("task", "show", one)[0]["attempts"] for one in ids]

    first, second = attempts()
    for one in ids:
        real_shell.ok("task", "set", one, "--now")
    worker = real_shell.start(*batch, "--grace", "0", "--", "sh", "-c", "echo began >&2; sleep 99")
    assert worker.stderr is not None
    assert any(line.endswith(" | began\n") for line in worker.stderr)
    worker.terminate()
    worker.communicate()

    assert attempts() == [first + 1, second]


def test_a_time_limit_of_one_ends_the_program(real_shell: Shell) -> None:
    ids = [
        *published(real_shell, "1"),
        real_shell.ok("publish", "rows", "2", "--time-limit", "1").strip(),
    ]

    done = work(
        real_shell,
        'case $AGENTBUS_TASK_IDS in *" "*) sleep 60;; esac',
        *("--batch", "10", "--attempts", "2"),
    )

    assert "killed: took longer than 1 s" in done.stderr
    states = [real_shell.records("task", "show", one)[0]["state"] for one in ids]
    assert states == ["done", "done"]


# -- in Python --


def test_a_handler_of_a_list_says_which_have_failed(bus: agentbus.Bus) -> None:
    ids = bus.queue("rows").publish_many([1, 2, 3, 4])
    calls: list[list[Any]] = []

    def load(deliveries: list[Delivery]) -> None:
        calls.append([one.payload for one in deliveries])
        for one in deliveries:
            if one.payload == 2:
                one.fail("not a row")
            elif one.payload == 3 and one.attempt == 1:
                one.fail(ValueError("later"))
            elif one.payload == 4:
                one.fail(agentbus.Bury("never"))

    worker = bus.subscribe(
        "rows", load, batch=True, prefetch=9, drain=True, attempts=2, backoff=SOON
    )
    worker.run()

    assert calls[0] == [1, 2, 3, 4]
    found = [bus.task(one) for one in ids]
    assert [one.state for one in found] == ["done", "dead", "done", "dead"]
    assert [one.attempts for one in found] == [1, 2, 2, 1]
    assert (found[1].error, found[3].error) == ("Retry: not a row", "Bury: never")
    assert worker.failed == 4


@on_one_store
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_handler_of_one_may_say_so_too(bus: agentbus.Bus, concurrency: int) -> None:
    task = bus.queue("rows").publish(1)

    bus.subscribe(
        *("rows", lambda one: one.fail("no")),
        drain=True,
        attempts=2,
        backoff=SOON,
        concurrency=concurrency,
    ).run()

    assert (bus.task(task).state, bus.task(task).attempts) == ("dead", 2)


@on_one_store
def test_a_coroutine_may_say_so_too(bus: agentbus.Bus) -> None:
    task = bus.queue("rows").publish(1)

    async def handle(delivery: Any) -> None:
        delivery.fail("no")

    async def main() -> None:
        async with agentbus.AsyncBus(bus.settings) as other:
            await other.subscribe("rows", handle, drain=True, attempts=2, backoff=SOON).run()

    asyncio.run(main())
    assert (bus.task(task).state, bus.task(task).attempts) == ("dead", 2)
