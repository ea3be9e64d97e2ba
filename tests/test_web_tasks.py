"""The pages of `agentbus web` about tasks: one task with its chain, the tasks of a queue, the search."""

from __future__ import annotations

import asyncio
import threading

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import agentbus
from agentbus.dashboard import app
from tests.browsing import Browser, HtmlPage
from tests.test_dashboard_history import sample
from tests.tiers import on_one_store

PATIENCE = 60.0

pytestmark = on_one_store


def fail(_: object) -> None:
    raise ValueError("no such user\nlook it up <b>")


def buried(bus: agentbus.Bus) -> str:
    """Return a task that failed its last attempt."""
    task = bus.queue("mail").publish({"to": "<script>"}, correlation_id="order-7")
    with bus.subscribe("mail", fail, attempts=1, drain=True) as worker:
        worker.run()
    return task


async def followed(browser: Browser, page: HtmlPage, said: str) -> HtmlPage:
    """Return the page behind the first link whose address contains this."""
    link = next(a["href"] for a in page.all("a") if said in a.get("href", ""))
    answer = await browser.get(link.partition("#")[0])
    assert answer.status == 200
    return answer.page


# -- a task --


async def test_a_task_shows_its_error_its_traceback_its_attempts_and_its_payload(bus, served):
    task = buried(bus)

    page = (await Browser(served).get(f"/task?id={task}")).page

    assert page.unbalanced == []
    assert "dead" in page.text
    assert "ValueError: no such user look it up <b>" in page.text
    assert "in fail" in page.text
    assert '{ "to": "<script>" }' in page.text
    assert "order-7" in page.text
    assert len(page.all("script")) == 1


async def test_why_a_task_failed_is_found_in_three_clicks_from_the_overview(bus, served):
    buried(bus)
    browser = Browser(served)
    overview = (await browser.get("/")).page

    letters = await followed(browser, overview, "/letters")
    error = await followed(browser, letters, "/letters-error")
    letter = await followed(browser, error, "/letter?")

    assert "in fail" in letter.text
    assert "ValueError: no such user" in letter.text


async def test_why_a_task_failed_is_found_in_three_clicks_by_its_queue(bus, served):
    buried(bus)
    browser = Browser(served)
    overview = (await browser.get("/")).page

    queue = await followed(browser, overview, "/queue?")
    dead = await followed(browser, queue, "state=dead")
    letter = await followed(browser, dead, "/letter?")

    assert "in fail" in letter.text


async def test_the_chain_of_a_task_is_drawn_and_told(bus, served):
    first = bus.queue("a").publish(1)
    second = bus.queue("b").publish(2, after=first)
    third = bus.queue("c").publish(3, causation_id=second)

    page = (await Browser(served).get(f"/task?id={second}")).page

    assert page.unbalanced == []
    (drawing,) = page.all("svg", **{"class": "chain"})
    assert drawing["role"] == "group"
    assert len(page.all("rect")) == 3
    assert [one["class"] for one in page.all("path") if "marker-end" in one] == ["before", "caused"]
    assert f"comes before {second}" in page.text
    assert f"caused {third}" in page.text
    links = [a["href"] for a in page.all("a") if a.get("href", "").startswith("/task?")]
    # Each other task once in the drawing, and once in the table.
    assert len(links) == 4


async def test_a_task_that_stands_alone_has_no_chain(bus, served):
    task = bus.queue("mail").publish(1)

    page = (await Browser(served).get(f"/task?id={task}")).page

    assert page.unbalanced == []
    assert page.all("svg", **{"class": "chain"}) == []
    assert "Chain" not in page.text


async def test_a_long_payload_is_folded_and_saved_whole_as_text(bus, served):
    task = bus.queue("mail").publish({"text": "x" * 9_000})
    browser = Browser(served)

    page = (await browser.get(f"/task?id={task}")).page
    (link,) = (a["href"] for a in page.all("a") if "/text/" in a.get("href", ""))
    whole = await browser.get(link)

    assert len(page.text) < 8_000
    assert "x" * 9_000 in whole.text
    assert whole.header("content-type").startswith("text/plain")
    assert "attachment" in whole.header("content-disposition")
    assert whole.header("x-content-type-options") == "nosniff"


