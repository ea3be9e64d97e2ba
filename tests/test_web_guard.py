"""Who may see what in `agentbus web`: sessions, codes, tokens, and where requests come from."""

from __future__ import annotations

import asyncio
import time

import pytest

import agentbus.aio
from agentbus.dashboard import app
from agentbus.dashboard.web import application
from agentbus.dashboard.web.sessions import WebSessions
from agentbus.errors import ConfigError
from tests.browsing import CODE, HOST, TOKEN, Browser, halting, opened

PATHS = ("/", "/queues", "/live?page=/", "/nothing")


@pytest.fixture
def guarded(abus):
    """The application as the verb makes it: with a one-time code."""
    return application(abus, write=True, person="eve", code=CODE)


@pytest.fixture
def entered(abus):
    """The application with a token."""
    return application(abus, write=True, person="eve", token=TOKEN)


def paused(bus) -> list[str]:
    return [one.name for one in bus.paused()]


# -- sessions --


@pytest.mark.parametrize("path", PATHS)
async def test_without_a_session_nothing_is_shown(bus, guarded, path):
    bus.queue("secret-queue").publish(1)

    answer = await Browser(guarded).get(path)

    assert answer.status == 403
    assert "works once" in answer.text
    assert "secret-queue" not in answer.text
    assert bus.project not in answer.text


async def test_a_code_opens_one_session(guarded, project):
    browser = await opened(guarded)

    assert project in (await browser.get("/")).text
    assert (await Browser(guarded).get(f"/?code={CODE}")).status == 403


async def test_a_code_is_used_up_by_a_browser_with_a_session_too(abus):
    made = application(abus, token=TOKEN, code=CODE)
    browser = Browser(made)
    await browser.post("/session", {"token": TOKEN})

    assert (await browser.get(f"/?code={CODE}")).status == 200
    assert (await Browser(made).get(f"/?code={CODE}")).status == 401


async def test_only_opening_the_address_uses_its_code_up(guarded):
    await Browser(guarded)._exchange("HEAD", f"/?code={CODE}", {})

    await opened(guarded)


async def test_cookies_of_other_programs_are_left_alone(guarded, project):
    browser = await opened(guarded)
    session = browser.cookies.pop("agentbus_7070")
    for others in ('a={"x": [1, 2]}', 'b="x', "c", "é=é; d=,;"):
        answer = await browser.get("/", cookie=f"{others}; agentbus_7070={session}; e=f")
        assert project in answer.text, others


async def test_a_code_leaves_the_address(guarded):
    answer = await Browser(guarded).get(f"/queues?q=a&code={CODE}")

    (refresh,) = answer.page.all("meta", **{"http-equiv": "refresh"})
    assert refresh["content"] == "0; url=/queues?q=a"
    assert CODE not in answer.text


async def test_a_wrong_code_opens_nothing_and_uses_nothing_up(guarded):
    assert (await Browser(guarded).get("/?code=wrong")).status == 403

    await opened(guarded)


async def test_the_cookie_is_not_for_scripts_nor_for_other_sites(guarded):
    plain = await Browser(guarded).get(f"/?code={CODE}")

    name, _, rest = plain.header("set-cookie").partition("=")
    assert name == "agentbus_7070"
    assert rest.partition("; ")[2].split("; ") == ["Path=/", "HttpOnly", "SameSite=Strict"]


async def test_the_cookie_is_secure_where_the_page_is(abus):
    made = application(abus, code=CODE)
    answer = await Browser(made, scheme="https").get(f"/?code={CODE}")

    assert answer.header("set-cookie").endswith("; SameSite=Strict; Secure")


async def test_a_token_opens_any_number_of_sessions(entered, project):
    for _ in range(2):
        browser = Browser(entered)
        asked = await browser.get("/queues?q=a")
        assert (asked.status, asked.page.all("form")[0]["action"]) == (401, "/session")
        answer = await browser.post("/session", {"token": TOKEN})
        assert answer.status == 200
        assert project in (await browser.get("/")).text


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "é"])
async def test_another_token_opens_none(entered, token):
    browser = Browser(entered)

    assert (await browser.post("/session", {"token": token})).status == 403
    assert browser.cookies == {}


