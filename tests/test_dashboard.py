"""A dashboard's figures: those of the other views, read at little cost and each message once."""

from __future__ import annotations

import time
from typing import Any

import pytest

import agentbus
from agentbus.admin import survey
from agentbus.admin.stats import QueueStats
from agentbus.core.keys import Keys
from agentbus.dashboard import Dashboard, RowRange
from agentbus.errors import NotFound
from tests.servers import ask
from tests.small_worker import Registry
from tests.test_presence import age

AGES = ("oldest", "oldest_pending")


def without_ages(one: QueueStats) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__match_args__ if name not in AGES}


def sample(bus: agentbus.Bus, queue: str, done: int, group: str = "default", at: str = "*") -> None:
    """Write what a worker writes of its last second."""
    fields = ("queue", queue, "group", group, "worker", "w", "processed", str(done))
    ask(bus, "XADD", Keys(bus.project).metrics, at, *fields, "ran", "[1,2]", "busy_ms", "5")


def work(bus: agentbus.Bus, queue: str = "mail") -> None:
    """Leave tasks in each state."""
    mail = bus.queue(queue)
    mail.publish_many(range(6))
    mail.publish(6, priority="high")
    mail.publish(7, delay=600.0)
    done, aside, buried, _ = mail.fetch(count=4)
    done.ack()
    aside.retry(600.0)
    buried.bury("broken")


# -- equality with the other views --


def test_at_rest_every_figure_is_that_of_the_other_views(bus, connect):
    # given tasks in each state, agents, flags, a lease, a waiter's flag and messages
    work(bus)
    bus.queue("mail").fetch(group="audit", count=2)
    bus.queue("untouched").publish_many([1, 2])
    sample(bus, "mail", 30)
    bus.here(doing="the parser")
    connect("bob").here(state="idle")
    bus.tell("bob", "hello")
    bus.announce("building", ttl=60)
    bus.satisfy("tested")
    lease = bus.lease("src/**")
    lease.__enter__()

    found = Dashboard(bus).snapshot()

    stats = bus.stats()
    assert sorted(map(repr, (without_ages(one.stats) for one in found.queues))) == sorted(
        map(repr, map(without_ages, stats))
    )
    totals = found.totals
    assert totals.queues == 2
    assert totals.backlog == sum(one.backlog for one in stats)
    assert totals.held == sum(one.pending + one.retrying for one in stats)
    assert totals.dead == sum(one.dead for one in stats) == 1
    by_queue = {one.queue: one for one in stats}.values()
    assert totals.delayed == sum(one.delayed for one in by_queue) == 1
    assert totals.rate == sum(one.rate for one in stats) == 0.5
    assert list(bus.queue("mail").dead_letters())
    health = bus.health()
    assert [(one.check, one.subject, one.remedy) for one in found.health.findings] == [
        (one.check, one.subject, one.remedy) for one in health.findings
    ]
    assert [one.agent for one in found.agents] == [one.agent for one in bus.present()]
    assert totals.unread == sum(one.unread for one in bus.present()) == 1
    assert [(one.flag, one.state) for one in found.flags] == [
        (one.flag, one.state) for one in bus.flags()
    ]
    assert found.leases == tuple(bus.leases())
    assert (totals.flags, totals.leases, totals.waiters) == (1, 1, 0)
    assert totals.workers == sum(one.alive for one in bus.workers())


async def test_an_async_bus_has_the_same_dashboard(abus):
    await abus.speak("hello")
    await abus.queue("mail").publish(1)
    dashboard = Dashboard(abus)

    found = await dashboard.snapshot()

    assert [one.text for one in found.messages] == ["hello"]
    assert [one.stats.queue for one in found.queues] == ["mail"]
    assert (await dashboard.queue("mail")).rows[0].stats.backlog == 1


def test_an_empty_project_has_empty_figures(bus):
    found = Dashboard(bus).snapshot()

    assert (found.queues, found.agents, found.flags, found.messages) == ((), (), (), ())
    assert (found.totals.queues, found.missed, found.matching["queues"]) == (0, 0, 0)


# -- queues --


def test_queues_are_ranked_by_trouble(bus):
    # given a quiet queue, one with dead letters, one that is late, and one that nobody serves
    for delivery in _published(bus, "quiet", 2).fetch(count=1):
        delivery.ack()
    for delivery in _published(bus, "dead", 2).fetch(count=1):
        delivery.bury("broken")
    _published(bus, "dead", 1).fetch(count=1)
    _published(bus, "late", 150).fetch(count=1)
    bus.queue("quiet").fetch(count=1)
    bus.queue("stuck").publish(1)

    found = Dashboard(bus).snapshot().queues

    assert [(one.stats.queue, one.trouble) for one in found] == [
        *(("stuck", "no worker"), ("late", "late"), ("dead", "dead letters"), ("quiet", None)),
    ]