async def test_a_finished_task_shows_its_result(bus, served):
    task = bus.queue("mail").publish(1)
    with bus.subscribe("mail", lambda _: {"sent": True}, drain=True) as worker:
        worker.run()

    page = (await Browser(served).get(f"/task?id={task}")).page

    assert 'Result { "sent": true }' in page.text


async def test_the_groups_of_a_task_are_shown_one_at_a_time(bus, served):
    task = bus.queue("mail").publish(1)
    for delivery in bus.queue("mail").fetch(group="audit"):
        delivery.ack()
    bus.queue("mail").fetch(group="billing")
    browser = Browser(served)

    audit = (await browser.get(f"/task?id={task}")).page
    billing = await followed(browser, audit, "group=billing")

    assert "done in mail" in audit.text
    assert "running in mail" in billing.text


@pytest.mark.parametrize("query", ["", "?id=1-1@mail", "?id=none"])
async def test_an_unknown_task_is_a_page_that_says_so(bus, served, query):
    bus.queue("mail").publish(1)

    answer = await Browser(served).get(f"/task{query}")

    assert answer.status in (400, 404)
    assert answer.page.unbalanced == []


async def test_a_task_is_cancelled(bus, writing):
    task = bus.queue("mail").publish(1)
    browser = Browser(writing)
    page = (await browser.get(f"/task?id={task}")).page

    answer = await browser.press(page, "/act/task.cancel")

    assert answer.status == 303
    assert bus.task(task).state == "cancelled"
    assert "cancelled" in (await browser.get(answer.header("location"))).page.text


# -- the tasks of a queue --


async def test_the_tasks_of_a_queue_are_shown_by_state_and_each_is_a_link(bus, served):
    mail = bus.queue("mail")
    held, aside, dead = mail.publish_many(range(3))
    for delivery in mail.fetch(count=3):
        if delivery.payload == 1:
            delivery.retry(600.0)
        if delivery.payload == 2:
            delivery.bury("broken")
    states = {
        "running": held,
        "retrying": aside,
        "delayed": mail.publish(3, delay=600.0),
        "blocked": mail.publish(4, after=held),
        "waiting": mail.publish(5),
        "dead": dead,
    }
    browser = Browser(served)
    page = (await browser.get("/queue?name=mail")).page

    for state, task in states.items():
        one = await followed(browser, page, f"state={state}")
        assert one.unbalanced == []
        link = "/letter?" if state == "dead" else "/task?"
        assert bus.task(task).id in (await followed(browser, one, link)).text
    assert "Waiting 1 Running 1 Retrying 1 Delayed 1 Blocked 1 Dead 1" in page.text


async def test_many_tasks_of_a_queue_are_read_page_by_page(bus, served):
    tasks = bus.queue("mail").publish_many(range(130))
    browser = Browser(served)

    first = (await browser.get("/queue?name=mail")).page
    second = await followed(browser, first, "after=")

    assert tasks[0] in first.text
    assert tasks[129] not in first.text
    assert tasks[129] in second.text
    assert not second.all("a", rel="next")


async def test_a_state_that_there_is_not_is_a_page_that_says_so(bus, served):
    bus.queue("mail").publish(1)

    assert (await Browser(served).get("/queue?name=mail&state=x")).status == 404
    assert (await Browser(served).get("/queue?name=mail&after=x")).status == 400


# -- the search --


async def test_each_page_has_a_search_that_finds_a_task(bus, served):
    task = bus.queue("mail").publish(1, key="k-7")
    browser = Browser(served)
    page = (await browser.get("/queues")).page
    assert {"method": "get", "action": "/search"}.items() <= page.all("form")[0].items()

    for wanted in (task, "k-7"):
        found = (await browser.get(f"/search?text={wanted}")).page
        assert found.unbalanced == []
        assert task in (await followed(browser, found, "/task?")).text


