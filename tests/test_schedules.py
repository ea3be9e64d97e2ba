"""Schedules: what is kept of them, and that each of their ticks is published once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any

import pytest

import agentbus
from agentbus.core.clock import rfc3339
from agentbus.errors import InvalidName, InvalidPayload, NotFound, QueueFull, Refused, UsageError
from agentbus.store.scope import Intervals
from agentbus.store.steps import Script
from agentbus.tasks import Definition, Scheduler, Schedules, Tick
from agentbus.tasks.ticks import MOST_MISSED, tick
from agentbus.testing import FakeClock, MemoryServer
from tests.servers import ask
from tests.test_inbox import resent
from tests.tiers import on_one_store

DAY = 86_400.0
# So many tasks fit into the queue of an agent.
ROOM = 100
FULL = "agent.ada"


def envelopes(bus: agentbus.Bus, queue: str = "mail") -> list[dict[str, Any]]:
    try:
        return [one.envelope for one in bus.queue(queue).inspect(limit=10_000)]
    except NotFound:
        return []


def dues(bus: agentbus.Bus, queue: str = "mail") -> list[str]:
    return [one["headers"]["schedule-due"] for one in envelopes(bus, queue)]


def now_ms(bus: agentbus.Bus) -> int:
    seconds, microseconds = ask(bus, "TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


def put_back(bus: agentbus.Bus, name: str, ms: int) -> int:
    """Make a schedule due so many ms ago, as if no scheduler had run since; return when."""
    due = now_ms(bus) - ms
    ask(bus, "HSET", bus.scope.keys.schedule(name), "due", due)
    ask(bus, "ZADD", bus.scope.keys.schedules, due, name)
    return due


def tried(bus: agentbus.Bus, name: str, now: int | None = None) -> Any:
    """Publish a tick as a scheduler does that has read the time."""
    op = tick(bus.scope, name, now_ms(bus) if now is None else now, bus.runner.policies)
    return bus.runner.run(op)


class Frozen:
    """A scheduler that has decided on a tick, and is frozen before it sends the request."""

    def __init__(self, bus: agentbus.Bus, name: str) -> None:
        self._link = bus.runner.link
        self._op = tick(bus.scope, name, now_ms(bus), bus.runner.policies)
        step = next(self._op)
        while not isinstance(step, Script):
            step = self._op.send(self._link.execute(step))
        self._step = step
        self._step.sendings = 1

    def wake(self) -> Any:
        try:
            while True:
                self._step = self._op.send(self._link.execute(self._step))
        except StopIteration as end:
            return end.value


# -- what is kept of them --


def test_a_schedule_is_kept_as_it_was_added(bus):
    schedules = Schedules(bus)

    added = schedules.add(
        "rep:ort",
        "reports",
        {"kind": "daily"},
        cron="0 6 * * mon-fri",
        timezone="Europe/Berlin",
        missed="all",
        priority="high",
        headers=MappingProxyType({"a": "b"}),
    )

    assert schedules.show("rep:ort") == schedules.list()[0] == added
    assert (added.queue, added.payload, added.cron) == (
        "reports",
        {"kind": "daily"},
        "0 6 * * mon-fri",
    )
    assert (added.timezone, added.missed, added.version) == ("Europe/Berlin", "all", 1)
    assert added.envelope == {"priority": "high", "headers": {"a": "b"}}
    assert (added.agent_id, added.owner, added.paused, added.published) == ("ada", None, False, 0)
    assert added.due == added.upcoming(1)[0] > now_ms(bus) / 1000


def test_schedules_are_listed_by_name(bus):
    schedules = Schedules(bus)
    for name in ("b", "c", "a"):
        schedules.add(name, "mail", every=60)
    schedules.pause("b")

    assert [(one.name, one.paused) for one in schedules.list()] == [
        ("a", False),
        ("b", True),
        ("c", False),
    ]


def test_the_same_definition_again_changes_nothing(bus):
    schedules = Schedules(bus)
    first = schedules.add("poll", "mail", [1, 2], every=30, headers={"a": "b"})

    assert schedules.add("poll", "mail", (1, 2), every=30.0, headers={"a": "b"}) == first


def test_another_payload_is_a_new_version_that_is_due_when_the_old_one_was(bus):
    schedules = Schedules(bus)
    first = schedules.add("poll", "mail", 1, every=3600)

    second = schedules.add("poll", "mail", 2, every=3600)

    assert (second.version, second.payload, second.due) == (2, 2, first.due)
    assert second.anchor == first.anchor


def test_another_period_is_counted_from_its_change(bus):
    schedules = Schedules(bus)
    first = schedules.add("poll", "mail", every=3600)

    second = schedules.add("poll", "mail", every=60)

    assert second.version == 2
    assert second.due == second.anchor / 1000 + 60 < first.due


def test_a_change_leaves_a_paused_schedule_paused(bus):
    schedules = Schedules(bus)
    schedules.add("poll", "mail", every=3600)
    schedules.pause("poll")

    changed = schedules.add("poll", "mail", every=60)

    assert (changed.paused, changed.due) == (True, None)
    assert Scheduler(bus).run_once() == []


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({}, "no times"),
        ({"every": 1, "cron": "* * * * *"}, "both"),
        ({"every": 0}, "the period is 0"),
        ({"every": float("nan")}, "the period is nan"),
        ({"every": True}, "the period is True"),
        ({"every": 401 * DAY}, "the period is"),
        ({"every": 1, "timezone": "Europe/Berlin"}, "no time zone"),
        ({"cron": "* * * *"}, "has 4 fields"),
        ({"cron": "* * * * *", "timezone": "Mars"}, "not a time zone"),
        ({"every": 1, "missed": "some"}, "missed is 'some'"),
        ({"every": 1, "priority": "urgent"}, "not a priority"),
        ({"every": 1, "attempts": 0}, "attempts"),
        ({"every": 1, "headers": 5}, "headers are a int"),
        ({"every": 1, "headers": {"a": 1}}, "a header is not text"),
        ({"every": 1, "created_at": 1.0}, "no 'created_at'"),
        ({"every": 1, "payload": float("nan")}, "NaN"),
        ({"every": 1, "payload": object()}, "JSON"),
        ({"every": 1, "queue": "~webhooks"}, "belongs to the bus itself"),
        ({"every": 1, "name": "x" * 201}, "201 bytes"),
        ({"every": 1, "name": ""}, "empty"),
    ],
)
@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_what_cannot_be_published_is_refused_when_it_is_added(bus, words, error):
    given = {"name": "poll", "queue": "mail", **words}

    with pytest.raises((UsageError, InvalidPayload, InvalidName), match=error):
        Schedules(bus).add(**given)

    assert Schedules(bus).list() == []


def test_an_unknown_schedule_is_not_found(bus):
    schedules = Schedules(bus)

    for act in (
        schedules.show,
        schedules.pause,
        schedules.resume,
        schedules.trigger,
        schedules.remove,
    ):
        with pytest.raises(NotFound, match="there is no schedule 'nope'"):
            act("nope")


def test_a_removed_schedule_leaves_nothing_behind(bus):
    schedules = Schedules(bus)
    schedules.add("poll", "mail", every=60)
    put_back(bus, "poll", 1)
    Scheduler(bus).run_once()

    schedules.remove("poll")

    assert schedules.list() == []
    assert ask(bus, "EXISTS", bus.scope.keys.schedule("poll"), bus.scope.keys.schedules) == 0


async def test_an_asynchronous_bus_has_the_same_schedules(abus):
    schedules = Schedules(abus)

    added = await schedules.add("poll", "mail", every=0.01)
    with Scheduler(abus):
        (delivery,) = await abus.queue("mail").fetch(count=1, block=10)

    assert (await schedules.list())[0].name == added.name == delivery.headers["schedule"]


# -- a program's own --


def test_a_program_declares_its_schedules(bus):
    schedules = Schedules(bus)
    schedules.add("by-hand", "mail", every=60)
    first = [Definition("a", "mail", 1, every=60), Definition("b", "mail", cron="@daily")]

    added = schedules.sync(first, owner="shop")
    again = schedules.sync(first, owner="shop")
    later = schedules.sync([Definition("a", "mail", 2, every=60)], owner="shop")

    assert (added.added, added.changed, added.removed) == (("a", "b"), (), ())
    assert (again.added, again.changed, again.removed) == ((), (), ())
    assert (later.added, later.changed, later.removed) == ((), ("a",), ("b",))
    assert [(one.name, one.owner) for one in schedules.list()] == [("a", "shop"), ("by-hand", None)]


def test_a_program_takes_no_schedule_of_another_one(bus):
    schedules = Schedules(bus)
    schedules.sync([Definition("a", "mail", every=60)], owner="shop")

    with pytest.raises(Refused, match="belongs to 'shop'"):
        schedules.sync([Definition("a", "mail", every=60)], owner="bank")

    assert schedules.sync([], owner="bank").removed == ()
    assert [one.owner for one in schedules.list()] == ["shop"]


def test_a_program_with_an_invalid_schedule_changes_nothing(bus):
    schedules = Schedules(bus)
    schedules.sync([Definition("a", "mail", every=60)], owner="shop")

    with pytest.raises(UsageError):
        schedules.sync([Definition("b", "mail", every=60), Definition("c", "mail")], owner="shop")
    with pytest.raises(UsageError, match="one name"):
        schedules.sync([Definition("b", "mail", every=60)] * 2, owner="shop")

    assert [one.name for one in schedules.list()] == ["a"]


# -- ticks --


def test_a_tick_publishes_a_task_that_names_its_schedule_and_its_due_time(bus):
    added = Schedules(bus).add("poll", "mail", {"x": 1}, every=60, priority="high", tenant="shop")
    put_back(bus, "poll", 1_000)

    (found,) = Scheduler(bus).run_once()

    (one,) = bus.queue("mail").inspect()
    when = rfc3339(found.due, milliseconds=True)
    assert (one.id, one.payload, one.priority) == (found.task_id, {"x": 1}, "high")
    assert one.envelope["headers"] == {"schedule": "poll", "schedule-due": when}
    assert one.envelope["key"] == one.envelope["correlation_id"] == f"poll@{when}"
    assert one.envelope["tenant"] == "shop"
    state = Schedules(bus).show("poll")
    assert (state.published, state.last_due, state.last_task) == (1, found.due, one.id)
    assert state.due > added.anchor / 1000 + 59


def test_a_schedule_is_not_due_before_its_time(bus):
    Schedules(bus).add("poll", "mail", every=60)

    assert Scheduler(bus).run_once() == []
    assert tried(bus, "poll") is None


def test_a_tick_whose_answer_is_lost_is_published_once(bus):
    Schedules(bus).add("poll", "mail", every=60)
    put_back(bus, "poll", 1)

    found = resent(bus, tick(bus.scope, "poll", now_ms(bus), bus.runner.policies))

    assert [one.id for one in bus.queue("mail").inspect()] == [found.task_id]
    assert Schedules(bus).show("poll").published == 1


def test_a_schedule_whose_answer_is_lost_is_added_once(bus):
    schedules = Schedules(bus)
    op = Schedules.add.__wrapped__.verb.define(schedules, "poll", "mail", every=60)

    resent(bus, op)

    assert [one.version for one in schedules.list()] == [1]


def test_a_scheduler_that_was_frozen_publishes_no_tick_again(bus, connect):
    Schedules(bus).add("poll", "mail", every=60)
    put_back(bus, "poll", 1)
    frozen = Frozen(connect("bob"), "poll")
    done = tried(bus, "poll")

    assert frozen.wake() is None
    assert [one.id for one in bus.queue("mail").inspect()] == [done.task_id]


@pytest.mark.parametrize("change", ["pause", "remove", "add", "add again"])
def test_a_scheduler_that_was_frozen_publishes_nothing_of_a_schedule_that_changed(
    bus, connect, change
):
    schedules = Schedules(bus)
    schedules.add("poll", "mail", 1, every=60)
    due = put_back(bus, "poll", 1)
    frozen = Frozen(connect("bob"), "poll")

    if change == "add":
        schedules.add("poll", "mail", 2, every=60)
    elif change == "pause":
        schedules.pause("poll")
    else:
        schedules.remove("poll")
    if change == "add again":
        schedules.add("poll", "mail", 1, every=60)
        ask(bus, "HSET", bus.scope.keys.schedule("poll"), "due", due)

    assert frozen.wake() is None
    assert envelopes(bus) == []


def test_a_decision_that_is_old_is_made_again(bus):
    Schedules(bus).add("poll", "mail", every=60)
    put_back(bus, "poll", 30_000)

    # A scheduler that was frozen since would publish the tick of then, and that of now.
    assert tried(bus, "poll", now_ms(bus) - 11_000) is None
    assert envelopes(bus) == []
    assert tried(bus, "poll").task_id


@on_one_store
def test_a_full_queue_keeps_a_tick_due_until_there_is_room(bus):
    schedules = Schedules(bus)
    schedules.add("poll", FULL, every=3600)
    bus.queue(FULL).publish_many(range(ROOM))
    due = put_back(bus, "poll", 1)

    (refused,) = Scheduler(bus).run_once()

    state = schedules.show("poll")
    assert (refused.task_id, "the limit is 100" in refused.error) == (None, True)
    assert (state.refused, state.due, state.published) == (1, due / 1000, 0)
    assert state.refused_since == pytest.approx(now_ms(bus) / 1000, abs=5)
    with pytest.raises(QueueFull):
        schedules.trigger("poll")
    with bus.subscribe(FULL, lambda _delivery: None, count=1) as worker:
        worker.run()
    with Scheduler(bus):
        # The tick is tried again a second after it was refused.
        deliveries = bus.queue(FULL).fetch(count=1, group="all", start="tail", block=10)
    state = schedules.show("poll")
    assert [one.headers["schedule"] for one in deliveries] == ["poll"]
    assert (state.refused, state.refused_since, state.published) == (0, None, 1)


def test_a_key_of_ones_own_leaves_out_ticks_within_its_window(bus):
    Schedules(bus).add("poll", "mail", every=60, key="poll")
    put_back(bus, "poll", 1)
    first = tried(bus, "poll")
    put_back(bus, "poll", 1)

    before = Schedules(bus).show("poll")

    assert tried(bus, "poll").task_id == first.task_id
    assert len(envelopes(bus)) == 1
    # Only what was published is counted.
    after = Schedules(bus).show("poll")
    assert (after.published, after.last_due) == (1, before.last_due)


def test_a_paused_schedule_misses_nothing(bus):
    schedules = Schedules(bus)
    schedules.add("poll", "mail", every=60, missed="all")
    put_back(bus, "poll", 600_000)

    paused = schedules.pause("poll")
    assert Scheduler(bus).run_once() == []
    resumed = schedules.resume("poll")

    assert (paused.due, paused.paused, resumed.paused) == (None, True, False)
    assert resumed.due > now_ms(bus) / 1000
    assert schedules.resume("poll") == resumed
    assert Scheduler(bus).run_once() == []


def test_a_paused_schedule_is_triggered_all_the_same(bus):
    schedules = Schedules(bus)
    schedules.add("poll", "mail", {"x": 1}, every=60)
    schedules.pause("poll")

    task_id = schedules.trigger("poll")

    (one,) = bus.queue("mail").inspect()
    assert (one.id, one.payload, one.envelope) == (
        task_id,
        {"x": 1},
        {"headers": {"schedule": "poll"}, "correlation_id": task_id},
    )
    assert schedules.show("poll").due is None


@pytest.mark.parametrize(
    "record",
    ["no JSON", "{}", "[]", '{"queue": 1}', None, {"envelope": {"headers": 1}}, {"every": 0}],
    ids=str,
)
def test_a_record_of_another_program_stops_no_other_schedule(bus, record):
    schedules = Schedules(bus)
    for name in ("bad", "good"):
        schedules.add(name, "mail", every=60)
        put_back(bus, name, 1)
    if isinstance(record, dict):
        kept = json.loads(ask(bus, "HGET", bus.scope.keys.schedule("bad"), "record"))
        record = json.dumps(kept | record)
    if record is None:
        ask(bus, "DEL", bus.scope.keys.schedule("bad"))
    else:
        ask(bus, "HSET", bus.scope.keys.schedule("bad"), "record", record)

    found = Scheduler(bus).run_once()

    assert [one.schedule for one in found] == ["good"]
    assert [one.name for one in schedules.list()] == ["good"]
    with pytest.raises(NotFound):
        schedules.show("bad")
    assert schedules.add("bad", "mail", every=60).version == 1


@pytest.mark.parametrize("score", ["-inf", "1e300", "-5", "0.5", "inf"])
def test_a_member_of_another_program_stops_no_scheduler(bus, score):
    Schedules(bus).add("good", "mail", every=60)
    put_back(bus, "good", 1)
    ask(bus, "ZADD", bus.scope.keys.schedules, score, "", score, "a\nb")

    found = Scheduler(bus).run_once()

    assert [one.schedule for one in found] == ["good"]
    assert [one.name for one in Schedules(bus).list()] == ["good"]
    assert all(one.figure is None or one.figure < 1e10 for one in bus.health().findings)


def test_a_schedule_that_is_added_wakes_a_scheduler(bus, connect):
    with Scheduler(connect("bob")):
        Schedules(bus).add("poll", "mail", every=0.05)
        deliveries = [
            *itertools.chain.from_iterable(bus.queue("mail").fetch(count=1, block=10) for _ in "ab")
        ]

    assert [one.headers["schedule"] for one in deliveries] == ["poll", "poll"]


def test_a_scheduler_reports_each_tick(bus):
    Schedules(bus).add("poll", "mail", every=60)
    put_back(bus, "poll", 1)
    seen: list[Any] = []

    found = Scheduler(bus, on_tick=seen.append).run_once()

    assert seen == found != []


@pytest.mark.parametrize(("late", "severity"), [(30, None), (90, "warning"), (700, "critical")])
def test_health_reports_a_schedule_that_no_scheduler_publishes(bus, late, severity):
    schedules = Schedules(bus)
    schedules.add("poll", "mail", every=60)
    schedules.add("halted", "mail", every=60)
    schedules.pause("halted")
    put_back(bus, "poll", late * 1000)

    found = [one for one in bus.health().findings if one.check == "overdue"]
    Scheduler(bus).run_once()

    assert [(one.subject, one.severity) for one in found] == (
        [("poll", severity)] if severity else []
    )
    assert [one for one in bus.health().findings if one.check == "overdue"] == []


# -- ticks that were missed, by a clock that tests move --


@pytest.fixture
def server() -> Iterator[MemoryServer]:
    with MemoryServer() as made:
        yield made


@pytest.fixture
def clock(server: MemoryServer) -> FakeClock:
    return server.clock


@pytest.mark.parametrize(
    ("missed", "away", "expected"),
    [
        # A tick each hour. On time, each is published, whatever becomes of missed ones.
        ("once", 3_600, [1]),
        ("all", 3_600, [1]),
        ("none", 3_600, [1]),
        # Away for a while.
        ("once", 5 * 3_600 + 1_800, [5]),
        ("all", 5 * 3_600 + 1_800, [1, 2, 3, 4, 5]),
        ("none", 5 * 3_600 + 1_800, []),
        ("none", 5 * 3_600 + 59, [5]),
        # No more than a hundred, which are the latest.
        ("all", 500 * 3_600, [*range(401, 501)]),
    ],
)
def test_missed_ticks_are_published_as_the_schedule_says(server, clock, missed, away, expected):
    bus = server.connect()
    added = Schedules(bus).add("poll", "mail", every=3_600, missed=missed)
    assert MOST_MISSED == 100

    clock.advance(away)
    Scheduler(bus).run_once()

    assert dues(bus) == [
        rfc3339(added.anchor / 1000 + 3_600 * n, milliseconds=True) for n in expected
    ]
    later = Schedules(bus).show("poll")
    assert later.due == added.anchor / 1000 + 3_600 * (away // 3_600 + 1)
    assert later.published == len(expected)


def test_a_cron_schedule_is_due_by_the_clocks_of_its_zone(server, clock):
    bus = server.connect()
    clock.advance_to(datetime(2099, 3, 27, 12, tzinfo=UTC).timestamp())
    Schedules(bus).add("report", "mail", cron="30 2 * * *", timezone="Europe/Berlin")
    scheduler = Scheduler(bus)

    # In 2099 the clocks are put forward on March 29.
    for _ in range(4 * 24):
        clock.advance(3_600)
        scheduler.run_once()

    assert dues(bus) == [
        "2099-03-28T01:30:00.000Z",
        "2099-03-29T01:00:00.000Z",
        "2099-03-30T00:30:00.000Z",
        "2099-03-31T00:30:00.000Z",
    ]


def test_a_scheduler_in_the_background_goes_by_the_clock(server, clock):
    bus = server.connect()
    Schedules(bus).add("poll", "mail", every=3_600)

    ticks: SimpleQueue[Tick] = SimpleQueue()
    bus.scope.intervals = Intervals(look=0.2)

    with Scheduler(bus, on_tick=ticks.put):
        for _ in range(3):
            clock.advance(3_600)
            assert ticks.get(timeout=60).due == clock.now


def test_a_clock_that_is_put_back_repeats_no_tick(bus):
    Schedules(bus).add("poll", "mail", every=60)
    put_back(bus, "poll", 1_000)
    assert tried(bus, "poll").task_id

    # The next tick waits until the clock has come to its time.
    assert tried(bus, "poll", now_ms(bus) - 3_600_000) is None
    assert len(envelopes(bus)) == 1
