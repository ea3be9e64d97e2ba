"""A dashboard shows a task with all that is known of it, and the tasks around it."""

from __future__ import annotations

import pytest

import agentbus
from agentbus.dashboard import Dashboard
from agentbus.errors import NotFound, UsageError


def links(bus: agentbus.Bus, task: str) -> set[tuple[str, str, str]]:
    """Return the links of a task's chain."""
    return {(one.start, one.to, one.kind) for one in Dashboard(bus).chain(task).links}


def test_a_task_is_shown_with_what_the_task_verb_shows(bus):
    task = bus.queue("mail").publish({"to": "a"}, key="k", headers={"x": "1"})

    found = Dashboard(bus).task(task)

    assert found.state == bus.task(task)
    assert (found.groups, found.has_result, found.letter) == ((), False, None)
    assert [one.id for one in Dashboard(bus).chain(task).tasks] == [task]


def test_a_task_that_is_done_has_its_result(bus):
    task = bus.queue("mail").publish(1)

    with bus.subscribe("mail", lambda _: {"sent": True}, drain=True) as worker:
        worker.run()
    found = Dashboard(bus).task(task)

    assert (found.state.state, found.has_result, found.result) == ("done", True, {"sent": True})


def test_a_buried_task_has_its_dead_letter_with_the_traceback(bus):
    task = bus.queue("mail").publish({"to": "a"})

    def fail(_: object) -> None:
        raise ValueError("no such user\nlook it up")

    with bus.subscribe("mail", fail, attempts=1, drain=True) as worker:
        worker.run()
    found = Dashboard(bus).task(task)

    assert found.state.state == "dead"
    assert found.letter is not None
    assert "in fail" in found.letter.traceback
    assert found.letter == bus.queue("mail").dead_letters()[0]
    assert Dashboard(bus).chain(task).tasks[0].error == "ValueError: no such user"


def test_a_task_shows_the_agents_that_it_has_passed(bus):
    task = bus.queue("mail").publish(1, trail=[["ada", 1], ["bob", 2]])

    assert found_trail(bus, task) == (["ada", 1], ["bob", 2])


def found_trail(bus: agentbus.Bus, task: str) -> tuple[object, ...]:
    return Dashboard(bus).task(task).trail


def test_a_task_is_shown_for_a_group_and_names_the_others(bus):
    task = bus.queue("mail").publish(1)
    for delivery in bus.queue("mail").fetch(group="audit"):
        delivery.ack()
    bus.queue("mail").fetch(group="billing")
    dashboard = Dashboard(bus)

    # No group is called default: the first one is shown.
    assert dashboard.task(task).state.state == "done"
    assert dashboard.task(task, group="billing").state.state == "running"
    assert dashboard.task(task).groups == ("audit", "billing")


def test_a_chain_has_what_the_task_waits_for_and_what_waits_for_it(bus):
    one, two = bus.queue("a").publish(1), bus.queue("a").publish(2)
    three = bus.queue("b").publish(3, after=[one, two])
    four = bus.queue("c").publish(4, after=three)

    expected = {(one, three, "before"), (two, three, "before"), (three, four, "before")}
    for task in (one, three, four):
        assert links(bus, task) == expected
    chain = Dashboard(bus).chain(three)
    states = {one.id: one.state for one in chain.tasks}
    assert [states[each] for each in (one, two, three, four)] == ["waiting"] * 2 + ["blocked"] * 2
    assert chain.complete


def test_a_chain_has_what_caused_a_task_and_what_it_has_caused(bus):
    first = bus.queue("a").publish(1)

    def publish(delivery: agentbus.Delivery) -> None:
        bus.queue("b" if delivery.queue == "a" else "c").publish(delivery.payload)

    for queue in ("a", "b"):
        with bus.subscribe(queue, publish, drain=True) as worker:
            worker.run()
    ((second, _),) = bus.queue("b").peek()
    ((third, _),) = bus.queue("c").peek()

    for task in (first, second, third):
        assert links(bus, task) == {(first, second, "caused"), (second, third, "caused")}


def test_a_chain_has_the_replay_of_a_dead_letter(bus):
    task = bus.queue("mail").publish(1, causation_id="event 7")
    (delivery,) = bus.queue("mail").fetch()
    delivery.bury("broken")
    (letter,) = bus.queue("mail").dead_letters()
    again = bus.queue("mail").replay(letter.id)

    assert links(bus, task) == {(task, again, "replayed"), ("event 7", task, "caused")}


