"""Where a new group starts: at a queue's beginning, or with `tail` after its newest tasks."""

from __future__ import annotations

import json
from typing import Any

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import UsageError
from agentbus.queues.ids import PRIORITIES
from tests.servers import Shell, ask


def worked(bus: agentbus.Bus, group: str, **options: Any) -> list[Any]:
    """Work a group off, and return the payloads."""
    seen: list[Any] = []
    handler = lambda delivery: seen.append(delivery.payload)  # noqa: E731
    bus.subscribe("mail", handler, group=group, **{"drain": True, **options}).run()
    return seen


def test_a_new_group_at_the_tail_gets_only_what_is_published_later(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    for priority in PRIORITIES:
        queue.publish("old", priority=priority)

    assert worked(bus, "late", start="tail") == []
    for priority in PRIORITIES:
        queue.publish(priority, priority=priority)

    assert worked(bus, "late", start="tail") == ["critical", "high", "normal", "low"]
    assert queue.remaining("late") == 0


def test_an_existing_group_is_not_moved_to_the_tail(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish(1)
    assert worked(bus, "default") == [1]
    queue.publish(2)

    assert worked(bus, "default", start="tail") == [2]


def test_a_group_of_one_priority_is_not_moved_in_the_others(bus: agentbus.Bus) -> None:
    # given a group that another program created for one stream
    queue = bus.queue("mail")
    queue.publish(1)
    queue.publish(2, priority="high")
    ask(bus, "XGROUP", "CREATE", Keys(bus.project).queue("mail"), "other", "0")

    assert worked(bus, "other", start="tail") == [2, 1]


def test_a_group_at_the_tail_that_was_destroyed_is_created_where_it_was(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish("old")
    assert queue.fetch(group="late", start="tail") == []
    ask(bus, "XGROUP", "DESTROY", Keys(bus.project).queue("mail"), "late")
    queue.publish("new")

    assert worked(bus, "late", start="tail") == ["new"]


def test_fetch_starts_a_new_group_at_the_tail_once(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish("old")

    assert queue.fetch(group="late", start="tail") == []
    queue.publish("new")

    (delivery,) = queue.fetch(group="late", start="tail")
    assert delivery.payload == "new"
    assert delivery.ack()
    assert queue.remaining("late") == 0


def test_a_delayed_task_reaches_a_group_at_the_tail_when_it_is_due(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish("later", delay=0.05)

    assert worked(bus, "late", start="tail", drain=False, count=1) == ["later"]


def test_another_start_is_refused(bus: agentbus.Bus) -> None:
    with pytest.raises(UsageError, match="the start is 'newest'"):
        bus.subscribe("mail", print, start="newest")
    with pytest.raises(UsageError, match="the start is 'newest'"):
        bus.queue("mail").fetch(start="newest")


async def test_asynchronous_workers_and_fetches_start_at_the_tail(abus: agentbus.AsyncBus) -> None:
    queue = abus.queue("mail")
    await queue.publish("old")
    seen: list[Any] = []

    assert await queue.fetch(group="one", start="tail") == []
    handler = lambda delivery: seen.append(delivery.payload)  # noqa: E731
    await abus.subscribe("mail", handler, group="two", start="tail", drain=True).run()
    assert seen == []

    await queue.publish("new")
    assert [one.payload for one in await queue.fetch(group="one")] == ["new"]


def test_work_from_tail_passes_over_what_is_in_the_queue(real_shell: Shell) -> None:
    real_shell.ok("publish", "mail", "old")
    late = ("work", "mail", "--group", "late", "--from", "tail", "--drain", "--json")

    assert real_shell.ok(*late, "--", "true") == ""
    task_id = real_shell.ok("publish", "mail", "new").strip()

    (run,) = real_shell.ok(*late, "--", "true").splitlines()
    assert json.loads(run)["task_id"] == task_id