async def test_sessions_of_a_token_outlast_the_program(abus, entered, project):
    browser = Browser(entered)
    await browser.post("/session", {"token": TOKEN})

    browser.app = application(abus, write=True, person="eve", token=TOKEN)
    assert project in (await browser.get("/")).text
    browser.app = application(abus, write=True, person="eve", token=TOKEN + "2")
    assert (await browser.get("/")).status == 401


@pytest.mark.parametrize(
    "options", [{}, {"write": True}, {"write": True, "person": "eve", "address": "http://b:7071"}]
)
async def test_another_dashboard_of_the_same_token_accepts_no_session(bus, abus, entered, options):
    other = Browser(application(abus, token=TOKEN, **options))
    await other.post("/session", {"token": TOKEN})
    form = (await other.get("/")).page.all("input", name="csrf")[0]["value"]
    browser = Browser(entered)

    browser.cookies = dict(other.cookies)
    assert (await browser.get("/")).status == 401
    await browser.post("/session", {"token": TOKEN})
    answer = await browser.post("/act/project.halt", {"csrf": form, "back": "/"})

    assert (answer.status, bus.paused()) == (403, [])


async def test_another_project_of_the_same_token_accepts_no_session(entered, url, project):
    browser = Browser(entered)
    await browser.post("/session", {"token": TOKEN})

    async with agentbus.aio.connect(url, project=f"{project}-2", agent="ada") as abus:
        browser.app = application(abus, write=True, person="eve", token=TOKEN)
        assert (await browser.get("/")).status == 401


async def test_who_leaves_has_no_session_any_more(entered):
    browser = Browser(entered)
    await browser.post("/session", {"token": TOKEN})
    copied = dict(browser.cookies)
    page = (await browser.get("/")).page

    answer = await browser.press(page, "/leave")

    assert (answer.status, browser.cookies) == (200, {})
    browser.cookies = copied
    assert (await browser.get("/")).status == 401


async def test_to_leave_ends_the_streams_of_the_session(entered, monkeypatch):
    monkeypatch.setattr("agentbus.dashboard.web.app._LOOK", 0.01)
    browser, other = Browser(entered), Browser(entered)
    for each in (browser, other):
        await each.post("/session", {"token": TOKEN})
    page = (await browser.get("/")).page

    async with browser.stream("/live?page=/") as stream, other.stream("/live?page=/") as kept:
        await stream.event("regions")
        await kept.event("regions")
        await browser.press(page, "/leave")
        while entered.state.site.feed.viewers == 2:
            await asyncio.sleep(0)
        assert entered.state.site.feed.viewers == 1


async def test_another_site_ends_no_session(entered):
    browser = Browser(entered)
    await browser.post("/session", {"token": TOKEN})

    for form, headers in (({}, {}), ({"csrf": "x"}, {}), ({}, {"origin": "http://evil.example"})):
        assert (await browser.post("/leave", form, **headers)).status == 403
    assert (await browser.get("/")).status == 200


@pytest.mark.parametrize(
    "cookie", ["", "x", ".", "..", "0.0.0", "6740.aa.bb", "é.é.é", "a" * 5000, '"x', "\\"]
)
async def test_a_forged_cookie_is_no_session(guarded, cookie):
    browser = Browser(guarded)
    browser.cookies["agentbus_7070"] = cookie

    assert (await browser.get("/")).status == 403


@pytest.fixture
def clock(monkeypatch):
    """A clock of the sessions that a test moves."""
    now = [0.0]
    for name, real in (("time", time.time), ("monotonic", time.monotonic)):
        monkeypatch.setattr(
            f"agentbus.dashboard.web.sessions.{name}", lambda real=real: real() + now[0]
        )
    return now


async def test_a_session_that_is_used_ends_after_a_week(entered, clock):
    browser = Browser(entered)
    await browser.post("/session", {"token": TOKEN})
    for _ in range(14):
        assert (await browser.get("/queues")).status == 200
        clock[0] += 12 * 3_600 - 60

    assert (await browser.get("/queues")).status == 200
    clock[0] += 14 * 60
    assert (await browser.get("/queues")).status == 401