def _published(bus: agentbus.Bus, queue: str, number: int) -> Any:
    bus.queue(queue).publish_many(range(number))
    return bus.queue(queue)


@pytest.mark.parametrize("tasks", [1, 5])
def test_a_queue_has_no_worker_if_its_only_one_died_with_a_task_in_hand(bus, tasks):
    # given a longer queue whose worker lives, and one whose worker died
    _published(bus, "served", 9)
    Registry(bus, "served", "host:1:a").beat()
    _published(bus, "job", tasks).fetch(count=1)
    (holder,) = bus.queue("job").groups()[0].consumers
    Registry(bus, "job", holder.name).beat()
    assert {one.trouble for one in Dashboard(bus).snapshot().queues} == {None}
    age(bus, holder.name, 4)

    found = Dashboard(bus).snapshot().queues

    assert [(one.stats.queue, one.trouble) for one in found] == [
        *(("job", "no worker"), ("served", None)),
    ]


def test_a_queue_whose_tasks_all_wait_for_a_retry_has_no_worker_if_none_is_live(bus, monkeypatch):
    _published(bus, "job", 1).fetch()[0].retry(600.0)
    assert Dashboard(bus).snapshot().queues[0].trouble is None
    # As if the worker had left for a minute.
    monkeypatch.setattr(survey, "HEARD", -1.0)

    assert Dashboard(bus).snapshot().queues[0].trouble == "no worker"


def test_tasks_that_an_agent_holds_by_hand_need_no_worker(bus, monkeypatch):
    _published(bus, "job", 1)
    bus.take("job")
    monkeypatch.setattr(survey, "HEARD", -1.0)

    assert Dashboard(bus).snapshot().queues[0].trouble is None


def test_a_summary_counts_as_the_figures_do(bus):
    # given groups that differ by priority, one of them late, and a trimmed stream
    mail = bus.queue("mail")
    mail.publish_many(range(10))
    mail.fetch(count=3)
    mail.publish(1, priority="low")
    mail.fetch(group="audit", count=20)
    bus.queue("other").publish_many(range(5), priority="critical")

    dashboard = Dashboard(bus)
    summed = {
        (one.queue, group.group): (group.backlog, group.held)
        for one in bus.runner.run(dashboard._ranked())
        for group in one.groups
    }

    assert summed == {
        (one.queue, one.group): (one.backlog, one.pending + one.retrying) for one in bus.stats()
    }


def test_only_the_rows_that_are_asked_for_are_read(bus):
    for number in range(5):
        bus.queue(f"q{number}").publish_many(range(5 - number))

    found = Dashboard(bus).snapshot(queues=RowRange(offset=1, limit=2))

    assert [one.stats.queue for one in found.queues] == ["q1", "q2"]
    assert (found.matching["queues"], found.totals.queues, found.totals.backlog) == (5, 5, 15)


def test_pages_of_queues_with_several_groups_have_every_row_once(bus):
    for number in range(5):
        bus.queue(f"q{number}").publish(1)
        for group in ("a", "b", "c")[: 1 + number % 3]:
            bus.queue(f"q{number}").fetch(group=group)
    every = [(one.stats.queue, one.stats.group) for one in Dashboard(bus).queues()[0]]

    for limit in (1, 2, 4):
        pages = [
            Dashboard(bus).queues(RowRange(offset=at, limit=limit)) for at in range(0, 10, limit)
        ]

        rows = [(one.stats.queue, one.stats.group) for page, _ in pages for one in page]
        assert (rows, {matching for _, matching in pages}) == (every, {9})
        assert max(len(page) for page, _ in pages) == limit
    assert Dashboard(bus).snapshot().matching["queues"] == 9


@pytest.mark.parametrize("queue", ["a*b", "a[b]", "A?b"])
def test_a_match_is_plain_text(bus, queue):
    bus.queue(queue).publish(1)
    bus.queue("axb").publish(1)
    bus.here()

    found = Dashboard(bus).snapshot(
        queues=RowRange(match=queue.lower()), agents=RowRange(match="*")
    )

    assert [one.stats.queue for one in found.queues] == [queue]
    assert (found.agents, found.matching["agents"], found.matching["queues"]) == ((), 0, 1)