async def test_a_search_by_words_of_an_error_finds_the_dead_letter(bus, served):
    buried(bus)
    browser = Browser(served)

    found = (await browser.get("/search?text=USER+such")).page

    assert "in fail" in (await followed(browser, found, "/letter?")).text


async def test_a_search_that_finds_nothing_says_how_to_search(bus, served):
    bus.queue("mail").publish(1)
    browser = Browser(served)

    assert "Nothing found." in (await browser.get("/search?text=none")).page.text
    assert "Search a task by its id" in (await browser.get("/search")).page.text
    assert (await browser.get("/search?text=x&after=x")).status == 400


# -- charts --


async def test_the_overview_and_a_queue_have_charts_of_the_last_hour(bus, served):
    buried(bus)
    browser = Browser(served)

    for path in ("/", "/queue?name=mail"):
        page = (await browser.get(path)).page
        titles = [one["aria-label"].partition(".")[0] for one in page.all("svg", role="img")]
        for said in ("Done and failed a second", "Run time, p50 and p95", "Wait, p50 and p95"):
            assert f"{said} in the last hour" in titles


async def test_a_chart_has_an_axis_from_zero_a_legend_and_the_range_of_the_address(bus, served):
    bus.queue("mail").publish(1)
    for ago in (900, 600, 300, 120):
        sample(bus, "mail", 120, ago)
    browser = Browser(served)

    hour = await browser.get("/")
    day = (await browser.get("/queue?name=mail&range=24h")).page

    (figure, *_) = hour.text.split("</figure>")
    assert '<li class="done">done <span class="soft">last ' in figure
    assert figure.count('<path class="line') == 2
    assert '>2.0/s</text><text x="0" y="109">0</text>' in figure
    titles = [one["aria-label"] for one in day.all("svg", role="img")]
    assert any(one.startswith("Done and failed a second in the last day.") for one in titles)
    assert day.all("a", href="/queue?name=mail&range=24h#history-of")[0]["aria-current"] == "true"


async def test_no_chart_is_drawn_from_two_points(bus, served):
    sample(bus, "mail", 120, 61)
    sample(bus, "mail", 120)

    answer = await Browser(served).get("/")

    assert "Not enough data yet" in answer.page.text
    assert 'class="line' not in answer.text


# -- live --


async def test_a_task_that_ends_is_seen_by_who_looks_at_it(bus, served):
    task = bus.queue("mail").publish(1)
    async with Browser(served).stream(f"/live?page=/task?id={task}") as stream:
        first = await stream.event("regions")
        for delivery in bus.queue("mail").fetch():
            delivery.bury("broken")
        while True:
            later = await stream.event("regions")
            if "dead" in later.data.get("state", ""):
                break

    assert "waiting" in first.data["state"]
    assert "broken" in later.data["state"]


async def test_the_progress_of_a_running_task_is_seen(bus, connect, served):
    looked = threading.Event()

    def handler(delivery):
        delivery.progress(0.4, "page 4 of <10>")
        assert looked.wait(PATIENCE)

    task = bus.queue("mail").publish(1)
    running = threading.Thread(target=connect("bob").subscribe("mail", handler, drain=True).run)
    running.start()
    async with Browser(served).stream(f"/live?page=/task?id={task}") as stream:
        while True:
            state = (await stream.event("regions")).data.get("state", "")
            if "Progress" in state:
                break
    looked.set()
    await asyncio.to_thread(running.join, PATIENCE)

    assert 'value="0.4"' in state
    assert "40 %, page 4 of &lt;10&gt;, " in state


async def test_the_pages_work_below_a_path_of_another_application(bus, abus):
    task = buried(bus)
    outer = Starlette(routes=[Mount("/bus", app(abus, write=True))])
    browser = Browser(outer)

    for path in ("letters", f"task?id={task}", "search?text=user", "queue?name=mail&state=dead"):
        page = (await browser.get(f"/bus/{path}")).page
        addresses = [a["href"] for a in page.all("a")] + [f["action"] for f in page.all("form")]
        assert all(one.startswith(("/bus/", "#")) for one in addresses)
