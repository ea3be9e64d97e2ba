"""The page of a dashboard about flags and leases: who holds what, who waits, and what was refused."""

from __future__ import annotations

import contextlib
import threading

import pytest

from agentbus.coordination import waiters
from agentbus.core.keys import Keys
from agentbus.dashboard import Dashboard, Pages, RowRange
from agentbus.errors import LeaseHeld, NotFound
from tests.servers import ask


@contextlib.contextmanager
def waited_for(waiter, flag):
    """Let another agent wait for a flag meanwhile."""
    record = waiters.Waiting(waiter.scope, [flag], "free")
    waiter.runner.run(record.renew())
    yield
    waiter.runner.run(record.end())


def refuse(bus, number, seconds_ago=0.0):
    """Write what the server writes of refused leases."""
    seconds, microseconds = map(int, ask(bus, "TIME"))
    now = seconds + microseconds / 1e6 - seconds_ago
    fields = ("kind", "refusal", "version", "1", "queue", "~leases", "refused", str(number))
    return ask(bus, "XADD", Keys(bus.project).metrics, f"{round(now * 1000)}-*", *fields)


def test_flags_and_leases_are_those_of_the_other_views(bus):
    bus.announce("building", ttl=60)
    bus.satisfy("tested", note="green")
    bus.fail("deployed", note="no room")
    bus.lease("src/**", why="parser")

    found = Pages(bus).flags()

    assert [one.flag for one in found.flags] == ["building", "deployed", "tested"]
    assert {one.flag: one.state for one in found.flags} == {
        one.flag: one.state for one in bus.flags()
    }
    assert found.leases == tuple(bus.leases())
    assert found.states == {"held": 1, "satisfied": 1, "failed": 1}


def test_flags_and_leases_are_filtered(bus, connect):
    bus.announce("building", ttl=60)
    connect("bob").announce("docs", ttl=60)
    bus.satisfy("tested")
    bus.lease("src/**", why="parser")
    connect("bob").lease("docs/**")
    pages = Pages(bus)

    found = pages.flags(RowRange(match="BOB"), leases=RowRange(match="pars"))

    assert [one.flag for one in found.flags] == ["docs"]
    assert [one.pattern for one in found.leases] == ["src/**"]
    assert [one.flag for one in pages.flags(state="satisfied").flags] == ["tested"]
    assert pages.flags(RowRange(offset=1, limit=1)).matching_flags == 3


def test_who_waits_for_a_flag_is_shown(bus, connect):
    bus.announce("building", ttl=60)
    waiting = threading.Thread(target=connect("bob").await_, args=("building",), daemon=True)
    waiting.start()
    pages = Pages(bus)
    while not (found := pages.flags().waiters):
        assert waiting.is_alive()
    bus.satisfy("building")
    waiting.join(60)

    assert [(one.agent_id, one.flag) for one in found] == [("bob", "building")]


def test_awaited_flags_come_first_with_their_state(bus, connect):
    for name in ("a", "b", "held"):
        bus.announce(name, ttl=60)
    with waited_for(connect("bob"), "held"), waited_for(connect("eve"), "free"):
        first = Pages(bus).flags(RowRange(limit=2))
        found = Dashboard(bus).snapshot(flags=RowRange(limit=2))
        other = Dashboard(bus).snapshot(flags=RowRange("a"))

    expected = [("held", "held"), ("free", "free")]
    assert [(one.flag, one.state) for one in found.flags] == expected
    assert [(one.flag, one.state) for one in first.flags] == expected
    assert (found.matching["flags"], first.matching_flags) == (4, 4)
    assert [one.flag for one in other.flags] == ["a"]


def test_one_lease_of_another_agent_is_ended_by_its_token(bus, connect):
    bob = connect("bob")
    bob.lease("src/**", "docs/**")
    (docs, src) = bus.leases()
    pages = Pages(bus)

    ended = pages.end_lease("bob", "docs/**", docs.token)

    assert ended == docs
    assert bus.leases() == [src]
    with pytest.raises(NotFound, match=r"bob has no lease of docs/\*\* with the token"):
        pages.end_lease("bob", "docs/**", docs.token)
    with pytest.raises(NotFound):
        pages.end_lease("ada", "src/**", src.token)


def test_all_leases_of_an_agent_are_ended(bus, connect):
    connect("bob").lease("src/**", "docs/**")
    bus.lease("tests/**")

    ended = Pages(bus).end_leases("bob")

    assert sorted(one.pattern for one in ended) == ["docs/**", "src/**"]
    assert [one.agent for one in bus.leases()] == ["ada"]


def test_refused_leases_are_counted(bus, connect):
    bus.lease("src/**")
    with pytest.raises(LeaseHeld):
        connect("bob").lease("src/db.py")

    found = Pages(bus).refusals()

    assert (found.number, found.hours[-1], len(found.hours)) == (1, 1, 24)


def test_refusals_of_a_project_that_was_cleared_are_not_counted(bus):
    refuse(bus, 5)
    pages = Pages(bus)
    pages.refusals()

    bus.clear()
    pages._refused._next = 0.0
    cleared = pages.refusals()
    refuse(bus, 2)
    pages._refused._next = 0.0

    assert (cleared.number, pages.refusals().number) == (0, 2)


def test_refusals_are_read_once_and_by_hour(bus):
    refuse(bus, 7, 2 * 86_400)
    refuse(bus, 5, 3 * 3_600 + 60)
    refuse(bus, 2)
    pages = Pages(bus)
    first = pages.refusals()
    pages._refused._next = 0.0
    refuse(bus, 1)

    found = pages.refusals()

    assert (first.number, found.number) == (7, 8)
    assert (found.hours[-1], found.hours[-4]) == (3, 5)


def test_a_metrics_stream_that_begins_later_says_since_when_it_counts(bus):
    written = refuse(bus, 1)

    assert Pages(bus).refusals().since == int(written.split(b"-")[0]) / 1000
