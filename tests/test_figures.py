"""Figures: what waits, what is held and what became of it, exactly, and in few requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import agentbus
from agentbus.admin import doctor, stats as figures
from agentbus.admin.stats import QueueStats
from agentbus.admin.survey import Group
from agentbus.core.keys import Keys
from agentbus.errors import NotFound, UsageError
from agentbus.queues.ids import ASIDE
from agentbus.store.operation import attempt
from agentbus.workers.metrics import Tally
from tests.servers import ask


def stats(bus: agentbus.Bus, queue: str = "mail") -> QueueStats:
    (found,) = bus.stats(queue)
    return found


def group(bus: agentbus.Bus, name: str = "default") -> Group:
    (found,) = [one for one in bus.queue("mail").groups() if one.group == name]
    return found


def requests(bus: agentbus.Bus, op: Any) -> tuple[int, Any]:
    """Run an operation; return how many requests it took, and its result."""
    number, whole = 0, attempt(op, where="the server", deadline=30.0)
    try:
        step = next(whole)
        while True:
            number += 1
            step = whole.send(bus.runner.link.execute(step))
    except StopIteration as ended:
        return number, ended.value


# -- backlog --


def test_a_queue_that_nobody_worked_on_waits_as_a_whole(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many([1, 2])
    queue.publish(3, priority="high")

    found = stats(bus)

    assert (found.group, found.backlog, found.exact) == (None, 3, True)
    assert found.by_priority == {"critical": 0, "high": 1, "normal": 2, "low": 0}
    assert found.oldest is not None
    assert (found.pending, found.retrying, found.lag, found.consumers) == (0, 0, 3, 0)
    assert found.counters == {"published": 3}


def test_every_state_of_a_task_is_counted_where_it_belongs(bus: agentbus.Bus) -> None:
    # given tasks done, held, put aside, buried, waiting and delayed
    queue = bus.queue("mail")
    queue.publish_many(range(10))
    queue.publish(10, delay=600.0)
    done, aside, buried, _ = queue.fetch(count=4)
    done.ack()
    aside.retry(600.0)
    buried.bury("broken")

    found = stats(bus)

    assert (found.group, found.backlog, found.pending, found.retrying) == ("default", 6, 1, 1)
    assert (found.lag, found.delayed, found.dead, found.consumers) == (8, 1, 1, 1)
    assert found.oldest is not None
    assert found.oldest_pending is not None
    assert found.counters["processed"] == 1


def test_a_queue_with_nothing_left_has_no_ages(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    for delivery in bus.queue("mail").fetch():
        delivery.ack()

    found = stats(bus)

    assert (found.backlog, found.oldest, found.pending, found.oldest_pending) == (0, None, 0, None)


def test_ages_are_told_by_the_servers_clock(bus: agentbus.Bus, project: str) -> None:
    now = int(ask(bus, "TIME")[0]) * 1000
    ask(bus, "XADD", Keys(project).queue("mail"), f"{now - 3_600_000}-0", "payload", "1")
    bus.scope.now = lambda: 0.0

    oldest = stats(bus).oldest

    assert oldest is not None
    assert 3_590 < oldest < 3_900


def test_groups_have_figures_of_their_own(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(5))
    queue.fetch(group="a", count=2)
    queue.fetch(group="b", count=5)

    first, second = bus.stats("mail")

    assert (first.group, first.backlog, first.pending) == ("a", 3, 2)
    assert (second.group, second.backlog, second.pending) == ("b", 0, 5)


def test_what_was_trimmed_away_is_no_backlog(bus: agentbus.Bus, project: str) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(10))
    queue.fetch(count=3)

    ask(bus, "XTRIM", Keys(project).queue("mail"), "MAXLEN", 4)

    assert group(bus).backlog == 4


def test_the_backlog_is_counted_where_the_server_does_not_know_it(
    bus: agentbus.Bus, project: str
) -> None:
    # given a group that starts in the middle, of which the server keeps no count
    key = Keys(project).queue("mail")
    ids = bus.queue("mail").publish_many(range(500))
    ask(bus, "XGROUP", "CREATE", key, "late", ids[99].partition("@")[0])

    found = group(bus, "late")

    assert (found.by_priority["normal"], found.exact) == (400, True)


def test_a_count_that_would_take_too_long_says_at_least(real_url: str, project: str) -> None:
    # Only a real server forgets how far a group is.
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        key = Keys(project).queue("mail")
        ids = bus.queue("mail", bound=20_000).publish_many(range(12_000))
        ask(bus, "XGROUP", "CREATE", key, "late", ids[99].partition("@")[0])

        found = group(bus, "late")

    assert (found.backlog, found.exact) == (10_000, False)


def test_another_programs_keys_of_other_types_are_no_streams(
    bus: agentbus.Bus, project: str
) -> None:
    ask(bus, "SET", Keys(project).queue("mail"), "theirs")
    ask(bus, "SET", Keys(project).queue("x", "odd"), "theirs")
    bus.queue("other").publish(1)

    assert [one.queue for one in bus.stats()] == ["other"]
    assert "mail" not in [one.queue for one in bus.streams()]


# -- groups --


def test_groups_say_who_holds_what_and_how_far_they_are(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    ids = queue.publish_many(range(3))
    deliveries = queue.fetch(count=2)
    deliveries[0].bury("broken")

    found = group(bus)

    assert found.last_ids["normal"] == ids[1].partition("@")[0]
    (consumer,) = found.consumers
    assert consumer.pending == 1
    assert found.dead == 1


def test_a_queue_without_groups_has_none(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)

    assert bus.queue("mail").groups() == []


@pytest.mark.parametrize("what", ["stats", "groups", "inspect"])
def test_a_queue_that_is_not_there_is_said_to_be_missing(bus: agentbus.Bus, what: str) -> None:
    with pytest.raises(NotFound):
        bus.stats("mail") if what == "stats" else getattr(bus.queue("mail"), what)()


# -- speed --


def test_speed_is_that_of_the_last_minute(bus: agentbus.Bus, project: str) -> None:
    queue = bus.queue("mail")
    queue.publish(1)
    queue.fetch()
    tally = Tally(bus.scope, "mail", "default", "w1")
    tally.note("processed", 120)
    tally.note("failed", 60)
    tally.count_runs(180, 0.1)
    tally.count_waits(120, 3.0)
    bus._run("flush", tally.flush())
    ask(bus, "XADD", f"{project}:old", "1-1", "a", "b")

    found = stats(bus)

    assert (found.rate, found.attempts) == (2.0, 1.5)
    assert found.running is not None
    assert found.running.mean == pytest.approx(0.1)
    assert found.waiting is not None
    assert found.waiting.count == 120
    assert found.worked["processed"] == 120


def test_a_metrics_entry_from_before_counts_no_more(bus: agentbus.Bus, project: str) -> None:
    bus.queue("mail").publish(1)
    bus.queue("mail").fetch()
    ask(
        bus,
        *("XADD", Keys(project).metrics, "1000-1"),
        *("queue", "mail", "group", "default", "processed", "600"),
    )

    assert stats(bus).rate == 0.0


# -- cost --


def test_a_thousand_queues_cost_few_requests(bus: agentbus.Bus, project: str) -> None:
    for number in range(1000):
        ask(bus, "XADD", Keys(project).queue(f"q{number:04}"), "*", "payload", "1")

    number, found = requests(bus, figures.stats(bus.scope))

    assert [one.queue for one in found] == [f"q{number:04}" for number in range(1000)]
    assert {one.backlog for one in found} == {1}
    # Some for each 50 queues, and a few for their names, among all keys of the server.
    assert number < 200


# -- consumers that the doctor calls stale --


@pytest.mark.parametrize(
    ("holder", "told"),
    [("gone", "1 holds entries and sent no heartbeat for 15 minutes"), (ASIDE, "none is stale")],
)
def test_the_doctor_counts_who_holds_tasks_and_not_tasks_that_wait_to_be_retried(
    bus: agentbus.Bus, monkeypatch: pytest.MonkeyPatch, holder: str, told: str
) -> None:
    # As if a quarter of an hour had passed.
    monkeypatch.setattr(doctor, "_STALE", -1.0)
    bus.queue("mail").publish(1)
    key = bus.scope.keys.queue("mail", "normal")
    ask(bus, "XGROUP", "CREATE", key, "default", "0")
    ask(bus, "XREADGROUP", "GROUP", "default", holder, "STREAMS", key, ">")

    findings = {one.check: one.found for one in bus.doctor()}

    assert findings["consumers"] == told


def test_queues_with_hostile_names_are_told_apart(bus: agentbus.Bus) -> None:
    names = ["a", "a:b", "a%3Ab", "a:high", "*", "a b", "ä"]
    for name in names:
        bus.queue(name).publish(name)

    assert sorted(one.queue for one in bus.stats()) == sorted(names)
    listed = {(one.queue, one.priority) for one in bus.streams() if one.kind == "queue"}
    assert listed == {(name, "normal") for name in names}


def test_what_is_left_for_a_group_includes_what_is_not_due(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(5))
    queue.publish(5, delay=600.0)
    done, aside = queue.fetch(count=2)
    done.ack()
    aside.retry(600.0)

    assert bus._run("left", figures.left(bus.scope, "mail", "default")) == 5
    assert bus._run("left", figures.left(bus.scope, "mail", "other")) == 6
    assert bus._run("left", figures.left(bus.scope, "none", "other")) == 0


# -- streams --


def test_streams_are_listed_with_what_they_are_for(bus: agentbus.Bus) -> None:
    bus.speak("hi")
    queue = bus.queue("mail")
    task = queue.publish(1, priority="low")
    queue.publish(2)
    queue.fetch()[0].bury("broken")

    found = bus.streams()

    kinds = [(one.kind, one.queue, one.priority or one.group) for one in found]
    assert kinds == [
        ("channel", None, None),
        *(("queue", "mail", priority) for priority in ("critical", "high", "normal", "low")),
        ("dead letters", "mail", "default"),
    ]
    low = found[4]
    assert (low.length, low.first_id, low.last_id) == (1, *[task.partition("@")[0]] * 2)
    assert low.oldest is not None
    assert low.oldest == low.newest
    assert (found[1].length, found[1].first_id, found[1].oldest) == (0, None, None)


def test_marks_of_replayed_letters_are_no_stream(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish(1)
    queue.fetch()[0].bury("broken")
    queue.replay(queue.dead_letters()[0].id)

    assert [one.kind for one in bus.streams()].count("dead letters") == 1


# -- inspect --


def states(bus: agentbus.Bus, **options: Any) -> Sequence[tuple[Any, str]]:
    return [(one.payload, one.state) for one in bus.queue("mail").inspect(**options)]


def test_inspect_says_what_became_of_each_entry(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(4))
    queue.publish(4, priority="low", correlation_id="c")
    done, aside, _ = queue.fetch(count=3)
    done.ack()
    aside.retry(600.0)

    # Entries of one moment may come in any order of their priorities.
    entries = sorted(queue.inspect(), key=lambda one: one.payload)

    assert [(one.payload, one.state) for one in entries] == [
        *((0, "done"), (1, "retrying"), (2, "running"), (3, "waiting"), (4, "waiting"))
    ]
    held = entries[2]
    assert held.holder == group(bus).consumers[0].name
    assert held.idle is not None
    assert held.deliveries == 1
    assert entries[1].attempts == 1
    assert (entries[4].priority, entries[4].envelope) == ("low", {"correlation_id": "c"})
    assert entries[0].id == done.id


def test_inspect_sees_with_the_eyes_of_one_group(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish(1)
    queue.fetch(group="a")[0].ack()

    assert states(bus, group="a") == [(1, "done")]
    assert states(bus, group="b") == [(1, "waiting")]


def test_inspect_shows_the_oldest_or_the_newest_or_those_from_a_task_on(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    ids = queue.publish_many(range(10))
    bare = ids[6].partition("@")[0]

    assert [payload for payload, _ in states(bus, limit=2)] == [0, 1]
    assert [payload for payload, _ in states(bus, last=2)] == [8, 9]
    assert [payload for payload, _ in states(bus, start=ids[6])] == [6, 7, 8, 9]
    assert [payload for payload, _ in states(bus, start=bare, limit=2)] == [6, 7]
    assert len(states(bus, start="1h")) == 10
    assert states(bus, start="2200-01-01") == []
    assert states(bus, last=0) == []
    with pytest.raises(UsageError):
        queue.inspect(last=1, start=ids[0])
    with pytest.raises(UsageError):
        queue.inspect(start="nonsense")


def test_inspect_merges_the_priorities_in_the_order_of_their_ids(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    for number, priority in enumerate(("low", "critical", "normal", "high")):
        queue.publish(number, priority=priority)

    found = queue.inspect()

    ids = [tuple(map(int, one.id.partition("@")[0].split("-"))) for one in found]
    assert ids == sorted(ids)
    assert len(queue.inspect(last=3)) == 3


def test_inspect_shows_entries_that_nobody_can_read(bus: agentbus.Bus, project: str) -> None:
    key = Keys(project).queue("mail")
    ask(bus, "XADD", key, "*", "payload", b"{bad")
    ask(bus, "XADD", key, "*", b"\xff", b"\xff")
    ask(bus, "XADD", key, "*", "task", "build")

    broken, binary, foreign = bus.queue("mail").inspect()

    assert broken.error
    assert binary.error
    assert (foreign.payload, foreign.error) == ({"task": "build"}, None)


async def test_the_asynchronous_bus_has_the_same_figures(abus: agentbus.AsyncBus) -> None:
    queue = abus.queue("mail")
    await queue.publish(1)

    assert [one.backlog for one in await abus.stats()] == [1]
    assert [one.kind for one in await abus.streams()] == ["queue"]
    assert await abus.metrics() == []
    assert await queue.groups() == []
    assert [one.payload for one in await queue.inspect()] == [1]
