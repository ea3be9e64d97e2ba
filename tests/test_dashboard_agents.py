"""The pages of a dashboard about agents: a list of any length, and all that one agent does."""

from __future__ import annotations

import pytest

from agentbus.core.keys import Keys
from agentbus.dashboard import Dashboard, Pages, RowRange
from agentbus.errors import NotFound, UsageError
from tests.servers import ask


def test_an_agent_is_listed_as_the_other_views_have_it(bus, connect):
    bus.here(doing="the parser", state="waiting")
    connect("bob").tell("ada", "hello")
    bus.lease("src/**")
    bus.queue("mail").publish(1)
    bus.take("mail")

    found = Pages(bus).agents()

    assert [row.presence for row in found.rows] == bus.present()
    (ada,) = (row for row in found.rows if row.presence.agent == "ada")
    assert (ada.presence.unread, ada.presence.leases, ada.tasks) == (1, ("src/**",), 1)
    assert found.matching == sum(found.states.values()) == 2


def test_agents_are_paged_and_filtered(bus, connect):
    for number in range(7):
        connect(f"agent-{number}").here(doing="tests" if number % 2 else "docs", state="idle")
    pages = Pages(bus)

    second = pages.agents(RowRange(offset=2, limit=2), order="name")
    docs = pages.agents(RowRange(match="DOCS"), order="name")

    assert [row.presence.agent for row in second.rows] == ["agent-2", "agent-3"]
    assert second.matching == 7
    assert [row.presence.agent[-1] for row in docs.rows] == ["0", "2", "4", "6"]
    assert pages.agents(state="active").rows == ()


@pytest.mark.slow
def test_ten_thousand_agents_are_paged_by_a_hundred(bus):
    keys = Keys(bus.project)
    seconds, microseconds = map(int, ask(bus, "TIME"))
    now = seconds + microseconds / 1e6
    for first in range(0, 10_000, 1_000):
        members = (
            word
            for number in range(first, first + 1_000)
            for word in (f"{now - number / 10:.3f}", f"agent-{number:04}")
        )
        ask(bus, "ZADD", keys.agents, *members)
    pages = Pages(bus)

    found = [
        row.presence.agent
        for at in range(0, 10_000, 100)
        for row in pages.agents(RowRange(offset=at, limit=100)).rows
    ]

    assert found == [f"agent-{number:04}" for number in range(10_000)]
    assert pages.agents(RowRange(match="-99", limit=100)).matching == 100


def test_those_who_are_gone_are_listed_on_request(bus, connect):
    bus.here()
    connect("bob").here(state="gone")
    pages = Pages(bus)

    found = pages.agents(all=True, state="gone")

    assert [row.presence.agent for row in pages.agents().rows] == ["ada"]
    assert [row.presence.agent for row in found.rows] == ["bob"]
    assert found.states == {"active": 1, "gone": 1}


@pytest.mark.parametrize("order", ["unread", "state", "seen"])
def test_agents_are_ordered(bus, connect, order):
    connect("bob").here(state="idle")
    bus.here()
    connect("ada").tell("bob", "hello")

    found = Pages(bus).agents(order=order)

    first = {"unread": "bob", "state": "ada", "seen": "ada"}[order]
    assert found.rows[0].presence.agent == first


def test_an_unknown_state_or_order_is_refused(bus):
    with pytest.raises(UsageError, match="the state is 'busy'"):
        Pages(bus).agents(state="busy")
    with pytest.raises(UsageError, match="the order is 'size'"):
        Pages(bus).agents(order="size")


def test_one_agent_has_what_it_holds_and_waits_for(bus, connect):
    bus.here(doing="the parser")
    bus.announce("building", ttl=60)
    bus.lease("src/**", why="parser")
    bus.queue("mail").publish("letter")
    task = bus.take("mail")

    found = Pages(bus).agent("ada")

    assert found.presence is not None
    assert (found.presence.doing, found.leases) == ("the parser", tuple(bus.leases()))
    assert [one.flag for one in found.flags] == ["building"]
    assert [one.id for one in found.tasks] == [task.id]
    assert found.activity == bus.agents()[0]


