"""What forms of `agentbus web` may do, and the headers of every answer."""

from __future__ import annotations

import asyncio

import pytest

from agentbus.dashboard.web import application
from agentbus.dashboard.web.sessions import WebSessions
from tests.browsing import CODE, HOST, TOKEN, Browser, halting, opened


@pytest.fixture
def guarded(abus):
    """The application as the verb makes it: with a one-time code."""
    return application(abus, write=True, person="eve", code=CODE)


async def test_a_form_without_the_token_of_its_session_is_refused(bus, guarded):
    browser = await opened(guarded)
    page = (await browser.get("/")).page
    good = page.all("input", name="csrf")[0]["value"]
    other = WebSessions(None, CODE)

    for bad in ("", "x", good[:-1], good.upper(), other.csrf(other.start())):
        answer = await browser.post("/act/project.halt", {"csrf": bad, "back": "/"})
        assert (answer.status, "not of this session" in answer.text) == (403, True)
    answer = await browser.post("/act/project.halt", {"back": "/"})
    assert answer.status == 403
    assert bus.paused() == []


async def test_a_form_without_a_session_is_refused(bus, guarded):
    browser = await opened(guarded)
    token = (await browser.get("/")).page.all("input", name="csrf")[0]["value"]
    browser.cookies = {}

    answer = await browser.post("/act/project.halt", {"csrf": token, "back": "/"})

    assert (answer.status, bus.paused()) == (403, [])


async def test_without_write_a_form_is_refused(bus, abus):
    browser = Browser(application(abus, token=TOKEN))
    await browser.post("/session", {"token": TOKEN})
    token = (await browser.get("/")).page.all("input", name="csrf")[0]["value"]

    answer = await browser.post("/act/project.halt", {"csrf": token, "back": "/"})

    assert (answer.status, "read-only" in answer.text) == (403, True)
    assert bus.paused() == []


async def test_an_action_needs_post(bus, guarded):
    browser = await opened(guarded)

    assert (await browser.get("/act/project.halt")).status == 405
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert (await browser._exchange(method, "/", {})).status == 405
    assert bus.paused() == []


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        ("application/json", b"{}", "not of the type"),
        ("multipart/form-data; boundary=x", b"--x--", "not of the type"),
        ("application/x-www-form-urlencoded", b"a=" + b"x" * 1_100_000, "more than"),
        ("application/x-www-form-urlencoded", b"&".join([b"a=b"] * 300), "fields"),
        ("application/x-www-form-urlencoded", b"\xff\xfe", "cannot be read"),
    ],
)
async def test_what_is_not_a_form_is_refused(bus, guarded, kind, body, why):
    browser = await opened(guarded)
    headers = {"origin": f"http://{HOST}", "content-type": kind}

    answer = await browser._exchange("POST", "/act/project.halt", headers, body)

    assert (answer.status, why in answer.text) == (400, True)


async def test_an_unknown_action_and_a_foreign_way_back_do_no_harm(guarded):
    browser = await opened(guarded)
    token = (await browser.get("/")).page.all("input", name="csrf")[0]["value"]

    unknown = await browser.post("/act/everything.delete", {"csrf": token, "back": "/"})
    away = [
        await browser.post("/act/project.resume", {"csrf": token, "back": back})
        for back in ("//evil.example/", "https://evil.example", "/nothing", "")
    ]

    assert unknown.status == 404
    assert [answer.header("location") for answer in away] == ["/"] * 4


async def test_what_an_action_has_done_is_said_once_and_cannot_be_forged(guarded):
    browser = await opened(guarded)
    browser.cookies["agentbus_done"] = b"all is well".hex() + ".00"

    assert "all is well" not in (await browser.get("/")).text
    await halting(browser)
    assert "project halted" in (await browser.get("/queues")).text
    assert "project halted" not in (await browser.get("/queues")).text


# -- headers --


@pytest.mark.parametrize("path", ["/", "/queues", "/nothing", "/static/dashboard.js", "/text/none"])
async def test_every_answer_has_the_headers(guarded, path):
    for browser in (await opened(guarded), Browser(guarded), Browser(guarded, host="evil.example")):
        answer = await browser.get(path)
        policy = answer.header("content-security-policy")
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.header("x-content-type-options") == "nosniff"
        assert answer.header("x-frame-options") == "DENY"
        assert answer.header("referrer-policy") == "same-origin"
        assert answer.header("cache-control")
        guarded = application(browser.app.state.site.context.bus, write=True, code=CODE)


async def test_pages_are_not_kept_by_caches(guarded):
    browser = await opened(guarded)

    for path in ("/", "/queues"):
        assert (await browser.get(path)).header("cache-control") == "no-store"


async def test_no_page_has_a_script_or_a_style_in_it(bus, guarded):
    bus.queue("mail").publish(1)
    browser = await opened(guarded)

    for path in ("/", "/queues", "/queue?name=mail", "/nothing"):
        page = (await browser.get(path)).page
        assert [one for one in page.all("script") if not one.get("src")] == []
        assert page.all("style") == []
        assert [a for _, a in page.elements if "style" in a or any(n[:2] == "on" for n in a)] == []


async def test_a_form_that_does_not_come_is_not_waited_for(guarded, monkeypatch):
    monkeypatch.setattr("agentbus.dashboard.web.guard._SECONDS", 0.05)
    browser = await opened(guarded)
    headers = {"origin": f"http://{HOST}", "content-type": "application/x-www-form-urlencoded"}
    scope, sent = browser._scope("POST", "/act/project.halt", headers), []

    async def receive():
        return await asyncio.get_running_loop().create_future()

    async def send(message):
        sent.append(message)

    async with asyncio.timeout(10):
        await guarded(scope, receive, send)

    assert sent[0]["status"] == 400


async def test_a_websocket_is_closed(guarded):
    sent = []

    async def send(message):
        sent.append(message)

    await guarded({"type": "websocket", "path": "/", "headers": []}, None, send)

    assert [one["type"] for one in sent] == ["websocket.close"]