async def test_a_session_that_is_not_used_ends_after_half_a_day(entered, clock):
    browser = Browser(entered)
    await browser.post("/session", {"token": TOKEN})
    clock[0] += 12 * 3_600 + 1

    assert (await browser.get("/queues")).status == 401


async def test_a_form_is_of_its_session_when_the_cookie_was_renewed(bus, guarded, clock):
    browser = await opened(guarded)
    form = (await browser.get("/")).page.all("input", name="csrf")[0]["value"]
    before = dict(browser.cookies)
    clock[0] += 2 * 3_600

    await browser.get("/queues")
    answer = await browser.post("/act/project.halt", {"csrf": form, "back": "/"})

    assert browser.cookies["agentbus_7070"] != before["agentbus_7070"]
    assert (answer.status, len(bus.paused())) == (303, 1)


async def test_an_open_page_is_told_to_renew_its_cookie(guarded, monkeypatch):
    monkeypatch.setattr("agentbus.dashboard.web.app._LOOK", 0.01)
    monkeypatch.setattr("agentbus.dashboard.web.app.RENEWED", 0)
    browser = await opened(guarded)

    async with browser.stream("/live?page=/") as stream:
        await stream.event("renew")


async def test_a_code_lives_for_ten_minutes(guarded, clock):
    clock[0] += 601

    assert (await Browser(guarded).get(f"/?code={CODE}")).status == 403


# -- wrong tokens --


async def test_wrong_tokens_of_an_address_are_slowed_and_logged(entered, clock, monkeypatch):
    logged = []
    monkeypatch.setattr(
        "agentbus.dashboard.person.log_entry", lambda *record: logged.append(record)
    )
    browser = Browser(entered)
    tries = [(await browser.post("/session", {"token": "wrong"})).status for _ in range(7)]
    late = await browser.post("/session", {"token": TOKEN})
    clock[0] += 61
    right = await browser.post("/session", {"token": TOKEN})

    assert tries == [403] * 5 + [429] * 2
    assert (late.status, right.status) == (429, 200)
    assert [(level, one["outcome"]) for level, _, one in logged] == [
        ("warning", "wrong token from 127.0.0.1")
    ] * 5


def test_wrong_tokens_of_one_address_stop_no_other_one(clock):
    sessions = WebSessions(TOKEN, None)
    for number in range(7):
        assert sessions.examines("2001:db8::1") == (number < 5)
        sessions.is_token("wrong", f"2001:db8::{number}")

    assert sessions.examines("2001:db8:0:1::1")
    assert sessions.examines("192.0.2.1")


def test_wrong_tokens_of_many_addresses_are_bounded(clock):
    sessions = WebSessions(TOKEN, None)
    for number in range(100):
        assert sessions.examines(f"192.0.2.{number}")
        sessions.is_token("wrong", f"192.0.2.{number}")

    assert not sessions.examines("198.51.100.1")


async def test_a_shared_link_that_another_site_shows_is_opened_from_ours(guarded):
    browser = await opened(guarded)
    kept, browser.cookies = browser.cookies, {}
    # A strict cookie is not sent when a link of another site is followed.
    sites = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    answer = await browser.get("/queue?name=a%26b&x=%2F%2Fevil", **sites)

    (refresh,) = answer.page.all("meta", **{"http-equiv": "refresh"})
    assert (answer.status, refresh["content"]) == (200, "0; url=/queue?name=a%26b&x=%2F%2Fevil")
    browser.cookies = kept
    assert (await browser.get("/queues")).status == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "///evil.example"])
async def test_the_way_back_leads_to_no_other_site(guarded, path):
    browser = Browser(guarded)
    scope = browser._scope(
        "GET", "/", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    )
    scope["path"] = path
    browser._scope = lambda *_: scope

    answer = await browser.get("/")

    for one in answer.page.all("meta", **{"http-equiv": "refresh"}):
        url = one["content"].removeprefix("0; url=")
        assert url[:1] == "/"
        assert url[1:2] not in ("/", "\\")


def test_a_short_token_is_refused(abus):
    with pytest.raises(ConfigError, match="16"):
        app(abus, token="short")


