"""The pages of `agentbus web` about talk: the channel, one message, messages to agents, a thread."""

from __future__ import annotations

from urllib.parse import quote

from tests.browsing import Browser
from tests.tiers import on_one_store

pytestmark = on_one_store


def items(page):
    return [attrs["data-entry"] for attrs in page.all("li") if "data-entry" in attrs]


async def test_the_channel_is_paged_back_in_time(bus, served):
    sent = [bus.speak(str(number)).id for number in range(250)]
    browser, found, link = Browser(served), [], "/talk"
    while True:
        page = (await browser.get(link)).page
        found += items(page)
        older = page.all("a", rel="next")
        if not older:
            break
        link = older[0]["href"]

    assert found == sent[::-1]
    assert "No older messages are kept." in page.text


async def test_the_channel_is_filtered_by_topic_and_agent(bus, connect, served):
    bus.speak("about the database", topic="db")
    connect("bob").speak("by bob")
    bus.announce("building")
    browser = Browser(served)

    by_topic = (await browser.get("/talk?topic=db")).page
    by_agent = (await browser.get("/talk?agent=bob")).page
    spoken = (await browser.get("/talk?notices=0")).page

    assert ["about the database" in page.text for page in (by_topic, by_agent)] == [True, False]
    assert ["by bob" in page.text for page in (by_topic, by_agent)] == [False, True]
    assert len(items(spoken)) == 2
    assert {"class": "topic", "href": "/talk?topic=db"} in by_agent.all("a")


async def test_a_message_that_passes_the_filter_appears_at_once(bus, served):
    async with Browser(served).stream("/live?page=/talk?topic=db") as stream:
        await stream.event("regions")
        bus.speak("other", topic="ci")
        bus.speak("wanted", topic="db")
        event = await stream.event("entry")

    ((_, html),) = event.data["channel"]
    assert "wanted" in html


async def test_a_message_that_comes_while_the_page_is_on_its_way_is_not_lost(bus, served):
    browser = Browser(served)
    bus.speak("earlier", topic="ci")
    page = (await browser.get("/talk?topic=db")).page
    (shown,) = page.all("ul", **{"data-stream": "channel"})
    bus.speak("wanted", topic="db")

    async with browser.stream(
        f"/live?page={quote('/talk?topic=db')}&since={shown['data-since']}"
    ) as stream:
        event = await stream.event("entry")

    ((_, html),) = event.data["channel"]
    assert "wanted" in html


async def test_no_message_appears_on_an_older_page(bus, served):
    first = bus.speak("one")
    async with Browser(served).stream(f"/live?page={quote(f'/talk?before={first.id}')}") as stream:
        await stream.event("regions")
        bus.speak("two")
        later = await stream.event()

    assert later.name == "regions"


async def test_a_message_says_who_has_heard_it(bus, connect, served):
    bob, eve = connect("bob"), connect("eve")
    bob.here()
    eve.here()
    said = bus.speak("the schema has changed", topic="db")
    assert list(bob.overhear())

    page = (await Browser(served).get(f"/spoken?id={said.id}")).page

    assert page.unbalanced == []
    assert "the schema has changed" in page.text
    assert "1 of 2 agents that are present have heard it." in page.text
    assert "eve not yet" in page.text


async def test_a_long_message_is_folded_and_saved_as_text(bus, connect, served):
    connect("bob").here()
    spoken = bus.speak("<i>" + "x" * 20_000)
    sent = bus.tell("bob", "<u>" + "y" * 20_000)
    browser = Browser(served)

    channel = await browser.get("/talk")
    direct = await browser.get("/direct")
    whole = [
        await browser.get(f"/text/message-text?id={quote(known)}") for known in (spoken.id, sent.id)
    ]

    assert len(channel.text) < 15_000
    assert len(direct.text) < 15_000
    assert [one.text[:3] for one in whole] == ["<i>", "<u>"]
    assert [len(one.text) for one in whole] == [20_003, 20_003]
    for one in whole:
        assert one.header("content-type").startswith("text/plain")
        assert one.header("content-disposition").startswith("attachment")
        assert one.header("x-content-type-options") == "nosniff"


async def test_messages_to_agents_are_listed_with_receipts(bus, connect, served):
    bob = connect("bob")
    bob.here()
    bus.tell("bob", "first?")
    list(bob.inbox())
    bob.tell("ada", "second")
    browser = Browser(served)

    page = (await browser.get("/direct")).page
    to_ada = (await browser.get("/direct?to=ada")).page
    by_ada = (await browser.get("/direct?sender=ada")).page

    assert page.unbalanced == []
    assert "first?" in page.text
    assert "read" in page.text
    assert ("first?" in to_ada.text, "second" in to_ada.text) == (False, True)
    assert ("first?" in by_ada.text, "second" in by_ada.text) == (True, False)


async def test_a_thread_shows_the_ask_and_its_answer(bus, connect, served):
    bob = connect("bob")
    bob.here()
    ask = bus.tell("bob", "does it drop the column?")
    list(bob.inbox())
    reply = bob.reply(ask.id, "it does not")

    page = (await Browser(served).get(f"/thread?id={quote(reply.id)}")).page

    assert page.unbalanced == []
    assert page.text.index("does it drop the column?") < page.text.index("it does not")
    assert len(page.all("li", **{"aria-current": "true"})) == 1


async def test_what_is_not_there_is_a_page_that_says_so(bus, served):
    bus.here()
    browser = Browser(served)

    status = {
        path: (await browser.get(path)).status
        for path in (
            "/spoken?id=1-1",
            "/spoken",
            "/thread?id=1-1@ada",
            "/thread?id=x",
            "/talk?before=x",
        )
    }

    assert status == {
        "/spoken?id=1-1": 404,
        "/spoken": 404,
        "/thread?id=1-1@ada": 404,
        "/thread?id=x": 400,
        "/talk?before=x": 400,
    }


async def test_a_person_speaks_on_the_channel(bus, writing):
    browser = Browser(writing)

    page = (await browser.get("/talk?topic=ci")).page
    await browser.press(page, "/act/talk.speak", text="deploy at noon", topic="ci")

    (said,) = bus.overhear(last=5)
    assert (said.agent_id, said.text, said.topic) == ("human:eve", "deploy at noon", "ci")


async def test_an_empty_message_or_an_unknown_agent_is_refused_in_a_sentence(bus, writing):
    bus.here()
    browser = Browser(writing)
    page = (await browser.get("/talk")).page

    await browser.press(page, "/act/agent.tell", agent="adda", text="hello")
    after = (await browser.get("/talk")).page
    await browser.press(page, "/act/talk.speak", text="")
    empty = (await browser.get("/talk")).page

    assert "did you mean ada?" in after.text
    assert "the form lacks text" in empty.text
