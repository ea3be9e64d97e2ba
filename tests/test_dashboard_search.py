"""A search finds tasks by an id, a key, a correlation id or words of an error, with bounded work."""

from __future__ import annotations

from typing import Any

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.dashboard import Dashboard
from agentbus.errors import UsageError
from tests.servers import ask


def search(bus: agentbus.Bus, text: str, **more: Any) -> list[tuple[Any, str]]:
    """Return each hit's task and what matched."""
    found = Dashboard(bus).search(text, **more)
    assert found.after is None
    return [(one.task, one.by) for one in found.hits]


@pytest.mark.parametrize("publish", [{}, {"priority": "high"}, {"delay": 600.0}])
def test_a_task_is_found_by_its_id(bus, publish):
    task = bus.queue("mail").publish(1, **publish)
    bus.queue("mail").publish(2)

    assert search(bus, f" {task} ") == [(task, "id")]


def test_a_task_is_found_by_the_id_of_its_entry(bus):
    task = bus.queue("mail").publish(1, priority="low")

    assert (task, "id") in search(bus, task.partition("@")[0])


def test_a_task_that_is_done_is_found_by_its_id(bus):
    task = bus.queue("mail").publish(1)
    for delivery in bus.queue("mail").fetch():
        delivery.ack()

    assert (task, "id") in search(bus, task)


@pytest.mark.parametrize(
    ("field", "by"),
    [
        ("key", "key"),
        ("ordering_key", "ordering key"),
        ("correlation_id", "correlation id"),
        ("causation_id", "causation id"),
    ],
)
@pytest.mark.parametrize("delay", [None, 600.0])
def test_a_task_is_found_by_a_field_of_its_envelope(bus, field, by, delay):
    # given names that a pattern or JSON would read otherwise
    wanted = 'a"b*[x] é'
    task = bus.queue("mail").publish(1, delay=delay, **{field: wanted})
    bus.queue("mail").publish(2, **{field: wanted + "!"})

    assert search(bus, wanted) == [(task, by)]


def test_a_task_that_waits_for_others_is_found_by_its_key(bus):
    first = bus.queue("mail").publish(1)
    task = bus.queue("shop").publish(2, after=first, correlation_id="order-7")

    assert search(bus, "order-7") == [(task, "correlation id")]


def test_a_dead_letter_is_found_by_words_of_its_error(bus):
    task = bus.queue("mail").publish(1, key="k7")
    (delivery,) = bus.queue("mail").fetch()
    delivery.bury("ConnectionError: the shop is down\nat line 7")

    for text in ("connectionerror SHOP", "line 7", "k7", task):
        found = Dashboard(bus).search(text)
        letters = [one for one in found.hits if one.letter]
        assert [(one.task, one.queue, one.group) for one in letters] == [(task, "mail", "default")]
        assert letters[0].error == "ConnectionError: the shop is down"
    assert search(bus, "shop up") == []


def test_a_task_that_will_be_retried_is_found_by_its_last_error(bus):
    task = bus.queue("mail").publish(1)

    def fail(_: object) -> None:
        raise TimeoutError("no answer from smtp")

    with bus.subscribe("mail", fail) as worker:
        worker.run_once()

    found = Dashboard(bus).search("no ANSWER")

    assert [(one.task, one.group, one.by) for one in found.hits] == [(task, "default", "error")]
    assert found.hits[0].error == "TimeoutError: no answer from smtp"


def test_a_task_is_found_by_all_words_of_its_payload(bus):
    task = bus.queue("mail").publish({"to": "Order-7 of ada"})
    delayed = bus.queue("mail").publish({"to": "order-7"}, delay=3600)

    assert sorted(search(bus, "order-7")) == sorted([(task, "payload"), (delayed, "payload")])
    assert search(bus, "ada ORDER-7") == [(task, "payload")]
    assert search(bus, "order-7 bob") == []


def test_a_task_of_another_program_is_found_by_its_work_item(bus):
    bus.queue("mail").publish(1)
    stream = Keys(bus.project).queue("mail")
    entry = ask(bus, "XADD", stream, "*", "work_item_id", "w-7", "agent_id", "ada").decode()

    assert search(bus, "w-7") == [(f"{entry}@mail", "work item id")]
    assert search(bus, "ada") == []


def test_a_search_says_where_it_stopped_and_continues_there(bus):
    tasks = bus.queue("mail").publish_many(range(40), correlation_id="c")
    tasks += bus.queue("shop").publish_many(range(20), correlation_id="c", priority="high")
    bus.queue("none").publish_many(range(30))
    dashboard, found, after, pages = Dashboard(bus), [], None, 0

    while True:
        page = dashboard.search("c", after=after, limit=7, most=25)
        assert len(page.hits) <= 7
        assert page.read <= 25
        found += [one.task for one in page.hits]
        after, pages = page.after, pages + 1
        if after is None or pages > 30:
            break

    assert sorted(found) == sorted(tasks)


def test_a_search_of_an_empty_project_finds_nothing(bus):
    assert search(bus, "anything") == []


@pytest.mark.parametrize("text", ["", "  ", "x" * 1001, "\ud800"])
def test_a_search_without_valid_text_is_refused(bus, text):
    with pytest.raises(UsageError):
        Dashboard(bus).search(text)


@pytest.mark.parametrize("after", ["", "x", "0/", "5/", "1/a", "2/a:b:c", "4/a:b:c:d"])
def test_a_place_to_continue_a_search_is_checked(bus, after):
    with pytest.raises(UsageError, match="does not continue"):
        Dashboard(bus).search("x", after=after)


@pytest.mark.parametrize("after", ["2/a:b:7-1", "3/mail:delayed:9", "4/mail:normal:5", "1/z:z:"])
def test_a_forged_place_does_no_harm(bus, after):
    bus.queue("mail").publish(1, key="k")

    Dashboard(bus).search("k", after=after)


def test_keys_of_other_types_hide_no_tasks(bus):
    keys = Keys(bus.project)
    task = bus.queue("mail").publish(1, key="k")
    bus.queue("shop").publish(2)
    bus.queue("mail").fetch(count=1)
    for key in (
        *(keys.queue("mail", "high"), keys.seen("shop", "k"), keys.delayed("mail")),
        *(keys.after("mail"), keys.retries("mail", "default", "normal")),
        *(keys.dead_letters("mail", "default"), keys.queue("mail", "retry")),
    ):
        ask(bus, "SET" if "seen" not in key else "SADD", key, "x")

    assert search(bus, "k") == [(task, "key")]
    assert Dashboard(bus).errors().groups == ()
    assert Dashboard(bus).replay_error("x").tasks == ()
    assert Dashboard(bus).task(task).state.state == "running"


async def test_an_async_bus_has_the_same_search(abus):
    task = await abus.queue("mail").publish(1, key="k")

    found = await Dashboard(abus).search("k")

    assert [(one.task, one.by) for one in found.hits] == [(task, "key")]
