"""Tasks that a handler snoozes: they run again later, and the attempt does not count."""

from __future__ import annotations

import pytest

from agentbus import AsyncDelivery, Bus, Delivery, Snooze, UsageError


@pytest.mark.parametrize("attempts", [1, 2])
def test_snoozed_attempts_do_not_count(bus: Bus, attempts: int) -> None:
    bus.queue("mail").publish("a")
    seen: list[int] = []

    def handle(delivery: Delivery) -> str:
        seen.append(delivery.attempt)
        if len(seen) < 5:
            raise Snooze(0.001)
        return "done"

    worker = bus.subscribe("mail", handle, attempts=attempts, drain=True)
    worker.run()

    assert (seen, worker.done, worker.failed) == ([1] * 5, 1, 0)


def test_an_attempt_that_failed_before_still_counts(bus: Bus) -> None:
    bus.queue("mail").publish("a")
    seen: list[int] = []

    def handle(delivery: Delivery) -> None:
        seen.append(delivery.attempt)
        if len(seen) in (2, 3):
            assert delivery.snooze(0.001)
        else:
            raise ValueError("no")

    bus.subscribe("mail", handle, attempts=2, drain=True).run()

    (letter,) = bus.queue("mail").dead_letters()
    assert (seen, letter.attempts) == ([1, 2, 2, 2], 2)


def test_a_coroutine_snoozes_its_task(bus: Bus) -> None:
    bus.queue("mail").publish("a")
    seen: list[int] = []

    async def handle(delivery: AsyncDelivery) -> None:
        seen.append(delivery.attempt)
        if len(seen) == 1:
            await delivery.snooze(0.001)

    bus.subscribe("mail", handle, attempts=1, drain=True).run()

    assert seen == [1, 1]


def test_a_snoozed_task_waits_as_long_as_it_was_told(bus: Bus) -> None:
    task = bus.queue("mail").publish("a")
    (delivery,) = bus.queue("mail").fetch()

    assert delivery.snooze(600.0)

    found = bus.task(task)
    assert found.state == "retrying"
    assert 590 < (found.due or 0.0) - bus.scope.now() <= 600
    assert bus.queue("mail").fetch() == []


def test_a_snoozed_task_keeps_later_ones_of_its_ordering_key_waiting(bus: Bus) -> None:
    for number in range(2):
        bus.queue("mail").publish(number, ordering_key="ada")
    seen: list[int] = []

    def handle(delivery: Delivery) -> None:
        seen.append(delivery.payload)
        if len(seen) < 3:
            raise Snooze(0.001)

    bus.subscribe("mail", handle, drain=True).run()

    assert seen == [0, 0, 0, 1]


@pytest.mark.parametrize("after", [-1.0, float("nan"), "soon"])
def test_a_pause_that_makes_no_sense_is_refused(bus: Bus, after: float) -> None:
    bus.queue("mail").publish("a")
    (delivery,) = bus.queue("mail").fetch()

    with pytest.raises(UsageError):
        delivery.snooze(after)
    assert delivery.ack()
