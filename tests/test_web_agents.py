"""The pages of `agentbus web` about agents: the list, one agent, and what a person does there."""

from __future__ import annotations

import pytest

from agentbus.core.keys import Keys
from agentbus.dashboard.web.templates import span
from tests.browsing import Browser
from tests.servers import ask


async def test_agents_are_listed_with_what_they_do(bus, connect, served):
    bus.here(doing="the parser", state="waiting")
    connect("bob").tell("ada", "hello")
    bus.lease("src/**")

    answer = await Browser(served).get("/agents")

    page = answer.page
    assert (answer.status, page.unbalanced) == (200, [])
    assert "the parser" in page.text
    assert {"href": "/agent?name=ada"} in page.all("a")
    assert "1 to 2 of 2 agents" in page.text
    assert page.all("a", href="/agents")[0]["aria-current"] == "page"


async def test_agents_are_filtered_by_the_query(bus, connect, served):
    for number in range(103):
        connect(f"agent-{number:03}").here(state="idle" if number else "gone")
    browser = Browser(served)

    second = (await browser.get("/agents?page=2&order=name")).page
    gone = (await browser.get("/agents?state=gone")).page
    found = (await browser.get("/agents?q=AGENT-05")).page
    none = (await browser.get("/agents?q=nobody")).page

    assert "101 to 102 of 102 agents" in second.text
    assert "1 to 1 of 1 agent" in gone.text
    assert "1 to 10 of 10 agents" in found.text
    assert "No agent matches." in none.text


async def test_an_agent_has_a_page_with_all_that_it_does(bus, connect, served):
    bus.here(doing="the parser")
    bob = connect("bob")
    bob.here()
    bus.announce("building", ttl=60)
    bus.lease("src/**", why="grammar")
    bus.queue("mail").publish(1)
    task = bus.take("mail")
    sent = bus.tell("bob", "does it build?")
    assert [one.text for one in bob.inbox()] == ["does it build?"]
    bob.reply(sent.id, "it does")
    bus.speak("spoken by ada", topic="ci")

    answer = await Browser(served).get("/agent?name=ada")

    page = answer.page
    assert (answer.status, page.unbalanced) == (200, [])
    for text in (
        "the parser",
        "src/**",
        "grammar",
        "building",
        task.id,
        "it does",
        "does it build?",
    ):
        assert text in page.text
    assert "answered" in page.text
    assert "spoken by ada" in page.text
    assert {"href": f"/thread?id={sent.id.replace('@', '%40')}"} in page.all("a")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (-1.0, "0s"), (0.4, "0s"), (59.9, "59s"), (119.0, "1m"), (3725.0, "1h2m")],
)
def test_a_span_changes_once_a_minute_above_a_minute(seconds, shown):
    assert span(seconds) == shown


async def test_a_list_in_which_nothing_happens_is_not_sent_again(bus, connect, served):
    keys = Keys(bus.project)
    seconds, microseconds = map(int, ask(bus, "TIME"))
    now = seconds + microseconds / 1e6
    # Seen some seconds after a whole minute: what the page shows of them stays for a while.
    ask(bus, "ZADD", keys.agents, f"{now - 605:.3f}", "bob")
    async with Browser(served).stream("/live?page=/agents") as stream:
        first = await stream.event("regions")
        later = [await stream.event("regions") for _ in range(3)]

    assert "bob" in first.data["list"]
    assert ["list" in one.data for one in later] == [False, False, False]


async def test_nobody_of_that_name_is_a_page_that_says_so(bus, served):
    browser = Browser(served)

    nobody = await browser.get("/agent?name=nobody")
    nothing = await browser.get("/agent")

    assert (nobody.status, nothing.status) == (404, 404)
    assert "nobody was ever here by the name of nobody" in nobody.page.text


async def test_a_person_tells_an_agent_something_and_sees_the_receipt(bus, connect, writing):
    bob = connect("bob")
    bob.here()
    browser = Browser(writing)

    page = (await browser.get("/agent?name=bob")).page
    answer = await browser.press(page, "/act/agent.tell", text="please rebase", topic="git")
    async with browser.stream("/live?page=/agent?name=bob") as stream:
        before = await stream.event("regions")
        (said,) = list(bob.inbox())
        while "received" not in (after := await stream.event("regions")).data:
            pass

    assert (said.agent_id, said.text, said.topic) == ("human:eve", "please rebase", "git")
    assert answer.status == 303
    assert "please rebase" in before.data["received"]
    assert ">sent<" in before.data["received"]
    assert ">read<" in after.data["received"]


async def test_a_person_drops_the_leases_of_an_agent(bus, connect, writing):
    bob = connect("bob")
    bob.lease("src/**", "docs/**")
    bus.lease("tests/**")
    browser = Browser(writing)

    page = (await browser.get("/agent?name=bob")).page
    await browser.press(page, "/act/lease.drop")
    assert len(bus.leases()) == 2
    answer = await browser.press(page, "/act/agent.drop_leases")

    assert [one.agent for one in bus.leases()] == ["ada"]
    after = (await browser.get(answer.header("location"))).page
    assert "1 lease of bob dropped" in after.text
    (last,) = bus.overhear(last=1)
    assert (last.agent_id, last.topic) == ("human:eve", "coordination")


async def test_what_an_agent_speaks_appears_on_its_page_at_once(bus, connect, served):
    bus.here()
    bob = connect("bob")
    async with Browser(served).stream("/live?page=/agent?name=ada") as stream:
        await stream.event("regions")
        bob.speak("not by ada")
        bus.speak("by ada")

        event = await stream.event("entry")

    ((_, html),) = event.data["channel"]
    assert "by ada" in html
    assert "not by ada" not in html


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "../x", "a\u202eb", "-", "%2e%2e"])
async def test_any_name_of_an_agent_is_text(bus, connect, served, name):
    connect(name).here(doing="<b>")
    connect(name).speak("hello")
    browser = Browser(served)

    page = (await browser.get("/agents")).page
    (link,) = [a["href"] for a in page.all("a") if a.get("href", "").startswith("/agent?")]
    one = await browser.get(link)

    assert one.status == 200
    for shown in (page, one.page):
        assert shown.unbalanced == []
        assert len(shown.all("script")) == 1
    assert "<b>" in page.text
