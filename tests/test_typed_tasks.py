"""Typed tasks: declared without a connection, published by types, run by workers."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

import agentbus
from agentbus import AsyncBus, AsyncDelivery, Bus, Delivery, InvalidPayload, Tasks, UsageError


@dataclasses.dataclass
class Line:
    count: int


@dataclasses.dataclass
class Order:
    customer: str
    lines: list[Line]


class Point(msgspec.Struct):
    x: int


class Invoice(pydantic.BaseModel):
    number: int
    lines: list[Line] = []


class Named(TypedDict):
    name: str


class Smtp:
    def __init__(self) -> None:
        self.sent: list[str] = []
        self.closed = False


def run(tasks: Tasks, bus: Bus, **options: Any) -> int:
    return tasks.worker(bus, drain=True, **options).run()


def errors(bus: Bus, queue: str) -> list[str]:
    return [letter.error for letter in bus.queue(queue).dead_letters()]


def test_a_task_runs_with_the_objects_that_were_published(bus: Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="orders")
    def total(order: Order, factor: int = 2) -> Line:
        return Line(factor * sum(line.count for line in order.lines))

    handle = total.publish(bus, Order("ada", [Line(1), Line(2)]))
    by_name = total.publish(bus, factor=1, order=Order("bob", [Line(4)]))

    assert run(tasks, bus) == 2
    assert handle.result() == Line(6)
    assert by_name.result() == Line(4)
    assert handle.state().state == "done"


def test_a_task_is_called_as_a_plain_function() -> None:
    tasks = Tasks()

    @tasks.task(queue="math", given=Bus)
    def add(bus: Bus, a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    assert add(agentbus.connect("memory://"), 2, b=3) == 5
    assert add.__doc__ == "Add."
    assert add.__name__ == add.name == "add"


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        (Order, Order("ada", [Line(1)]), {"customer": "ada", "lines": [{"count": 1}]}),
        (Point, Point(3), {"x": 3}),
        (Invoice, Invoice(number=1, lines=[Line(2)]), {"number": 1, "lines": [{"count": 2}]}),
        (Named, {"name": "ada"}, {"name": "ada"}),
    ],
    ids=["dataclass", "struct", "pydantic", "typed dict"],
)
def test_one_object_is_the_payload_itself(bus: Bus, kind: Any, value: Any, data: Any) -> None:
    tasks = Tasks()

    def same(item):
        return item

    same.__annotations__ = {"item": kind, "return": kind}
    handle = tasks.task(queue="q")(same).publish(bus, value)

    assert [payload for _, payload in bus.queue("q").peek()] == [data]
    run(tasks, bus)
    assert handle.result() == value


def test_several_parameters_are_an_object_by_their_names(bus: Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="q")
    def pair(count: int, order: Order, *, note: str = "none") -> str:
        return f"{count} {order.customer} {note}"

    pair.publish(bus, 3, Order("ada", []))
    handle = bus.queue("q").publish({"count": 4, "order": {"customer": "bob", "lines": []}})

    first = {"count": 3, "order": {"customer": "ada", "lines": []}}
    assert bus.queue("q").peek()[0][1] == first
    run(tasks, bus)
    assert bus.result(handle) == "4 bob none"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            (Order("ada", [Line(1), Line("x")]), 1),
            r"\$\.order\.lines\[1\]\.count: expected int, got str",
        ),  # type: ignore[arg-type]
        ((Order("ada", []), "1"), r"\$\.times: expected int, got str"),
        ((Order("ada", []),), "missing a required argument: 'times'"),
        ((Order("ada", []), 1, 2), "too many positional arguments"),
        ((object(), 1), "cannot be sent as JSON: objects of the type object are not data"),
    ],
)
def test_what_does_not_fit_is_refused_at_publish(bus: Bus, arguments: Any, words: str) -> None:
    tasks = Tasks()

    @tasks.task(queue="q")
    def repeat(order: Order, times: int) -> None: ...

    with pytest.raises(InvalidPayload, match=words):
        repeat.publish(bus, *arguments)
    assert bus.queue("q").peek() == []


def test_what_another_program_wrote_is_buried_with_the_same_words(bus: Bus) -> None:
    tasks = Tasks()
    ran = []

    @tasks.task(queue="q")
    def take(order: Order) -> None:
        ran.append(order)

    wrong = {"customer": "ada", "lines": [{"count": "x"}]}
    with pytest.raises(InvalidPayload) as refused:
        take.publish(bus, wrong)  # type: ignore[call-overload]
    bus.queue("q").publish(wrong)
    bus.queue("q").publish("text")
    run(tasks, bus)

    first, second = errors(bus, "q")
    assert first == f"PayloadMismatch: {refused.value}"
    assert "$.lines[0].count: expected int, got str" in first
    assert "$: expected object, got str" in second
    assert ran == []


def test_pydantic_says_what_is_wrong_with_its_models(bus: Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="q")
    def take(invoices: list[Invoice], note: str = "") -> None: ...

    bus.queue("q").publish({"invoices": [{"number": 1}, {"number": 1, "lines": [{}]}]})
    run(tasks, bus)

    assert "$.invoices[1].lines[0].count: field required" in errors(bus, "q")[0]


def test_the_name_of_a_task_selects_it_in_its_queue(bus: Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="math")
    def double(n: int) -> int:
        return 2 * n

    @tasks.task(queue="math", name="minus")
    def negate(n: int) -> int:
        return -n

    handles = [double.publish(bus, 5), negate.publish(bus, 5)]
    other = bus.queue("math").publish({"n": 6}, task="minus")
    bus.queue("math").publish({"n": 1})
    bus.queue("math").publish({"n": 1}, task="plus")
    run(tasks, bus)

    assert [handle.result() for handle in handles] == [10, -5]
    assert bus.result(other) == -6
    unnamed, unknown = errors(bus, "math")
    assert "the entry names no task; the queue 'math' has 'double', 'minus'" in unnamed
    assert "is for the unknown task 'plus'" in unknown


def test_coroutines_run_in_a_thread_that_runs_an_event_loop(bus: Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="mail")
    async def double(number: int) -> int:
        return 2 * number

    async def cell() -> int:
        return run(tasks, bus)

    handle = double.publish(bus, 21)

    assert (asyncio.run(cell()), handle.result(wait=5)) == (1, 42)


def test_functions_and_coroutines_run_in_one_worker(bus: Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="threads")
    def one(n: int) -> int:
        return n

    @tasks.task(queue="loop")
    async def two(n: int) -> int:
        return n

    @tasks.task(queue="both")
    async def three(n: int) -> int:
        return n

    @tasks.task(queue="both", given=Bus)
    def four(bus: Bus, n: int) -> int:
        bus.jot("n", str(n))
        return n

    handles = [task.publish(bus, n) for n, task in enumerate((one, two, three, four), 1)]

    assert run(tasks, bus, concurrency=2) == 4
    assert [handle.result() for handle in handles] == [1, 2, 3, 4]


def test_a_worker_of_some_queues_leaves_the_others(bus: Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="a")
    def one() -> None: ...

    @tasks.task(queue="b")
    def two() -> None: ...

    one.publish(bus)
    two.publish(bus)

    assert run(tasks, bus, queues=["b"]) == 1
    assert bus.queue("a").remaining() == 1
    with pytest.raises(UsageError, match="no task is declared for the queue 'c'"):
        tasks.worker(bus, queues=["c"])


async def test_an_asynchronous_bus_publishes_and_runs_tasks(abus: AsyncBus) -> None:
    tasks = Tasks()

    @tasks.task(queue="loop", given=(AsyncBus, AsyncDelivery))
    async def note(bus: AsyncBus, delivery: AsyncDelivery, key: str) -> int:
        await bus.jot(key, "x")
        return delivery.attempt

    @tasks.task(queue="threads", given=Bus)
    def read(bus: Bus, key: str) -> str:
        bus.jot(key, "y")
        return key

    first = await note.publish(abus, "k")
    second, third = await read.publish_many(abus, [read.item("l"), read.item("m")])
    await tasks.worker(abus, drain=True).run()

    assert [await first.result(), await second.result(), await third.result()] == [1, "l", "m"]
    assert (await abus.recall("k")).value == "x"
    with pytest.raises(InvalidPayload, match=r"\$\.key: expected str, got int"):
        await note.publish(abus, 1)  # type: ignore[call-overload]


def test_options_are_kept_in_the_envelope(bus: Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="q", attempts=2, priority="high", expires=60)
    def one(n: int) -> None: ...

    state = one.publish(bus, 1).state()
    more = one.options(key="k", priority="low", delay=30)
    again = more.publish(bus, 2)

    assert state.priority == "high"
    own = {"correlation_id": state.id}
    assert state.envelope == {"attempts": 2, "expires": 60, "task": "one"} | own
    assert more.publish(bus, 2).id == again.id
    assert again.state().priority == "low"
    assert again.state().due is not None
    with pytest.raises(UsageError, match="publish_many has no option 'delay'"):
        more.item(1)


def test_a_batch_keeps_the_options_of_each_call(bus: Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="q", attempts=2)
    def one(n: int) -> int:
        return n

    handles = one.publish_many(bus, [one.item(1), one.options(tenant="t").item(2)])

    found = [handle.state().envelope for handle in handles]
    both = {"attempts": 2, "task": "one"}
    first, second = ({"correlation_id": handle.id} for handle in handles)
    assert found == [both | first, both | second | {"tenant": "t"}]
    with pytest.raises(UsageError, match="is not a call of the task 'one'"):
        one.publish_many(bus, [3])  # type: ignore[call-overload]


def test_a_failing_task_is_retried_and_its_handle_raises(bus: Bus) -> None:
    tasks = Tasks()
    seen = []

    @tasks.task(queue="q", attempts=2, given=Delivery, backoff=agentbus.Backoff(first=0.001))
    def fail(delivery: Delivery, n: int) -> None:
        seen.append((delivery.attempt, n))
        raise ValueError("no")

    handle = fail.publish(bus, 7)
    run(tasks, bus)

    assert seen == [(1, 7), (2, 7)]
    with pytest.raises(agentbus.TaskBuried, match="ValueError: no"):
        handle.result()


def test_a_handle_cancels_its_task(bus: Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="q")
    def never(n: int) -> None:
        raise AssertionError(n)

    handle = never.publish(bus, 1)
    handle.cancel()
    run(tasks, bus)

    with pytest.raises(agentbus.TaskCancelled):
        never.handle(bus, handle.id).result(wait=1)


def test_what_is_provided_for_a_worker_is_shared_and_closed(bus: Bus) -> None:
    tasks = Tasks()
    made = []

    def smtp() -> Iterator[Smtp]:
        made.append(found := Smtp())
        yield found
        found.closed = True

    tasks.provide(Smtp, smtp)

    @tasks.task(queue="mail", given=Smtp)
    def send(smtp: Smtp, to: str) -> None:
        assert not smtp.closed
        smtp.sent.append(to)

    send.publish_many(bus, [send.item("a"), send.item("b")])
    run(tasks, bus)

    (only,) = made
    assert only.sent == ["a", "b"]
    assert only.closed


def test_what_is_provided_for_a_task_is_its_own_and_sees_its_error(bus: Bus) -> None:
    tasks = Tasks()
    seen: list[str] = []

    async def smtp() -> AsyncIterator[Smtp]:
        try:
            yield Smtp()
        except ValueError as error:
            seen.append(str(error))
            raise
        seen.append("done")

    tasks.provide(Smtp, smtp, per="task")

    @tasks.task(queue="mail", given=Smtp, attempts=1)
    async def send(smtp: Smtp, to: str) -> None:
        assert smtp.sent == []
        smtp.sent.append(to)
        if to == "b":
            raise ValueError("no b")

    send.publish(bus, "a")
    send.publish(bus, "b")
    run(tasks, bus)

    assert seen == ["done", "no b"]


def test_an_included_registry_brings_its_tasks_and_what_it_provides(bus: Bus) -> None:
    other, tasks = Tasks(), Tasks()
    other.provide(str, "theirs")
    other.provide(int, 1)
    tasks.provide(str, "ours")
    tasks.include(other)

    @other.task(queue="q", given=(str, int))
    def one(text: str, number: int) -> str:
        return f"{text} {number}"

    handle = one.publish(bus)
    run(tasks, bus)

    assert handle.result() == "ours 1"
    with pytest.raises(UsageError, match="cannot include itself"):
        other.include(tasks)


def test_each_task_of_a_queue_has_its_backoff(bus: agentbus.Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="q", backoff=agentbus.Backoff(first=100, longest=100))
    def slow() -> None:
        raise ValueError("later")

    @tasks.task(queue="q", backoff=agentbus.Backoff(first=3000, longest=3000))
    def slower() -> None:
        raise ValueError("later")

    @tasks.task(queue="q")
    def other() -> None:
        raise ValueError("later")

    ids = [task.publish(bus).id for task in (slow, slower, other)]
    worker = tasks.worker(bus)
    running = threading.Thread(target=worker.run)
    running.start()
    while {bus.task(one).state for one in ids} != {"retrying"}:
        pass
    worker.stop()
    running.join()

    pauses = [bus.task(one).due - time.time() for one in ids]  # type: ignore[operator]
    assert 40 < pauses[0] <= 100
    assert 1400 < pauses[1] <= 3000
    assert pauses[2] <= 1


def test_a_mistake_in_a_declaration_is_refused() -> None:
    tasks = Tasks()

    with pytest.raises(UsageError, match="no option 'colour'"):
        tasks.task(queue="q", colour="red")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="unique is 'for ever'"):
        tasks.task(queue="q", unique="for ever")
    with pytest.raises(UsageError, match="the time limit is 0"):
        tasks.task(queue="q", timeout=0)
    with pytest.raises(UsageError, match="attempts are 0"):
        tasks.task(queue="q", attempts=0)
    with pytest.raises(agentbus.InvalidName):
        tasks.task(queue="a\nb")

    @tasks.task(queue="q")
    def one() -> None: ...

    with pytest.raises(UsageError, match="two tasks 'one' of the queue 'q'"):
        tasks.task(queue="q")(one.function)


def test_a_worker_refuses_tasks_that_it_cannot_give_what_they_ask_for(bus: Bus) -> None:
    for given, words in (
        (Smtp, "asks for Smtp, which nothing provides"),
        (AsyncBus, "asks for AsyncBus, and is not a coroutine function"),
    ):
        tasks = Tasks()
        tasks.task(queue="q", given=given)(lambda it: None)  # type: ignore[call-overload]
        with pytest.raises(UsageError, match=words):
            tasks.worker(bus)

    tasks = Tasks()

    @tasks.task(queue="q")
    def several(*numbers: int) -> None: ...

    with pytest.raises(UsageError, match="has the variadic positional parameter 'numbers'"):
        tasks.worker(bus)


def test_a_worker_of_several_queues_stops_in_all_of_them(bus: Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="a")
    def last(n: int) -> int:
        worker.stop()
        return n

    @tasks.task(queue="b")
    async def never() -> None: ...

    worker = tasks.worker(bus)
    handle = last.publish(bus, 1)

    assert worker.run() == 1
    assert handle.result() == 1
