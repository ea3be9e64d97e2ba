"""The switcher of `agentbus web`: each project of the server has its pages, and acts on itself alone."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

import agentbus.aio
from agentbus.dashboard import app
from agentbus.dashboard.web import projects as switcher
from tests.browsing import Browser
from tests.servers import ask


@pytest.fixture
def other(bus, project):
    """A bus of another project on the server."""
    with agentbus.connect(bus.settings.url, project=f"{project}-other", agent="otter") as opened:
        opened.speak("here")
        yield opened


@pytest.fixture
async def switching(abus) -> AsyncIterator[Any]:
    made = app(abus, write=True, person="eve", all_projects=True)
    yield made
    await made.state.aclose()


async def test_the_switcher_leads_to_each_project(bus, other, switching):
    bus.queue("mail").publish(1)
    other.queue("parcels").publish_many([1, 2])
    browser = Browser(switching)

    page = (await browser.get("/")).page
    there = await browser.get(f"/p/{other.project}/")

    links = [link["href"] for link in page.all("a")]
    assert f"/p/{other.project}/" in links
    assert f"/p/{bus.project}/" in links
    assert "parcels" in there.page.text
    assert "mail" not in there.page.text
    assert {"href": f"/p/{other.project}/queue?name=parcels"} in there.page.all("a")
    assert there.page.all("body")[0]["data-live-url"] == f"/p/{other.project}/live"
    assert there.page.unbalanced == []


async def test_every_link_of_a_project_stays_in_it_but_for_the_switcher(bus, other, switching):
    bus.queue("mail").publish(1)
    other.queue("parcels").publish(1)
    base = f"/p/{other.project}/"

    for path in ("", "queues", "queue?name=parcels", "tasks", "talk", "health", "events"):
        page = (await Browser(switching).get(base + path)).page
        links = {a["href"] for a in page.all("a") if a["href"][:1] != "#"}
        links |= {form["action"] for form in page.all("form")}
        outside = {link for link in links if not link.startswith(base)}
        # The switcher has the other tests' projects, too.
        assert f"/p/{bus.project}/" in outside
        assert all(re.fullmatch("/p/[^/]+/", link) for link in outside)


async def test_an_action_in_one_project_never_touches_another(bus, other, switching):
    for one in (bus, other):
        one.queue("mail").publish(1)
    browser = Browser(switching)

    page = (await browser.get(f"/p/{other.project}/queue?name=mail")).page
    done = await browser.press(page, "/act/queue.pause")
    here = (await browser.get("/queue?name=mail")).page
    there = (await browser.get(done.header("location"))).page

    assert done.header("location") == f"/p/{other.project}/queue?name=mail"
    assert "queue mail paused" in there.text
    assert "queue mail paused" not in here.text
    assert len(other.paused()) == 1
    assert bus.paused() == []
    assert list(bus.overhear(last=9)) == []
    assert [said.agent_id for said in other.overhear(last=9)] == ["otter", "human:eve"]


async def test_a_page_follows_its_own_project(bus, other, switching):
    browser = Browser(switching)
    async with browser.stream(f"/p/{other.project}/live?page=/") as stream:
        await stream.event("regions")
        bus.speak("in this one")
        other.speak("in the other")
        said = await stream.event("entry")

    ((_, message),) = said.data["channel"]
    assert "in the other" in message


async def test_a_project_that_is_not_there_is_not_opened(bus, switching):
    bus.queue("mail").publish(1)
    browser = Browser(switching)

    for name in ("none", "a b", "..", "x:ch", "%2e%2e"):
        answer = await browser.get(f"/p/{name}/")
        assert answer.status == 404, name
    assert ask(bus, "KEYS", "none*") == []


async def test_a_user_of_one_project_has_no_switcher_and_opens_no_other(own_server):
    own_server.ask("ACL", "SETUSER", "narrow", "on", ">secret", "~mine:*", "&mine:*", "+@all")
    with agentbus.connect(own_server.url, project="theirs", agent="otter") as other:
        other.queue("parcels").publish(1)
        other.speak("here")
    with agentbus.connect(own_server.url, project="mine", agent="ada") as bus:
        bus.speak("here")
    url = f"unix://narrow:secret@{own_server.socket}"
    async with agentbus.aio.connect(url, project="mine", agent="ada") as bus:
        made = app(bus, all_projects=True)
        browser = Browser(made)

        page = (await browser.get("/")).page
        there = await browser.get("/p/theirs/")
        await made.state.aclose()

    assert page.all("details", **{"class": "project"}) == []
    assert (there.status, "parcels" in there.text) == (404, False)


async def test_the_projects_that_are_open_are_bounded(bus, abus, switching, monkeypatch):
    monkeypatch.setattr(switcher, "MOST_OPEN", 2)
    named = [f"{bus.project}-{number}" for number in range(4)]
    browser = Browser(switching)
    for name in named:
        with agentbus.connect(bus.settings.url, project=name, agent="otter") as opened:
            opened.queue("mail").publish(1)
            assert (await browser.get(f"/p/{name}/")).status == 200
            assert (await browser.get(f"/p/{name}/queues")).status == 200

    (mount,) = (route for route in switching.routes if route.path == "/p/{project}")

    assert [*mount.app._opened] == named[-2:]


async def test_without_all_projects_other_projects_have_no_pages(bus, other, served):
    bus.queue("mail").publish(1)
    other.queue("parcels").publish(1)
    browser = Browser(served)

    assert (await browser.get(f"/p/{other.project}/")).status == 404
    assert (await browser.get("/")).page.all("details", **{"class": "project"}) == []