# -- where requests come from --


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:7070", "127.0.0.1.evil.example", "localhost.evil.example"),
        *("localhost@evil.example", "evil.example#localhost", "10.0.0.1:7070", "", "[::2]:7070"),
        *("127.0.0.1 evil.example", "2130706433", "0x7f.1", "127.1"),
    ],
)
async def test_a_foreign_host_is_refused(bus, guarded, host):
    browser = await opened(guarded)
    browser.cookies["agentbus_web"] = browser.cookies["agentbus_7070"]
    browser.host = host

    for answer in (
        await browser.get("/"),
        await browser.get(f"/?code={CODE}"),
        await browser.post("/act/project.halt", {}, origin=f"http://{HOST}"),
    ):
        assert answer.status == 403
        assert bus.project not in answer.text
    assert paused(bus) == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7070", "localhost:7070", "LOCALHOST", "[::1]:7070", "127.0.0.1"]
)
async def test_the_loopback_names_are_ours(guarded, host):
    assert (await Browser(guarded, host=host).get(f"/?code={CODE}")).status == 200


async def test_two_hosts_are_refused(guarded):
    browser = Browser(guarded)
    scope = browser._scope("GET", f"/?code={CODE}", {})
    scope["headers"].append((b"host", b"evil.example"))
    browser._scope = lambda *_: scope

    assert (await browser.get("/")).status == 403


async def test_a_mounted_application_answers_to_the_hosts_it_was_given(abus, project):
    made = app(abus, hosts=["bus.example.com"])

    assert project in (await Browser(made, host="bus.example.com").get("/")).text
    assert (await Browser(made, host="www.example.com").get("/")).status == 403


@pytest.mark.parametrize(
    "origin",
    [
        *("http://evil.example", "null", "", "https://127.0.0.1:7071", "http://127.0.0.1"),
        *("file://", "http://127.0.0.1:7070.evil.example", "http://evil.example/127.0.0.1:7070"),
        *("http://127.0.0.1:7070@evil.example", "ftp://127.0.0.1:7070", "http://localhost:7070"),
        *("http://[", "x"),
    ],
)
async def test_a_form_of_another_origin_is_refused(bus, guarded, origin):
    browser = await opened(guarded)

    answer = await halting(browser, origin=origin)

    assert (answer.status, "another site" in answer.text) == (403, True)
    assert bus.paused() == []


async def test_a_form_that_the_browser_calls_foreign_is_refused(bus, guarded):
    browser = await opened(guarded)

    for site in ("cross-site", "same-site", "none"):
        answer = await halting(browser, **{"sec-fetch-site": site})
        assert answer.status == 403
    assert bus.paused() == []


async def test_a_form_behind_a_proxy_comes_from_its_origin(bus, abus):
    made = application(
        abus, write=True, code=CODE, hosts=["127.0.0.1"], origins=["https://bus.example.com"]
    )
    browser = await opened(made)

    answer = await halting(browser, origin="https://bus.example.com")

    assert answer.status == 303
    assert [one.kind for one in bus.paused()] == ["project"]


@pytest.mark.parametrize("host", ["bus.example.com", "bus.example.com:8443"])
async def test_behind_a_proxy_with_tls_all_is_secure_whatever_the_proxy_says(bus, abus, host):
    made = application(
        abus,
        write=True,
        code=CODE,
        hosts=["127.0.0.1", "bus.example.com"],
        origins=["https://bus.example.com:8443"],
    )
    browser = Browser(made, host=host)
    entering = await browser.get(f"/?code={CODE}")

    plain = await halting(browser, origin=f"http://{host}")
    assert (plain.status, bus.paused()) == (403, [])
    done = await halting(browser, origin="https://bus.example.com:8443")

    assert entering.header("set-cookie").endswith("; Secure")
    assert (done.status, done.header("set-cookie").endswith("; Secure")) == (303, True)


async def test_a_form_of_plain_http_is_refused_where_the_page_is_secure(bus, abus):
    made = application(abus, write=True, code=CODE)
    browser = await opened(made, scheme="https")

    answer = await halting(browser, origin=f"http://{HOST}")

    assert (answer.status, bus.paused()) == (403, [])
