"""Hostile texts in every field of every page of `agentbus web`: they stay text, and break nothing.

A page that is added takes part by itself: all registered pages are opened, and every link on them.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections import Counter
from collections.abc import Callable

import pytest

import agentbus
import agentbus.aio
from agentbus.core.keys import Keys
from agentbus.core.names import word
from agentbus.dashboard.web import application
from agentbus.dashboard.web.pages import PAGES
from agentbus.dashboard.web.templates import lines
from agentbus.errors import AgentBusError
from agentbus.tasks import Flows, FlowTask, Limits, Schedules
from tests.browsing import Answer, Browser, HtmlPage
from tests.servers import Server, ask

# Each names an element, an attribute or a scheme "evil", which must not come to be.
HOSTILE = (
    *("<evil>", "</td><evil>", "<evil", "<script>evil()</script>", "</script><evil>", "<evil/>"),
    *('"><evil>', "'><evil>", '" onevil="1', "' onevil='1", "` onevil=`1", ' onevil=1 x="'),
    *("<img src=x onevil=evil()>", "<svg onevil=1>", "<svg/onevil=1//", "<a href=evil:1>x</a>"),
    *("javascript:evil()", "JaVaScRiPt:evil()", "data:text/html,<evil>", "vbscript:evil"),
    *("{{ evil }}", "{% evil %}", "{# evil #}", "{{ ''.__class__ }}evil", "${evil}", "#{evil}"),
    *("<!-- evil", "--><evil>", "<![CDATA[<evil>]]>", "]]><evil>", "<?evil?>", "<!DOCTYPE evil>"),
    *("&lt;evil&gt;", "&#60;evil&#62;", "&evil;", "%3Cevil%3E", "\\u003cevil\\u003e", "\\x3cevil"),
    *("</title><evil>", "</textarea><evil>", "</style><evil>", "</template><evil>", "</ul><evil>"),
    *("<evil>", "\uff1cevil\uff1e", "\u2039evil\u203a"),
    *("evil\u202e<live>", "evil\u2066\u2067", "evil\u200b\ufeff"),
    *("//evil.example/", "/\\evil.example", "../../evil", "..%2f..%2fevil", "?evil=1&page=evil#x"),
    *("evil" * 60, "evil " * 50, "\U0001d58a\U0001d59b<evil>"),
    *("e\u0301\u0301\u0301\u0301\u0301vil", "-evil", "'; evil --"),
    *("evil,a=b;c", "*evil?[x]", "evil:evil:evil", "%s%n evil", "null evil", "<base href=evil>"),
)  # fmt: skip
# What texts may hold that names may not.
CONTROL = ("evil\r\nX-Evil: 1", "evil\x1b[31m", "evil\x07\x00"[:5], "evil\t\n<evil>", "\x9bevil")
# Addresses of each page that are opened, and all that are opened from each page on.
_EACH, _MORE_PAGES = 4, 150
# What lists nothing that the bus holds here: no worker has run, and nothing is archived or searched.
_EMPTY = {"/archive", "/search", "/workers"}


@pytest.fixture(scope="module")
def where(valkey: Server) -> dict[str, str]:
    """A project that is full of them; the tests only read."""
    found = {"url": valkey.url, "project": f"test-{uuid.uuid4().hex[:12]}"}
    seed(found)
    return found


def seed(where: dict[str, str]) -> None:
    """Put every text into every field that takes it."""
    for number, text in enumerate(HOSTILE):
        said = text + CONTROL[number % len(CONTROL)]
        with agentbus.connect(**where, agent=text[:200]) as bus:
            plant(bus, text[:200], said)


def plant(bus: agentbus.Bus, name: str, said: str) -> None:
    queue = bus.queue(name)
    task = queue.publish({name: said}, headers={name: said}, correlation_id=name, source=name)
    queue.publish(said, after=task)
    queue.publish(said, delay=600)
    queue.publish(said, key=name, priority="high")
    for number, delivery in enumerate(queue.fetch(group=name, count=3)):
        if number:
            delivery.bury(said)
        else:
            delivery.retry(600.0)
    tries: list[Callable[[], object]] = [
        lambda: bus.speak(said, topic=name),
        lambda: bus.here(doing=said[:200]),
        lambda: bus.tell(name, said, topic=name),
        lambda: bus.announce(name, ttl=600),
        lambda: bus.fail(name + "-", note=said),
        lambda: bus.jot(name, said, tags=[name.replace(",", "")]),
        lambda: bus.lease(f"{name.replace('/', '')}/**", why=said),
        lambda: bus.pause(queue=name, why=said, wait=0),
        lambda: Schedules(bus).add(name, name, said, every=3600),
        lambda: Flows(bus).publish(FlowTask(said, queue=name, name=said), id=name),
        lambda: Limits(bus).set(name, at_once=1, by=f"payload.{name}"),
    ]
    for one in tries:
        # Some names are not allowed in some places.
        with contextlib.suppress(AgentBusError):
            one()
    keys = Keys(bus.project)
    ask(bus, "HSET", keys.quarantined, name, json.dumps({"reason": said, "last_error": said}))
    fields = ("queue", name, "group", name, "worker", name, "processed", "1", "ran", "[1]")
    ask(bus, "XADD", keys.metrics, "*", *fields)
    ask(
        bus, "XADD", keys.channel, "*", "agent_id", said, "message", said, "event", name, name, said
    )
    ask(bus, "HSET", keys.who(name), "client", said, "host", said, "branch", said, "cwd", said)


def check(answer: Answer, address: str) -> HtmlPage:
    """Check that nothing hostile has become an element, an attribute or an address."""
    page = answer.page
    assert page.unbalanced == [], address
    check_elements(page, address)
    (script,) = page.all("script") or [{"src": "/static/"}]
    assert script["src"].startswith("/static/"), address
    return page


def check_elements(page: HtmlPage, address: str) -> None:
    for tag, attributes in page.elements:
        assert "evil" not in tag, (address, tag)
        for name, value in attributes.items():
            assert "evil" not in name, (address, tag, attributes)
            assert name[:2] != "on", (address, tag, attributes)
            assert name != "style", (address, tag, attributes)
            if name in ("href", "src", "action", "data-live-url"):
                inside = value[:1] == "/" and value[1:2] not in ("/", "\\")
                assert inside or value[:1] in ("#", "?"), (address, tag, value)


async def opened(made, paths: list[str], most: int, each: int | None = None) -> dict[str, Answer]:
    """Open pages and every link on them that is new: at most so many, and so many of each page."""
    browser, waiting = Browser(made), [*paths]
    seen: dict[str, Answer] = {}
    counts: Counter[str] = Counter()
    while waiting and len(seen) < most:
        address = waiting.pop(0)
        path = address.partition("?")[0]
        if address in seen or counts[path] == each:
            continue
        counts[path] += 1
        answer = seen[address] = await browser.get(address)
        assert answer.status in (200, 404), (address, answer.status, answer.text)
        if answer.header("content-type").startswith("text/html"):
            links = check(answer, address).all("a")
            waiting += [one["href"].partition("#")[0] for one in links if one["href"][:1] == "/"]
    return seen


async def test_hostile_texts_stay_text_on_each_page(where):
    paths = [one.path for one in PAGES]
    async with agentbus.aio.connect(**where, agent="ada") as bus:
        made = application(bus, write=True, person="eve")
        seen = await opened(made, paths, len(PAGES) * _EACH, _EACH)

    found = {address.partition("?")[0] for address, one in seen.items() if "evil" in one.page.text}
    assert found & {*paths} == {*paths} - _EMPTY


@pytest.mark.slow
@pytest.mark.parametrize("page", [one.name for one in PAGES])
async def test_hostile_texts_stay_text_on_the_page_and_on_what_it_links_to(where, page):
    (start,) = [one.path for one in PAGES if one.name == page]
    async with agentbus.aio.connect(**where, agent="ada") as bus:
        made = application(bus, write=True, person="eve")
        seen = await opened(made, [start], _MORE_PAGES)

    assert {answer.status for answer in seen.values()} <= {200, 404}
    shown = " ".join(answer.page.text for answer in seen.values())
    assert "evil" in shown


@pytest.mark.parametrize("page", [one.name for one in PAGES])
async def test_hostile_texts_stay_text_in_what_is_sent_live(where, page):
    (found,) = (one for one in PAGES if one.name == page)
    async with agentbus.aio.connect(**where, agent="ada") as bus:
        made = application(bus, write=True, person="eve")
        async with Browser(made).stream(f"/live?page={found.path}", last_event_id="0-1") as stream:
            regions = await stream.event("regions") if not found.hears else None
            entries = await stream.event("entry") if found.hears else None
            regions = regions or await stream.event("regions")
        await made.state.site.feed.aclose()

    for one, html in regions.data.items():
        region = HtmlPage(html)
        assert region.unbalanced == []
        check_elements(region, one)
    for _, html in entries.data["channel"] if entries else ():
        check_elements(HtmlPage(html), "an entry")


async def test_names_are_shown_as_in_the_other_views(where):
    async with agentbus.aio.connect(**where, agent="ada") as bus:
        made = application(bus)
        page = (await Browser(made).get("/queues")).page

    for text in HOSTILE:
        assert " ".join(word(text[:200]).split()) in page.text, text
    assert "\u202e" not in page.text


def test_texts_keep_their_lines_and_nothing_that_turns_others():
    assert lines("a\r\nb\n\u202ec\x1bd\te") == "a\nb\n\\u202ec\\x1bd e"
