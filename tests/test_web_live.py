"""What the pages of `agentbus web` are sent while somebody looks, and what it costs when nobody does."""

from __future__ import annotations

import dataclasses

import pytest

import agentbus.aio
from agentbus.dashboard import app
from agentbus.dashboard.web import live
from tests.browsing import Browser


async def test_a_message_is_sent_as_soon_as_it_is_spoken(bus, served):
    async with Browser(served).stream("/live?page=/") as stream:
        await stream.event("regions")
        bus.speak("hello <b>")

        event = await stream.event("entry")

    ((_, html),) = event.data["channel"]
    assert "hello &lt;b&gt;" in html
    assert event.id


async def test_only_the_regions_that_changed_are_sent(bus, served):
    bus.queue("mail").publish(1)
    async with Browser(served).stream("/live?page=/queue?name=mail") as stream:
        first = await stream.event("regions")
        bus.queue("mail").publish(2)
        while True:
            later = await stream.event("regions")
            if "groups" in later.data:
                break

    assert set(first.data) == {
        *("verdict", "pulse", "state", "groups", "history", "tasks", "workers")
    }
    assert "workers" not in later.data


async def test_a_stream_goes_on_after_the_last_message_that_was_seen(bus, served):
    first, second = bus.speak("one"), bus.speak("two")
    async with Browser(served).stream("/live?page=/", last_event_id=first.id) as stream:
        event = await stream.event("entry")

    assert event.id == second.id
    assert len(event.data["channel"]) == 1


async def test_nothing_is_read_when_nobody_looks(served):
    feed = served.state.site.feed
    async with Browser(served).stream("/live?page=/") as stream:
        await stream.event("regions")
        assert feed.viewers == 1

    assert (feed.viewers, feed.idle) == (0, True)


async def test_two_browsers_that_see_the_same_are_rendered_for_once(bus, served, monkeypatch):
    bus.queue("mail").publish(1)
    rendered = []
    templates = served.state.site.templates
    regions = templates.regions

    def counted(name, *rest):
        rendered.append(name)
        return regions(name, *rest)

    monkeypatch.setattr(templates, "regions", counted)
    browser = Browser(served)
    await browser.get("/queues")
    async with browser.stream("/live?page=/queues") as one:
        await one.event("regions")
        async with browser.stream("/live?page=/queues") as other:
            await other.event("regions")
            before = len(rendered)
            for _ in range(2):
                await one.event("regions")
                await other.event("regions")

    assert len(rendered) - before <= 3


async def test_more_messages_than_a_page_shows_are_counted(bus, served, monkeypatch):
    monkeypatch.setattr(live, "_MESSAGES", 10)
    first = bus.speak("first")
    for number in range(25):
        bus.speak(f"message {number}")
    async with Browser(served).stream("/live?page=/", last_event_id=first.id) as stream:
        event = await stream.event("entry")

    assert (len(event.data["channel"]), event.data["left"]) == (10, 15)
    assert "message 24" in event.data["channel"][-1][1]


@pytest.mark.parametrize("since", ["", "x", "1", "1-", "-1", "1-1 2-2", "9" * 30 + "-1"])
async def test_a_wrong_position_is_none(bus, served, since):
    bus.speak("old")
    async with Browser(served).stream("/live?page=/", last_event_id=since) as stream:
        await stream.event("regions")
        bus.speak("new")
        event = await stream.event("entry")

    assert len(event.data["channel"]) == 1
    assert "new" in event.data["channel"][0][1]


async def test_a_long_message_is_cut(bus, served):
    async with Browser(served).stream("/live?page=/") as stream:
        await stream.event("regions")
        bus.speak("x" * 200_000)
        event = await stream.event("entry")

    assert len(event.data["channel"][0][1]) < 6_000
    assert len((await Browser(served).get("/")).text) < 20_000


async def test_what_is_done_to_a_queue_is_seen(bus, served):
    bus.queue("mail").publish(1)
    async with Browser(served).stream("/live?page=/queue?name=mail") as stream:
        await stream.event("regions")
        bus.pause(queue="mail", why="a look", wait=0)
        bus.speak("paused it", topic="coordination")
        while True:
            event = await stream.event("regions")
            if "state" in event.data:
                break

    assert "a look" in event.data["state"]


async def test_a_page_that_is_gone_says_nothing_more_and_stops_nobody(bus, served):
    bus.queue("mail").publish(1)
    browser = Browser(served)
    async with browser.stream("/live?page=/queue?name=none") as gone:
        first = await gone.event("regions")
        async with browser.stream("/live?page=/queue?name=mail") as other:
            event = await other.event("regions")

    assert set(first.data) == {"verdict", "pulse"}
    assert "groups" in event.data


async def test_a_page_that_fails_stops_no_other(bus, served, monkeypatch):
    page = served.state.site.by_path["/queues"]

    async def fail(_view):
        raise ZeroDivisionError("a secret")

    browser = Browser(served)
    broken = dataclasses.replace(page, load=fail)
    monkeypatch.setitem(served.state.site.by_path, "/queues", broken)
    async with browser.stream("/live?page=/queues"), browser.stream("/live?page=/") as other:
        assert "cards" in (await other.event("regions")).data
    with pytest.raises(ZeroDivisionError):
        await browser.get("/queues")


async def test_streams_end_with_the_application(bus, served):
    async with Browser(served).stream("/live?page=/") as stream:
        await stream.event("regions")
        await served.state.site.feed.aclose()

        # There may be regions that were sent before.
        with pytest.raises(EOFError):
            await stream.event("none")


async def test_the_pages_say_since_when_they_are_blind_and_go_on(own_server, project):
    with agentbus.connect(own_server.url, project=project) as bus:
        bus.queue("mail").publish(1)
    async with agentbus.aio.connect(own_server.url, project=project, deadline=1) as bus:
        made = app(bus)
        browser = Browser(made)
        async with browser.stream("/live?page=/queues") as stream:
            assert "mail" in (await stream.event("regions")).data["list"]
            own_server.kill()
            blind = await stream.event("blind")
            away = await browser.get("/queues")
            async with browser.stream("/live?page=/queues") as late:
                assert (await late.event("blind")).data == blind.data
            own_server.start()
            await stream.event("sighted")
            after: set[str] = set()
            # The list may come after the verdict.
            while "list" not in after:
                after |= set((await stream.event("regions")).data)

    assert set(blind.data) == {"since", "why"}
    assert away.status == 503
    assert after == {"verdict", "pulse", "list"}


async def test_without_a_server_from_the_beginning_a_page_says_so(own_server, project):
    own_server.kill()
    async with agentbus.aio.connect(own_server.url, project=project, deadline=1) as bus:
        made = app(bus)
        answer = await Browser(made).get("/")
        async with Browser(made).stream("/live?page=/") as stream:
            await stream.event("blind")
            own_server.start()
            await stream.event("sighted")
            assert "cards" in (await stream.event("regions")).data

    assert answer.status == 503
    assert "no data" in answer.page.text
    assert answer.page.all("body")[0]["data-live-url"] == "/live"
