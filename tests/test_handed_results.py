"""A task that waited for others finds their results in its delivery, and a program in its environment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentbus
from agentbus.queues.delivery import Delivery
from tests.servers import Shell, program
from tests.tiers import on_one_store


def drained(bus: agentbus.Bus, queue: str, handler: Any, **options: Any) -> None:
    bus.subscribe(queue, handler, drain=True, **options).run()


def seen(bus: agentbus.Bus, queue: str, **options: Any) -> list[tuple[list[str], list[Any]]]:
    """Drain a queue, and return the ids and the results that each delivery was handed."""
    found: list[tuple[list[str], list[Any]]] = []

    def handler(delivery: Delivery) -> None:
        found.append((delivery.after, delivery.results()))

    drained(bus, queue, handler, **options)
    return found


def test_results_are_handed_on_in_the_order_of_the_ids(bus: agentbus.Bus) -> None:
    pages = bus.queue("pages")
    parts = [pages.publish(number) for number in (1, 2, 3)]
    asked = [parts[2], parts[0], parts[1]]
    bus.queue("books").publish("bind", after=asked)

    drained(bus, "pages", lambda delivery: {"page": delivery.payload * 10})

    assert seen(bus, "books") == [(asked, [{"page": 30}, {"page": 10}, {"page": 20}])]


def test_a_task_that_was_done_before_hands_its_result_on_too(bus: agentbus.Bus) -> None:
    part = bus.queue("pages").publish(1)
    drained(bus, "pages", lambda _delivery: "done")
    bus.queue("books").publish("bind", after=part)

    assert seen(bus, "books") == [([part], ["done"])]


def test_a_task_without_a_result_hands_on_none(bus: agentbus.Bus) -> None:
    part = bus.queue("pages").publish(1)
    bus.queue("books").publish("bind", after=part)
    drained(bus, "pages", lambda _delivery: None)

    assert seen(bus, "books") == [([part], [None])]


def test_a_task_that_waited_for_nothing_has_no_results(bus: agentbus.Bus) -> None:
    bus.queue("books").publish("bind")

    assert seen(bus, "books") == [([], [])]


@on_one_store
def test_results_of_another_group_are_handed_on(bus: agentbus.Bus) -> None:
    part = bus.queue("pages").publish(1)
    bus.queue("books").publish("bind", after=part, after_group="audit")
    drained(bus, "pages", lambda _delivery: "of default")
    drained(bus, "pages", lambda _delivery: "of audit", group="audit", start="first")

    assert seen(bus, "books") == [([part], ["of audit"])]


@on_one_store
def test_a_replayed_task_finds_the_same_results(bus: agentbus.Bus) -> None:
    part = bus.queue("pages").publish(1)
    bus.queue("books").publish("bind", after=part)
    drained(bus, "pages", lambda _delivery: 7)

    def refuse(_delivery: Delivery) -> None:
        raise agentbus.Bury("no glue")

    drained(bus, "books", refuse)
    bus.queue("books").replay_all()

    assert seen(bus, "books") == [([part], [7])]


@on_one_store
def test_a_coroutine_awaits_the_results(bus: agentbus.Bus) -> None:
    part = bus.queue("pages").publish(1)
    bus.queue("books").publish("bind", after=part)
    drained(bus, "pages", lambda _delivery: 7)
    found: list[Any] = []

    async def bind(delivery: agentbus.queues.delivery.AsyncDelivery) -> None:
        found.append(await delivery.results())

    async def main() -> None:
        async with agentbus.AsyncBus(bus.settings) as other:
            await other.subscribe("books", bind, drain=True).run()

    asyncio.run(main())
    assert found == [[7]]


SHOW = 'echo "$AGENTBUS_AFTER $AGENTBUS_RESULTS"'


def test_a_program_finds_ids_and_results_in_its_environment(real_shell: Shell) -> None:
    first = real_shell.ok("publish", "pages", "1").strip()
    last = real_shell.ok("publish", "books", "bind", "--after", first).strip()
    real_shell.ok("work", "pages", "--drain", "--", "sh", "-c", "echo '{\"page\": 1}'")
    real_shell.ok("work", "books", "--drain", "--", "sh", "-c", SHOW)

    assert real_shell.ok("result", last).strip() == f'["{first}"] [{{"page":1}}]'


@pytest.mark.parametrize("inherited", ["AGENTBUS_AFTER", "AGENTBUS_RESULTS"])
def test_a_program_does_not_inherit_them(real_shell: Shell, inherited: str) -> None:
    last = real_shell.ok("publish", "books", "bind").strip()
    real_shell.ok(
        *("work", "books", "--drain", "--", "sh", "-c", f'echo "x${inherited}"'),
        env={inherited: "of the worker"},
    )

    assert real_shell.ok("result", last).strip() == "x"


def test_results_too_long_for_a_variable_are_left_to_the_verb(real_shell: Shell) -> None:
    first = real_shell.ok("publish", "pages", "1").strip()
    last = real_shell.ok("publish", "books", "bind", "--after", first).strip()
    real_shell.ok(
        "work", "pages", "--drain", "--", "sh", "-c", "head -c 150000 /dev/zero | tr '\\0' a"
    )
    show = (
        'echo "x$AGENTBUS_RESULTS"; '
        + program()
        + " result $(echo $AGENTBUS_AFTER | tr -d '[]\"') | wc -c"
    )
    real_shell.ok("work", "books", "--drain", "--", "sh", "-c", show)

    assert real_shell.ok("result", last).strip() == "x\n150001"