def test_a_cause_that_is_not_a_task_is_shown_as_such(bus):
    task = bus.queue("mail").publish(1, causation_id="event 7")

    chain = Dashboard(bus).chain(task)

    assert {one.id: one.state for one in chain.tasks} == {task: "waiting", "event 7": "unknown"}
    assert [(one.start, one.to) for one in chain.links] == [("event 7", task)]


def test_a_cause_that_is_no_longer_recorded_is_gone(bus):
    task = bus.queue("mail").publish(1, causation_id="1-1@mail")

    chain = Dashboard(bus).chain(task)

    assert {one.id: one.state for one in chain.tasks}["1-1@mail"] == "gone"


def test_a_long_chain_is_cut_and_says_so(bus):
    task = bus.queue("mail").publish(0)
    for number in range(40):
        bus.queue("mail").publish(number, after=task)

    chain = Dashboard(bus).chain(task)

    assert (len(chain.tasks), chain.complete) == (24, False)
    assert task in {one.id for one in chain.tasks}
    assert len(chain.links) == 23


def test_tasks_that_name_each_other_end(bus):
    task = bus.queue("mail").publish(1, causation_id="loop")
    own = bus.queue("mail").publish(2, causation_id=task, correlation_id=task)

    assert links(bus, own) == {(task, own, "caused"), ("loop", task, "caused")}


def test_an_unknown_task_is_not_found(bus):
    bus.queue("mail").publish(1)

    with pytest.raises(NotFound):
        Dashboard(bus).task("1-1@mail")
    with pytest.raises(UsageError):
        Dashboard(bus).task("mail")


# -- by state --


def in_each_state(bus: agentbus.Bus) -> dict[str, list[str]]:
    """Leave tasks in each state; return their ids."""
    mail = bus.queue("mail")
    held = mail.publish_many(range(6))
    aside = mail.publish_many(range(6))
    for number, delivery in enumerate(mail.fetch(count=12)):
        if number >= 6:
            delivery.retry(600.0)
    return {
        "running": held,
        "retrying": aside,
        "delayed": [mail.publish(1, delay=600.0 + n) for n in range(3)],
        "blocked": [mail.publish(n, after=held[0]) for n in range(3)],
        "waiting": [mail.publish(1, priority="high"), *mail.publish_many(range(4))],
    }


@pytest.mark.parametrize("state", ["waiting", "running", "retrying", "delayed", "blocked"])
def test_the_tasks_of_a_queue_are_read_by_state_page_by_page(bus, state):
    expected = in_each_state(bus)[state]
    dashboard, found, after, pages = Dashboard(bus), [], None, 0

    while True:
        page = dashboard.tasks("mail", state, after=after, limit=2)
        assert len(page.entries) <= 2
        found += page.entries
        after, pages = page.after, pages + 1
        if after is None or pages > 9:
            break

    assert [one.id for one in found] == expected
    assert {one.state for one in found} == {state}
    assert [one.id for one in dashboard.tasks("mail", state).entries] == expected


def test_tasks_that_are_held_among_others_are_found(bus):
    tasks = bus.queue("mail").publish_many(range(8))
    for number, delivery in enumerate(bus.queue("mail").fetch(count=8)):
        if number % 2:
            delivery.retry(600.0)
    dashboard = Dashboard(bus)

    assert [one.id for one in dashboard.tasks("mail", "running").entries] == tasks[::2]
    assert [one.id for one in dashboard.tasks("mail", "retrying").entries] == tasks[1::2]


def test_tasks_wait_for_a_group_that_there_is_not_yet(bus):
    tasks = bus.queue("mail").publish_many(range(3))
    bus.queue("mail").fetch(group="audit")

    page = Dashboard(bus).tasks("mail", "waiting", group="billing")

    assert [one.id for one in page.entries] == tasks


@pytest.mark.parametrize(
    ("state", "after"),
    [("done", None), ("waiting", "x"), ("waiting", "retry:1-1"), ("delayed", "-1")],
)
def test_what_is_listed_is_checked(bus, state, after):
    bus.queue("mail").publish(1)

    with pytest.raises(UsageError):
        Dashboard(bus).tasks("mail", state, after=after)
    with pytest.raises(NotFound):
        Dashboard(bus).tasks("no-such-queue", "waiting")


async def test_an_async_bus_has_the_same_task(abus):
    task = await abus.queue("mail").publish(1)

    dashboard = Dashboard(abus)

    assert (await dashboard.task(task)).state == await abus.task(task)
    assert [one.id for one in (await dashboard.chain(task)).tasks] == [task]
