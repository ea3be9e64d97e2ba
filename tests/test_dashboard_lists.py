"""Lists of a dashboard that are read in parts, or followed in streams: they become what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import agentbus
from agentbus.coordination import presence
from agentbus.core.keys import Keys
from agentbus.dashboard import Dashboard, RowRange, Snapshot, ranking, surveys
from agentbus.errors import BackendUnavailable
from agentbus.store.scope import Scope
from tests.servers import ask

if TYPE_CHECKING:
    from collections.abc import Callable

# More agents than a snapshot reads.
MANY = 250
ROWS = RowRange(limit=5)


def come(bus: agentbus.Bus, *numbers: int) -> None:
    """Make agents present."""
    for number in numbers:
        bus.runner.run(presence.here(Scope(bus.project, f"agent-{number}")))


def turned(dashboard: Dashboard, agents: RowRange = ROWS) -> Snapshot:
    """Read as many snapshots as the agents are read in."""
    for _ in range(MANY // presence.AT_ONCE):
        dashboard.snapshot(agents=agents)
    return dashboard.snapshot(agents=agents)


def agrees(found: Snapshot, bus: agentbus.Bus) -> bool:
    there = bus.present(limit=None)
    totals = found.totals
    return (totals.agents, totals.unread) == (len(there), sum(one.unread for one in there))


# -- agents --


def test_of_many_agents_all_are_read_at_first_and_then_in_turns(bus):
    come(bus, *range(MANY))
    dashboard = Dashboard(bus)
    first = dashboard.snapshot(agents=ROWS)
    bus.tell("agent-3", "hello")

    assert not agrees(first, bus)
    assert agrees(turned(dashboard), bus)


def test_an_agent_that_is_active_is_read_with_the_next_snapshot(bus):
    come(bus, *range(MANY))
    dashboard = Dashboard(bus)
    dashboard.snapshot(agents=ROWS)
    come(bus, 3, MANY + 1)

    found = dashboard.snapshot(agents=ROWS)

    assert {one.agent for one in found.agents[:2]} == {"agent-3", f"agent-{MANY + 1}"}
    assert found.totals.agents == MANY + 1


def test_agents_that_are_shown_are_read_with_each_snapshot(bus):
    come(bus, *range(MANY))
    dashboard, rows = Dashboard(bus), RowRange(match="agent-77")
    dashboard.snapshot(agents=rows)
    bus.tell("agent-77", "hello")

    found = dashboard.snapshot(agents=rows)

    assert [(one.agent, one.unread) for one in found.agents] == [("agent-77", 1)]
    assert found.totals.unread == 1


def test_agents_that_are_gone_leave_the_list(bus):
    come(bus, *range(MANY))
    dashboard = Dashboard(bus)
    dashboard.snapshot(agents=ROWS)
    for number in range(100, 150):
        ask(bus, "ZREM", Keys(bus.project).agents, f"agent-{number}")

    assert turned(dashboard).totals.agents == MANY - 50
    bus.clear()
    assert dashboard.snapshot().totals.agents == 0


def test_agents_in_turns_are_as_old_as_the_snapshot_says(bus, monkeypatch):
    come(bus, *range(MANY))
    now = [1000.0]
    bus.scope.monotonic = lambda: now[0]
    dashboard = Dashboard(bus)
    ages = []
    for _ in range(4):
        ages.append(dashboard.snapshot(agents=ROWS).oldest_part)
        now[0] += 10.0

    # Three pages of agents, of which each snapshot reads one.
    assert ages == [0.0, 10.0, 20.0, 20.0]


# -- queues --


def test_a_new_queue_is_found_without_another_scan(bus):
    dashboard = Dashboard(bus)
    dashboard.snapshot()
    dashboard._names._next = float("inf")
    bus.queue("late").publish(1)

    assert [one.stats.queue for one in dashboard.snapshot().queues] == ["late"]


def test_a_queue_of_another_program_is_found_by_a_scan(bus):
    dashboard = Dashboard(bus)
    dashboard.snapshot()
    ask(bus, "XADD", Keys(bus.project).queue("theirs"), "*", "payload", "1")
    dashboard._names._next = 0.0

    assert [one.stats.queue for one in dashboard.snapshot().queues] == ["theirs"]


def test_the_oldest_task_is_that_of_the_figures_however_often_it_is_read(bus):
    # given a queue with one stream and two groups, one with others, and one without a group
    mail, other = bus.queue("mail"), bus.queue("other")
    mail.publish_many(range(6))
    other.publish_many(range(3))
    other.publish(1, priority="low")
    bus.queue("new").publish(1)
    mail.fetch(group="audit", count=1)
    dashboard = Dashboard(bus)

    for taken in range(6):
        if taken % 2:
            mail.fetch(count=1)
            other.fetch(count=1)
        found = bus.runner.run(dashboard._ranked())
        oldest = {(one.queue, group.group): group.oldest for one in found for group in one.groups}
        stats = {(one.queue, one.group): one.oldest for one in bus.stats()}
        assert oldest.keys() == stats.keys()
        for key, at in oldest.items():
            age = stats[key]
            assert (at is None) == (age is None), (key, taken)
            assert at is None or abs(bus.runner.run(_now(bus)) - age - at) < 1, (key, taken)


def _now(bus: agentbus.Bus):
    from agentbus.store.scope import server_time

    return server_time(bus.scope)


def test_an_oldest_task_that_was_deleted_is_found_out(bus):
    mail = bus.queue("mail")
    mail.publish_many(range(3))
    dashboard = Dashboard(bus)
    (before,) = bus.runner.run(dashboard._ranked())
    key = Keys(bus.project).queue("mail")
    (first, *_) = ask(bus, "XRANGE", key, "-", "+")
    later = f"{int(first[0].split(b'-')[0]) + 5000}-0"
    ask(bus, "XADD", key, later, "payload", "1")
    ask(bus, "XTRIM", key, "MAXLEN", 1)

    for _ in range(16):
        (found,) = bus.runner.run(dashboard._ranked())

    assert found.groups[0].oldest == before.groups[0].oldest + 5
    assert found.groups[0].backlog == 1


def test_of_many_queues_tasks_of_any_priority_are_found_within_three_readings(bus, monkeypatch):
    monkeypatch.setattr(ranking, "_MANY", 3)
    for number in range(4):
        bus.queue(f"q{number}").publish(1)
        bus.queue(f"q{number}").fetch()
    dashboard = Dashboard(bus)
    dashboard.snapshot()
    for number in range(4):
        bus.queue(f"q{number}").publish(2, priority="high")
        bus.queue(f"q{number}").publish(3, delay=600.0)

    totals = []
    for _ in range(3):
        dashboard._ranks._next = 0.0
        totals.append(dashboard.snapshot(queues=RowRange(limit=0)).totals)

    assert [one.backlog for one in totals] == sorted({one.backlog for one in totals})
    assert (totals[-1].backlog, totals[-1].delayed, totals[-1].held) == (4, 4, 4)


def test_of_many_queues_each_row_follows_what_becomes_of_its_tasks(bus, monkeypatch):
    monkeypatch.setattr(ranking, "_MANY", 3)
    for number in range(4):
        bus.queue(f"q{number}").publish(1)
    queue, dashboard, held = bus.queue("q2"), Dashboard(bus), []
    steps: list[Callable[[], object]] = [
        lambda: queue.publish(2),
        lambda: held.extend(queue.fetch()),
        lambda: held.extend(queue.fetch()),
        lambda: held.pop().ack(),
        lambda: held[0].retry(after=600.0),
        lambda: queue.publish(3),
        lambda: queue.fetch()[0].bury("broken"),
        lambda: None,
        queue.replay_all,
    ]

    for step in steps:
        step()
        dashboard._ranks.forget()
        rows = {one.stats.queue: one.stats for one in dashboard.snapshot().queues}

        (expected,) = bus.stats("q2")
        for name in ("backlog", "pending", "retrying", "lag", "dead", "by_priority"):
            assert getattr(rows["q2"], name) == getattr(expected, name), name


def test_of_many_queues_one_without_a_change_is_not_surveyed_again(bus, monkeypatch):
    monkeypatch.setattr(ranking, "_MANY", 3)
    for number in range(4):
        bus.queue(f"q{number}").publish(1)
    bus.queue("q1").fetch()
    (held,) = bus.queue("q2").fetch()
    dashboard, asked = Dashboard(bus), []
    dashboard.snapshot()
    real = surveys.surveyed
    monkeypatch.setattr(
        surveys, "surveyed", lambda scope, names: asked.append([*names]) or real(scope, names)
    )
    bus.queue("q3").publish(2)
    held.retry(after=600.0)
    dashboard._ranks.forget()

    dashboard.snapshot()

    assert sorted(asked[0]) == ["q2", "q3"]


def test_of_many_queues_a_short_list_does_not_have_a_long_one_surveyed_again(bus, monkeypatch):
    monkeypatch.setattr(ranking, "_MANY", 3)
    for number in range(8):
        bus.queue(f"q{number}").publish(1)
    dashboard, asked = Dashboard(bus), []
    dashboard.queues()
    real = surveys.surveyed
    monkeypatch.setattr(
        surveys, "surveyed", lambda scope, names: asked.extend(names) or real(scope, names)
    )

    for _ in range(2):
        dashboard.queues(RowRange(limit=1))
        dashboard.queues()

    assert asked == []


# -- flags and leases, and events --


def test_a_lease_that_was_renewed_or_ended_is_shown_so_at_once(bus):
    bus.lease("src/**", why="parser")
    dashboard = Dashboard(bus)
    assert dashboard.snapshot().leases == tuple(bus.leases())

    bus.lease("src/**", ttl=7200)
    bus.lease("docs/**")
    assert dashboard.snapshot().leases == tuple(bus.leases())

    bus.drop_leases("src/**")
    assert dashboard.snapshot().leases == tuple(bus.leases())
    assert bus.runner.run(dashboard._leases.read(dashboard.snapshot().at + 10_000)) == []


def test_flags_are_scanned_sooner_where_messages_were_left_out(bus):
    dashboard = Dashboard(bus)
    bus.speak("zero")
    dashboard.snapshot()
    names = dashboard._flags.names
    # As if the scan had taken a second.
    names._took, names._next = 1.0, float("inf")
    bus.announce("building", ttl=60)
    for number in range(3):
        bus.speak(str(number))

    dashboard.snapshot(messages=2)

    assert names._next <= names._at + 40.0


def report(bus: agentbus.Bus, role: str, **fields: object) -> None:
    """Write what a relay or a consumer reports."""
    words = [str(word) for pair in fields.items() for word in pair]
    about = ("kind", "events", "stream", "shop:orders", "role", role)
    ask(bus, "XADD", Keys(bus.project).metrics, "*", *about, *words)


def test_reports_of_events_are_followed_in_the_metrics_stream(bus):
    report(bus, "relay", lag_ms=10, lag_events_count=1)
    report(bus, "billing", lag_ms=20, lag_events_count=2)
    dashboard = Dashboard(bus)
    first = dashboard.snapshot().events
    dashboard._events.all._next = float("inf")
    report(bus, "relay", lag_ms=30, lag_events_count=3)
    # A report without a lag leaves the last one.
    report(bus, "relay", published=5)
    report(bus, "billing", gone=1)
    report(bus, "stock", lag_ms=40, lag_events_count=4)

    later = dashboard.snapshot().events

    assert [(one.role, one.lag_events) for one in first] == [("billing", 2), ("relay", 1)]
    assert [(one.role, one.lag_events) for one in later] == [("relay", 3), ("stock", 4)]
    assert [(one.role, one.lag_events) for one in Dashboard(bus).snapshot().events] == [
        *(("relay", 3), ("stock", 4)),
    ]


# -- messages --


def test_messages_of_a_snapshot_that_failed_are_in_the_next_one(bus, monkeypatch):
    dashboard = Dashboard(bus)
    bus.speak("zero")
    dashboard.snapshot()
    for number in range(4):
        bus.speak(str(number))

    def fail(*_: object) -> None:
        raise BackendUnavailable("away")

    with monkeypatch.context() as away:
        away.setattr(dashboard._flags, "read", fail)
        with pytest.raises(BackendUnavailable):
            dashboard.snapshot(messages=3)
    bus.speak("4")

    found = dashboard.snapshot(messages=3)

    assert [one.text for one in found.messages] == ["2", "3", "4"]
    assert found.missed == 2
