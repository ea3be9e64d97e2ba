"""Who may see what in `agentbus web`: sessions, codes, tokens, and where requests come from."""

from __future__ import annotations

import pytest

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

    browser.app = application(abus, token=TOKEN)
    assert project in (await browser.get("/")).text
    browser.app = application(abus, token=TOKEN + "2")
    assert (await browser.get("/")).status == 401


@pytest.mark.parametrize(
    "cookie", ["", "x", ".", "..", "0.0.0", "6740.aa.bb", "é.é.é", "a" * 5000, '"x', "\\"]
)
async def test_a_forged_cookie_is_no_session(guarded, cookie):
    browser = Browser(guarded)
    browser.cookies["agentbus_7070"] = cookie

    assert (await browser.get("/")).status == 403


async def test_a_session_ends_after_a_week(monkeypatch):
    sessions = WebSessions(None, CODE)
    cookie = sessions.start()
    assert sessions.is_valid(cookie)

    now = __import__("time").time()
    monkeypatch.setattr("agentbus.dashboard.web.sessions.time.time", lambda: now + 7 * 86_400 + 1)
    assert not sessions.is_valid(cookie)


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