def test_a_queue_is_shown_with_its_rate_over_ten_minutes(bus):
    work(bus)
    sample(bus, "mail", 40)

    (row,) = Dashboard(bus).snapshot().queues

    assert len(row.points) == 30
    assert sum(row.points) == 2.0
    assert row.stats.rate == pytest.approx(40 / 60)


def test_samples_are_read_once(bus):
    bus.queue("mail").publish(1)
    bus.queue("mail").fetch()
    dashboard = Dashboard(bus)
    rates = []
    for done in (6, 12):
        sample(bus, "mail", done)
        rates.append(dashboard.snapshot().queues[0].stats.rate)

    assert rates == [0.1, 0.3]


@pytest.mark.parametrize("read_before", [False, True])
def test_a_rate_is_of_the_samples_that_were_read(bus, monkeypatch, read_before):
    monkeypatch.setattr("agentbus.admin.metrics_reader._PAGE", 10)
    monkeypatch.setattr("agentbus.admin.stats._SAMPLES", 50)
    monkeypatch.setattr("agentbus.dashboard.streams._MOST", 50)
    work(bus)
    dashboard = Dashboard(bus)
    began = time.time() - 20
    sample(bus, "mail", 9999, at=f"{round(began * 1000)}-*")
    if read_before:
        dashboard.snapshot()
    for number in range(100):
        sample(bus, "mail", 10, at=f"{round((began + number / 5) * 1000)}-*")

    found = dashboard.snapshot()

    assert found.totals.rate == pytest.approx(50, rel=0.3)
    assert found.queues[0].stats.rate == pytest.approx(50, rel=0.3)
    assert bus.stats("mail")[0].rate == pytest.approx(50, rel=0.3)


def test_a_paused_queue_says_why(bus):
    bus.queue("mail").publish(1)
    bus.pause(queue="mail", why="disk full", wait=0)

    (row,) = Dashboard(bus).snapshot().queues

    assert row.paused == "by ada: disk full"


def test_a_queue_has_its_groups_and_workers(bus):
    work(bus)

    found = Dashboard(bus).queue("mail")

    assert [one.group for one in found.groups] == ["default"]
    assert (found.groups[0].dead, found.rows[0].stats.dead, found.workers) == (1, 1, ())
    with pytest.raises(NotFound):
        Dashboard(bus).queue("no-such-queue")


# -- what came since the last snapshot --


def test_each_message_is_in_one_snapshot(bus):
    dashboard = Dashboard(bus)
    bus.speak("one")
    bus.speak("two")
    first = dashboard.snapshot()
    bus.speak("three")

    second, third = dashboard.snapshot(), dashboard.snapshot()

    assert [one.text for one in first.messages] == ["one", "two"]
    assert [one.text for one in second.messages] == ["three"]
    assert (third.messages, third.missed) == ((), 0)


def test_a_snapshot_says_how_many_messages_it_leaves_out(bus):
    dashboard = Dashboard(bus)
    bus.speak("zero")
    dashboard.snapshot()
    for number in range(12):
        bus.speak(str(number))

    found = dashboard.snapshot(messages=5)

    assert [one.text for one in found.messages] == ["7", "8", "9", "10", "11"]
    assert found.missed == 7


def test_a_channel_that_began_again_is_read_from_its_start(bus):
    dashboard = Dashboard(bus)
    for number in range(3):
        bus.speak(str(number))
    dashboard.snapshot()
    bus.clear()
    bus.speak("anew")

    assert [one.text for one in dashboard.snapshot().messages] == ["anew"]


def test_no_cursor_moves(bus):
    bus.speak("hello")
    Dashboard(bus).snapshot()

    assert [one.text for one in bus.overhear()] == ["hello"]


def test_a_flag_that_changes_is_seen_without_another_scan(bus):
    dashboard = Dashboard(bus)
    bus.announce("old")
    dashboard.snapshot()
    # No scan is due for long.
    dashboard._flags.names._next = float("inf")
    bus.announce("building", ttl=60)
    bus.satisfy("old")

    found = dashboard.snapshot().flags

    assert [(one.flag, one.state) for one in found] == [("building", "held"), ("old", "satisfied")]


def test_lists_that_take_long_are_read_less_often(bus):
    dashboard = Dashboard(bus)
    bus.queue("mail").publish(1)
    dashboard.snapshot()
    dashboard._ranks._next = float("inf")
    bus.queue("mail").publish(2)
    bus.queue("late").publish(1)

    found = dashboard.snapshot()

    # The rows that are shown are as they are now, the list of queues is as old as it says.
    assert [(one.stats.queue, one.stats.backlog) for one in found.queues] == [("mail", 2)]
    assert found.oldest_part > 0
