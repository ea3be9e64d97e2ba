"""The pages of `agentbus web` about flags, leases and notes."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from agentbus.errors import FlagFailed, LeaseHeld
from tests.browsing import Browser
from tests.pausing import awaiting
from tests.servers import ask
from tests.tiers import on_one_store

pytestmark = on_one_store


async def test_flags_are_shown_with_holder_and_state(bus, served):
    bus.announce("building", ttl=60)
    bus.fail("deployed", note="no <room>")
    browser = Browser(served)

    page = (await browser.get("/flags")).page
    held = (await browser.get("/flags?state=held")).page

    assert page.unbalanced == []
    assert "no <room>" in page.text
    assert ("building" in held.text, "deployed" in held.text) == (True, False)
    assert "1 to 2 of 2 flags" in page.text


async def test_a_holder_that_was_not_seen_for_minutes_is_marked(bus, connect, served):
    bus.announce("building")
    connect("bob").announce("deploying")
    ask(bus, "ZADD", bus.scope.keys.agents, str(time.time() - 900), "ada")
    browser = Browser(served)

    page = (await browser.get("/flags?q=building")).page
    other = (await browser.get("/flags?q=deploying")).page

    assert "not seen for 15m" in page.text
    assert "not seen for" not in other.text


async def test_who_waits_for_a_flag_that_nobody_holds_is_shown(bus, connect, served):
    waiting = threading.Thread(target=connect("bob").await_, args=("tested",), daemon=True)
    waiting.start()
    while not bus.waiters():
        assert waiting.is_alive()

    page = (await Browser(served).get("/flags")).page
    bus.satisfy("tested")
    waiting.join(60)

    assert "bob until satisfied" in page.text


async def test_leases_are_shown_with_reason_and_end(bus, connect, served):
    bus.lease("src/**", why="the parser")
    with pytest.raises(LeaseHeld):
        connect("bob").lease("src/a.py")
    browser = Browser(served)

    page = (await browser.get("/flags")).page
    none = (await browser.get("/flags?lease=docs")).page

    assert "src/**" in page.text
    assert "the parser" in page.text
    assert "1 attempt to lease paths" in page.text
    assert "No lease matches." in none.text


async def test_a_person_releases_a_flag_and_drops_a_lease(bus, connect, writing):
    bob = connect("bob")
    bob.announce("building")
    bob.lease("src/**")
    browser = Browser(writing)

    page = (await browser.get("/flags")).page
    await browser.press(page, "/act/flag.release")
    await browser.press(page, "/act/lease.drop")
    after = (await browser.get("/flags")).page

    assert (bus.flags(), bus.leases()) == ([], [])
    assert "Nothing is leased." in after.text
    said = [one.text for one in bus.overhear(last=10) if one.agent_id == "human:eve"]
    assert said[-1] == "lease of src/** by bob dropped"


@pytest.mark.parametrize("end", ["fail", "satisfy"])
async def test_a_person_ends_the_flag_of_an_agent_that_is_gone(bus, connect, writing, end):
    connect("bob").announce("building")
    waiting = awaiting(connect("eve"), "building", timeout=60)
    browser = Browser(writing)

    page = (await browser.get("/flags")).page
    await browser.press(page, f"/act/flag.{end}", note="runner 7 is gone")

    (state,) = bus.flags()
    assert state.note == "runner 7 is gone"
    if end == "fail":
        with pytest.raises(FlagFailed, match="runner 7 is gone"):
            await asyncio.to_thread(waiting.finish)
    else:
        assert (await asyncio.to_thread(waiting.finish))[0].note == "runner 7 is gone"


async def test_a_lease_that_was_taken_again_is_not_dropped(bus, connect, writing):
    bob = connect("bob")
    bob.lease("src/**")
    browser = Browser(writing)
    page = (await browser.get("/flags")).page
    bob.drop_leases()
    bob.lease("src/**")

    await browser.press(page, "/act/lease.drop")
    after = (await browser.get("/flags")).page

    assert len(bus.leases()) == 1
    assert "has no lease of src/** with the token" in after.text


async def test_flags_are_kept_up_to_date(bus, served):
    bus.announce("building", ttl=600)
    async with Browser(served).stream("/live?page=/flags") as stream:
        await stream.event("regions")
        bus.satisfy("building", note="green")
        while "green" not in (await stream.event("regions")).data.get("flags", ""):
            pass


async def test_notes_are_filtered_by_key_and_tag(bus, served):
    bus.jot("db-engine", "postgres", tags=["decision"])
    bus.jot("style", "<script>plain</script>")
    browser = Browser(served)

    page = (await browser.get("/notes")).page
    decisions = (await browser.get("/notes?tag=decision")).page
    found = (await browser.get("/notes?q=STY")).page

    assert page.unbalanced == []
    assert "<script>plain</script>" in page.text
    assert len(page.all("script")) == 1
    assert ("postgres" in decisions.text, "style" in decisions.text) == (True, False)
    assert "1 to 1 of 1 note" in found.text


async def test_a_long_note_is_folded_and_saved_as_text(bus, served):
    bus.jot("long", "z" * 50_000)
    browser = Browser(served)

    answer = await browser.get("/notes")
    whole = await browser.get("/text/note-text?key=long")
    missing = await browser.get("/text/note-text?key=none")

    assert len(answer.text) < 20_000
    assert whole.text == "z" * 50_000
    assert whole.header("content-disposition") == 'attachment; filename="note-long.txt"'
    assert missing.status == 404


async def test_an_empty_project_says_how_to_begin(served):
    browser = Browser(served)

    pages = {path: (await browser.get(path)).page.text for path in ("/flags", "/notes", "/talk")}

    assert "There are no flags." in pages["/flags"]
    assert "Nothing is leased." in pages["/flags"]
    assert "There are no notes." in pages["/notes"]
    assert "No older messages are kept." in pages["/talk"]
