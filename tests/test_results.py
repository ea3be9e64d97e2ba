"""Results: what a task came to, and why there is none where there never will be one."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, strategies as st

import agentbus
from agentbus.core import names
from agentbus.core.keys import Keys
from agentbus.errors import NotFound, TaskBuried, TimedOut, UsageError
from agentbus.queues.ids import PRIORITIES, task_id
from agentbus.queues.results import Address
from tests import profiles  # noqa: F401 (loads the profile)
from tests.conftest import Connect
from tests.servers import ask


def fail(_: agentbus.Delivery) -> None:
    raise agentbus.Bury("no such address")


def test_a_task_that_came_to_nothing_has_the_result_none(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    tasks = [queue.publish(1, priority=priority) for priority in PRIORITIES]

    bus.subscribe("mail", lambda _: None, drain=True).run()

    assert [queue.result(task) for task in tasks] == [None] * 4
    assert [queue.result(task, wait=30) for task in tasks] == [None] * 4


def test_a_waiting_result_returns_when_the_task_came_to_nothing(
    bus: agentbus.Bus, connect: Connect
) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1)
    worker = connect("bob").subscribe("mail", lambda _: None, count=1)
    thread = threading.Thread(target=worker.run)
    thread.start()

    assert queue.result(task, wait=30) is None
    thread.join()


def test_a_wait_that_is_not_a_number_is_refused_and_not_waited_for(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish("ada")

    with pytest.raises(UsageError, match="wait is nan"):
        bus.result(task, wait=float("nan"))


def test_a_task_in_somebodys_hands_is_not_done(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1)
    (delivery,) = queue.fetch()

    with pytest.raises(NotFound, match="no result"):
        queue.result(task)
    assert delivery.retry(60)
    with pytest.raises(TimedOut):
        queue.result(task, wait=0.01)


def test_a_buried_task_says_so_with_its_error_and_its_letter(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1)
    bus.subscribe("mail", fail, drain=True).run()
    (letter,) = queue.dead_letters()

    for wait in (None, 30):
        with pytest.raises(TaskBuried, match="Bury: no such address") as buried:
            queue.result(task, wait=wait)

    assert buried.value.exit_code == 8
    assert isinstance(buried.value, NotFound)
    assert f"dlq show mail {letter.id}" in (buried.value.shell_hint or "")


def test_a_buried_task_that_was_replayed_says_as_which_task(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1)
    bus.subscribe("mail", fail, group="g", drain=True).run()
    again = queue.replay(queue.dead_letters("g")[0].id, group="g")

    with pytest.raises(TaskBuried) as buried:
        queue.result(task)

    assert again in str(buried.value)


def test_what_is_kept_of_a_buried_task_expires(bus: agentbus.Bus, project: str) -> None:
    task = bus.queue("mail").publish(1)
    bus.subscribe("mail", fail, drain=True).run()

    assert 0 < ask(bus, "TTL", Keys(project).result(task)) <= 86_400


def test_a_result_that_looks_like_a_burial_is_a_result(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1)

    bus.subscribe("mail", lambda _: "!1-1 buried", drain=True).run()

    assert queue.result(task) == "!1-1 buried"


# -- ids --


@pytest.mark.parametrize(
    "task",
    [
        *("nonsense", "1-1", "1-1@", "@mail", "1@mail", "1-@mail", "-1@mail", "a-1@mail", "d@mail"),
        *("d-1@mail", "d01@mail", "01-1@mail", "1-01@mail", "1-1@mail:urgent", "1-1@mail:normal"),
        *("1-1@a%b", "1-1@a\nb", "1-\u0661@mail", "1-18446744073709551616@mail", "", "\ud800@mail"),
        "1-1@" + "x" * 257,
    ],
    ids=ascii,
)
def test_what_is_no_task_id_is_an_error_at_once(bus: agentbus.Bus, task: str) -> None:
    for wait in (None, 600):
        with pytest.raises(UsageError):
            bus.queue("mail").result(task, wait=wait)


@pytest.mark.parametrize(
    "task", ["1-1@mail", "1-1@nowhere", "99999999999999-1@mail", "d2@mail", "d1@nowhere"]
)
def test_a_task_that_never_was_is_not_found_at_once(bus: agentbus.Bus, task: str) -> None:
    bus.queue("mail").publish(1)
    bus.queue("mail").publish(1, delay=600)

    for wait in (None, 600):
        with pytest.raises(NotFound, match="no task"):
            bus.queue("mail").result(task, wait=wait)


def test_a_task_that_was_dropped_at_the_bound_is_not_found(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail", bound=1)
    queue.fetch()
    dropped = queue.publish(1)
    queue.publish(2, on_full="trim")

    with pytest.raises(NotFound, match="no task"):
        queue.result(dropped, wait=600)


name = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)


@given(
    name | st.text("a:%3A@d-1", min_size=1, max_size=9),
    st.sampled_from(PRIORITIES),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
def test_every_id_that_publish_can_return_is_taken_apart(
    queue: str, priority: str, first: int, second: int
) -> None:
    found = Address(task_id(f"{first}-{second}", queue, priority))
    delayed = Address(task_id(f"d{first}", queue, priority))

    assert (found.queue, found.priority) == (delayed.queue, delayed.priority) == (queue, priority)
    assert (found.entry, found.number) == (f"{first}-{second}", "")
    assert (delayed.entry, delayed.number) == ("", str(first))


@given(st.text(max_size=40) | st.text("d0123456789-@:ahigl%3A", max_size=20))
def test_any_text_is_an_id_or_a_usage_error(said: str) -> None:
    try:
        found = Address(said)
    except UsageError:
        return
    entry = found.entry or f"d{found.number}"
    assert task_id(entry, found.queue, found.priority) == said
    assert names.name("queue", found.queue)


# -- delayed tasks --


def test_a_delayed_task_that_came_to_nothing_has_the_result_none(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1, delay=0)

    bus.subscribe("mail", lambda _: None, drain=True).run()

    assert queue.result(task) is None


def test_a_delayed_task_has_no_result_before_it_is_due(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1, delay=600)

    with pytest.raises(NotFound, match="no result"):
        queue.result(task)
    with pytest.raises(TimedOut):
        queue.result(task, wait=0.01)


def test_a_delayed_task_that_was_buried_says_so(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1, delay=0)

    bus.subscribe("mail", fail, drain=True).run()

    with pytest.raises(TaskBuried):
        bus.queue("mail").result(task)


# -- groups --


def test_each_group_has_a_result_of_its_own(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1)
    for group in ("default", "audit", "a:b"):
        bus.subscribe("mail", lambda d: d.group, group=group, drain=True).run()

    assert queue.result(task) == "default"
    assert queue.result(task, group="audit") == "audit"
    assert queue.result(task, group="a:b") == "a:b"


@pytest.mark.parametrize("outcome", ["done", None])
def test_the_only_group_need_not_be_named(bus: agentbus.Bus, outcome: Any) -> None:
    queue = bus.queue("mail")
    tasks = [queue.publish(1), queue.publish(2, delay=0)]

    bus.subscribe("mail", lambda _: outcome, group="ci", drain=True).run()

    assert [queue.result(task) for task in tasks] == [outcome, outcome]


def test_where_several_groups_could_be_meant_they_are_named(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1)
    for group in ("one", "two"):
        bus.subscribe("mail", lambda d: d.group, group=group, drain=True).run()

    with pytest.raises(UsageError, match="'one', 'two'"):
        queue.result(task, wait=600)

    assert queue.result(task, group="two") == "two"


def test_a_group_that_has_not_done_the_task_has_no_result(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1)
    bus.subscribe("mail", lambda _: "done", drain=True).run()

    with pytest.raises(NotFound, match="no result"):
        queue.result(task, group="later")


async def test_an_asynchronous_bus_finds_the_same(
    abus: agentbus.AsyncBus, connect: Connect
) -> None:
    queue = abus.queue("mail")
    nothing, buried = await queue.publish(1), await queue.publish(2)

    def handler(delivery: agentbus.Delivery) -> None:
        if delivery.payload == 2:
            fail(delivery)

    connect("bob").subscribe("mail", handler, drain=True).run()

    assert await queue.result(nothing, wait=5) is None
    with pytest.raises(TaskBuried):
        await queue.result(buried)


def test_a_wait_that_no_worker_can_end_says_so_and_names_the_project(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1)

    for wait in (
        lambda: bus.result(task, wait=0.01),
        lambda: bus.queue("mail").result(task, wait=0.01),
        lambda: bus.ask("mail", 1, timeout=0.01),
    ):
        with pytest.raises(TimedOut, match="no worker of 'mail' lives in the project") as told:
            wait()
        assert bus.project in told.value.message


def test_a_wait_beside_a_living_worker_names_no_other_reason(bus: agentbus.Bus) -> None:
    begun, end = threading.Event(), threading.Event()

    def handle(_delivery: object) -> None:
        begun.set()
        end.wait()

    worker = bus.subscribe("mail", handle)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        task = bus.queue("mail").publish(1)
        begun.wait()
        with pytest.raises(TimedOut) as told:
            bus.result(task, wait=0.01)
        assert "no worker" not in told.value.message
    finally:
        worker.stop()
        end.set()
        thread.join()


def test_a_bus_shows_its_project_agent_and_server(bus: agentbus.Bus) -> None:
    assert repr(bus).startswith(f"<Bus project={bus.project!r} agent={bus.agent!r} server=")


def test_a_bus_shows_no_password() -> None:
    assert "secret" not in repr(agentbus.connect("redis://ada:secret@127.0.0.1:1/0"))
