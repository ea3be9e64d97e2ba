"""The pages of `agentbus web` as an ASGI application: what they show, live, mounted, and what they do."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import agentbus.aio
from agentbus.dashboard import app
from agentbus.errors import BackendUnavailable, UsageError
from tests.browsing import Browser
from tests.servers import ask
from tests.test_dashboard_operations import register

# -- pages --


async def test_the_overview_shows_figures_findings_queues_agents_and_talk(bus, served):
    bus.queue("mail").publish_many([1, 2, 3])
    bus.here(doing="the parser")
    bus.speak("the build is green", topic="ci")

    answer = await Browser(served).get("/")

    assert (answer.status, answer.header("content-type")) == (200, "text/html; charset=utf-8")
    page = answer.page
    assert page.unbalanced == []
    assert "Backlog 3 1 queue " in page.text
    assert "no worker" in page.text
    assert "the parser" in page.text
    assert "the build is green" in page.text
    assert {"href": "/queue?name=mail"} in page.all("a")


async def test_an_empty_project_says_what_would_be_there(served):
    page = (await Browser(served).get("/")).page

    assert "There are no queues yet." in page.text
    assert "Nobody is here." in page.text


async def test_queues_are_filtered_and_paged_by_the_query(bus, served):
    for number in range(103):
        bus.queue(f"q{number:03}").publish(1)
    browser = Browser(served)

    first = (await browser.get("/queues")).page
    second = (await browser.get("/queues?page=2")).page
    filtered = (await browser.get("/queues?q=Q10")).page

    assert "1 to 100 of 103 rows" in first.text
    assert first.all("a", rel="next") == [{"rel": "next", "href": "/queues?page=2"}]
    assert "101 to 103 of 103 rows" in second.text
    assert "1 to 3 of 3 rows" in filtered.text
    assert filtered.all("input", name="q")[0]["value"] == "Q10"


async def test_a_queue_shows_its_groups_and_workers(bus, served):
    bus.queue("mail").publish(1, priority="high")
    bus.queue("mail").fetch(group="audit")

    page = (await Browser(served).get("/queue?name=mail")).page

    assert page.unbalanced == []
    assert "audit" in page.text
    assert "No worker is registered." in page.text


async def test_a_queue_is_shown_where_another_program_named_a_group_badly(bus, served):
    bus.queue("mail").publish(1)
    ask(bus, "XGROUP", "CREATE", bus.scope.keys.queue("mail"), "a\ngroup", "0")

    answer = await Browser(served).get("/queue?name=mail")

    assert answer.status == 200
    assert '"a\\ngroup"' in answer.page.text


async def test_what_does_not_exist_is_a_page_that_says_so(served):
    browser = Browser(served)

    queue = await browser.get("/queue?name=none")
    nothing = await browser.get("/nothing")

    assert (queue.status, "no queue 'none'" in queue.page.text) == (404, True)
    assert (nothing.status, "There is no such page." in nothing.page.text) == (404, True)


async def test_the_script_and_the_style_sheet_are_kept_by_browsers(served):
    browser = Browser(served)
    page = (await browser.get("/")).page
    (script,) = page.all("script")

    answer = await browser.get(script["src"])

    assert answer.status == 200
    assert answer.header("content-type") == "text/javascript; charset=utf-8"
    assert "immutable" in answer.header("cache-control")
    assert (await browser.get("/static/none.js")).status == 404


async def test_the_application_works_below_a_path_of_another_one(bus, abus):
    bus.queue("mail").publish(1)
    outer = Starlette(routes=[Mount("/bus", app(abus, write=True))])
    browser = Browser(outer)

    page = (await browser.get("/bus/")).page
    queue = (await browser.get("/bus/queue?name=mail")).page
    paused = await browser.press(queue, "/act/queue.pause")

    links = [a["href"] for a in page.all("a") + page.all("link") if a["href"][:1] != "#"]
    assert links
    assert all(link.startswith("/bus/") for link in links)
    assert page.all("body")[0]["data-live-url"] == "/bus/live"
    assert (paused.status, paused.header("location")) == (303, "/bus/queue?name=mail")
    assert "paused" in (await browser.get(paused.header("location"))).page.text


# -- actions --


async def test_a_queue_is_paused_and_resumed_by_its_page(bus, writing):
    bus.queue("mail").publish(1)
    browser = Browser(writing)

    page = (await browser.get("/queue?name=mail")).page
    answer = await browser.press(page, "/act/queue.pause")
    after = (await browser.get(answer.header("location"))).page

    assert "queue mail paused" in after.text
    (order,) = bus.paused()
    assert (order.name, order.why) == ("mail", "from web")
    said = [one for one in bus.overhear(last=5) if one.agent_id == "human:eve"]
    assert said[-1].text == "queue mail paused"
    assert said[-1].topic == "coordination"

    await browser.press(after, "/act/queue.resume")

    assert bus.paused() == []


async def test_the_project_is_halted_and_resumed_by_the_overview(bus, writing):
    browser = Browser(writing)

    await browser.press((await browser.get("/")).page, "/act/project.halt")
    assert [one.kind for one in bus.paused()] == ["project"]
    await browser.press((await browser.get("/")).page, "/act/project.resume")

    assert bus.paused() == []


async def test_without_write_no_page_has_a_form_that_acts(bus, served):
    bus.queue("mail").publish(1)
    browser = Browser(served)

    for path in ("/", "/queues", "/queue?name=mail"):
        page = (await browser.get(path)).page
        assert [form for form in page.all("form") if form["method"] != "get"] == []


async def test_what_an_action_could_not_do_is_said_on_the_page(bus, writing):
    bus.queue("mail").publish(1)
    browser = Browser(writing)
    page = (await browser.get("/queue?name=mail")).page

    answer = await browser.press(page, "/act/queue.pause", queue="")
    after = (await browser.get(answer.header("location"))).page

    assert (answer.status, answer.header("location")) == (303, "/queue?name=mail")
    (notice,) = [a for a in after.all("p", role="alert") if "failed" in a["class"]]
    assert notice
    assert "the form lacks queue" in after.text
    assert bus.paused() == []


async def test_an_action_while_the_server_is_away_is_not_lost_in_silence(own_server, project):
    async with agentbus.aio.connect(own_server.url, project=project, deadline=1) as bus:
        made = app(bus, write=True, person="eve")
        browser = Browser(made)
        page = (await browser.get("/")).page
        own_server.kill()
        answer = await browser.press(page, "/act/project.halt")
        own_server.start()
        after = (await browser.get(answer.header("location"))).page
        await made.state.site.feed.aclose()

    assert after.all("p", role="alert")
    assert "project halted" not in after.text


async def test_what_is_done_and_could_not_be_spoken_is_no_failure(bus, writing, monkeypatch):
    async def fail(*_given, **_named):
        raise BackendUnavailable("gone")

    monkeypatch.setattr("agentbus.client.aio.AsyncBus.speak", fail)
    browser = Browser(writing)

    answer = await browser.press((await browser.get("/")).page, "/act/project.halt")
    after = (await browser.get(answer.header("location"))).page

    assert "project halted; the channel does not say so" in after.text
    assert after.all("p", role="alert") == []
    assert [one.kind for one in bus.paused()] == ["project"]


def test_a_blocking_bus_is_refused(bus):
    with pytest.raises(UsageError, match="would block its event loop"):
        app(bus)


# -- what a page opens with --


async def test_a_queue_opens_on_its_dead_letters_if_nothing_waits(bus, served):
    bus.queue("mail").publish(1)
    (task,) = bus.queue("mail").fetch()
    task.bury("no address")
    browser = Browser(served)

    page = (await browser.get("/queue?name=mail")).page
    bus.queue("mail").publish(2)
    waiting = (await browser.get("/queue?name=mail")).page

    assert "Dead letters, the newest first" in page.text
    # The stream of the page keeps this state, whatever comes.
    assert "state=dead" in page.all("body")[0]["data-page"]
    assert "Tasks in this state" in waiting.text


async def test_halt_is_the_last_control_of_the_overview(bus, writing):
    bus.queue("mail").publish(1)

    page = (await Browser(writing).get("/")).page

    assert page.text.index("Halt the project…") > page.text.index("All queues")


async def test_findings_of_one_kind_are_one_line_with_a_link_for_each_queue(bus, served):
    for queue in ("mail", "images", "payments"):
        bus.queue(queue).publish(1)
        (task,) = bus.queue(queue).fetch()
        task.bury("no")

    browser = Browser(served)
    page = (await browser.get("/")).page
    health = (await browser.get("/health")).page

    assert page.text.count("dead_letters") == 1
    for queue in ("mail", "images", "payments"):
        (link, *_) = page.all("a", href=f"/letters?queue={queue}")
        assert link
        assert health.all("a", href=f"/letters?queue={queue}")


@pytest.mark.parametrize(
    ("path", "action", "says"),
    [
        ("/task?id={task}", "/act/task.cancel", "Cancel the task"),
        ("/queue?name=mail", "/act/queue.pause", "Pause the queue"),
        ("/workers", "/act/worker.stop", "Stop the worker"),
    ],
)
async def test_the_button_that_acts_says_what_it_does(bus, writing, path, action, says):
    task = bus.queue("mail").publish(1)
    register(bus, "w1", "mail")

    answer = await Browser(writing).get(path.format(task=task))

    form = answer.text.partition(f'action="{action}"')[2].partition("</form>")[0]
    assert f"<button>{says}</button>" in form


async def test_a_worker_id_breaks_after_its_separators_alone(bus, served):
    register(bus, "vm:4825:37036/560", "mail")

    answer = await Browser(served).get("/workers")

    words = ("&#34;vm:", "4825:", "37036/", "560&#34;")
    parts = "<wbr>".join(f'<span class="part">{one}</span>' for one in words)
    assert parts in answer.text


# -- order --


def _order(page, *names):
    return sorted(names, key=lambda one: page.text.index(f" {one} "))


async def test_queues_are_sorted_by_links_of_their_headings(bus, served):
    for queue, number in (("few", 1), ("many", 9), ("some", 4)):
        bus.queue(queue).publish_many(range(number))
    browser = Browser(served)

    page = (await browser.get("/queues?q=m")).page
    (link, *_) = (a["href"] for a in page.all("a") if "sort=-backlog" in a.get("href", ""))
    down = (await browser.get(link)).page
    up = (await browser.get("/queues?sort=backlog")).page

    # The link keeps the filter; a second press turns the order around.
    assert link == "/queues?q=m&sort=-backlog"
    assert _order(down, "many", "some") == ["many", "some"]
    assert down.all("th", **{"aria-sort": "descending"})
    assert down.all("a", href="/queues?q=m&sort=backlog")
    assert _order(up, "many", "some", "few") == ["few", "some", "many"]


async def test_workers_and_errors_are_sorted_by_the_address(bus, served):
    register(bus, "w1", "mail", done=3)
    register(bus, "w2", "mail", done=7)
    for error, number in (("a few", 1), ("many more", 3)):
        bus.queue("mail").publish_many(range(number))
        for task in bus.queue("mail").fetch(count=number):
            task.bury(error)
    browser = Browser(served)

    workers = (await browser.get("/workers?sort=-done")).page
    fewest = (await browser.get("/letters?sort=letters")).page
    unknown = await browser.get("/workers?sort=nothing")

    assert _order(workers, "w1", "w2") == ["w2", "w1"]
    assert fewest.text.index("a few") < fewest.text.index("many more")
    assert unknown.status == 200