def test_one_agent_has_receipts_of_what_it_sent(bus, connect):
    bob, eve = connect("bob"), connect("eve")
    bob.here()
    eve.here()
    first = bus.tell("bob", "one?")
    assert [one.text for one in bob.inbox()] == ["one?"]
    answer = bob.reply(first.id, "yes")
    # Ids of two inboxes may be of the same millisecond.
    while bus.tell("eve", "two").id.split("-")[0] == first.id.split("-")[0]:
        pass
    eve.tell("bob", "not by ada")

    found = Pages(bus).agent("ada")

    assert [(one.message.to, one.receipt.state) for one in found.sent][-2:] == [
        ("eve", "sent"),
        ("bob", "answered"),
    ]
    assert [one.receipt for one in found.sent] == [
        bus.receipts(one.message.id) for one in found.sent
    ]
    assert [one.message.id for one in found.received] == [answer.id]


def test_one_agent_has_what_it_spoke_newest_first(bus, connect):
    bus.speak("one")
    connect("bob").speak("two")
    for number in range(60):
        bus.speak(str(number))

    found = Pages(bus).agent("ada")

    assert [one.text for one in found.spoken] == [str(number) for number in range(59, 9, -1)]


def test_nobody_of_that_name_is_not_found(bus):
    bus.here()
    with pytest.raises(NotFound, match="nobody was ever here by the name of bob"):
        Pages(bus).agent("bob")


def test_an_agent_whose_name_another_program_made_up_has_a_page(bus):
    bus.here()
    name = "a\r\nb: %3A *"
    ask(bus, "XADD", Keys(bus.project).channel, "*", "agent_id", name, "message", "hello")

    found = Pages(bus).agent(name)

    assert [one.text for one in found.spoken] == ["hello"]


def test_a_worker_that_uses_nothing_else_is_an_agent(bus):
    keys = Keys(bus.project)
    seconds, _ = ask(bus, "TIME")
    now = int(seconds) * 1000
    ask(bus, "ZADD", keys.beats, now, "w1")
    fields = ("agent", "mule", "queue", "mail", "group", "default", "running", "2", "pid", "7")
    ask(bus, "HSET", keys.beat("w1"), *fields, "host", "elsewhere")

    (row,) = Pages(bus).agents().rows

    assert (row.presence.agent, row.workers, row.running) == ("mule", 1, 2)
    assert Pages(bus).agent("mule").workers[0].worker == "w1"


def test_pages_beside_a_dashboard_show_the_lists_of_its_snapshots(bus, connect):
    bus.here()
    bus.announce("building", ttl=60)
    dashboard = Dashboard(bus)
    pages = Pages(bus, dashboard)
    assert pages.agents().matching == 1
    dashboard.snapshot()
    connect("bob").here()
    before = pages.agents().matching
    dashboard.snapshot()

    assert (before, pages.agents().matching) == (1, 2)
    assert [one.flag for one in pages.flags().flags] == ["building"]
    assert pages.agents(all=True).matching == 2


async def test_an_async_bus_has_the_same_pages(abus):
    await abus.here(doing="docs")
    await abus.speak("hello")

    pages = Pages(abus)

    assert [row.presence.agent for row in (await pages.agents()).rows] == [abus.agent]
    assert [one.text for one in (await pages.agent(abus.agent)).spoken] == ["hello"]


def test_records_of_another_program_break_no_page(bus, connect):
    # given an agent without a valid name, and inboxes and positions of another type
    keys = Keys(bus.project)
    bus.here()
    connect("bob").here()
    ask(bus, "ZADD", keys.agents, "5", b"\xff\x00 name")
    ask(bus, "SET", keys.inbox("bob"), "text")
    ask(bus, "SET", keys.inbox_at("ada"), "text")
    ask(bus, "XADD", keys.inbox("ada"), "*", "agent_id", "bob", "message", b"\xff")

    found = Pages(bus).agent("ada")

    assert [one.message.text for one in found.received] == ["\\xff"]
    assert len(Pages(bus).agents(all=True).rows) == 3
