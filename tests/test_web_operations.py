"""The pages of `agentbus web` about workers, events, health and reports."""

from __future__ import annotations

import pathlib

import orjson
import pytest

from agentbus.core.keys import Keys
from agentbus.dashboard import app
from tests.browsing import Browser
from tests.servers import ask
from tests.test_dashboard_operations import register, report
from tests.tiers import on_one_store

pytestmark = on_one_store


async def test_workers_are_shown_with_heartbeat_and_lag(bus, served):
    bus.queue("mail").publish_many(range(3))
    bus.queue("mail").fetch(count=1)
    register(bus, "w1", "mail", running=1, concurrency=4)
    register(bus, "w2", "mail", silent=60)
    browser = Browser(served)

    page = (await browser.get("/workers")).page
    dead = (await browser.get("/workers?state=dead")).page

    assert page.unbalanced == []
    assert "1 working · 1 dead" in page.text
    assert "1 of 4" in page.text
    assert "1 to 1 of 1 worker" in dead.text


async def test_a_person_pauses_resumes_and_stops_a_worker(bus, writing):
    register(bus, "w1", "mail", silent=60)
    browser = Browser(writing)

    page = (await browser.get("/workers")).page
    await browser.press(page, "/act/worker.pause")
    assert [(one.kind, one.name) for one in bus.paused()] == [("worker", "w1")]
    page = (await browser.get("/workers")).page
    await browser.press(page, "/act/worker.resume")
    assert bus.paused() == []
    await browser.press((await browser.get("/workers")).page, "/act/worker.stop")

    assert bus.workers() == []


async def test_event_streams_show_outbox_consumers_and_quarantine(bus, served):
    keys = Keys(bus.project)
    ask(bus, "XADD", keys.events("orders"), "*", "type", "paid")
    report(bus, "relay", lag_ms=20, lag_events_count=3)
    report(bus, "welcome", lag_ms=40, lag_events_count=4)
    why = {"stream": "orders", "reason": "crash_loop", "last_error": "<b>no</b>"}
    ask(bus, "HSET", keys.quarantined, "mailer", orjson.dumps(why))

    page = (await Browser(served).get("/events")).page

    assert page.unbalanced == []
    assert "3 events" in page.text
    assert "welcome orders 4" in page.text
    assert "mailer orders" in page.text
    assert "<b>no</b>" in page.text


async def test_a_consumer_with_events_left_shows_the_commands_that_park_and_skip(bus, served):
    report(bus, "welcome mail", lag_ms=40, lag_events_count=4)
    report(bus, "done", lag_ms=0, lag_events_count=0)

    page = (await Browser(served).get("/events")).page

    assert page.unbalanced == []
    assert "agentbus events parked list --name='welcome mail'" in page.text
    assert "agentbus events skip --to ID -- orders 'welcome mail'" in page.text
    assert "-- orders done" not in page.text


async def test_a_consumer_shows_its_last_error_and_what_it_parked(bus, served):
    report(bus, "welcome", lag_ms=0, lag_events_count=0, parked_events=2, last_error="<b>no</b>")
    report(bus, "welcome", handled=1)
    report(bus, "done", lag_ms=0, lag_events_count=0)

    page = (await Browser(served).get("/events")).page

    assert page.unbalanced == []
    assert "welcome orders 0 - 2 <b>no</b>" in page.text
    assert "done orders 0 - 0 -" in page.text
    assert "agentbus events parked list --name=welcome" in page.text


async def test_a_person_releases_a_consumer(bus, writing):
    ask(bus, "HSET", Keys(bus.project).quarantined, "mailer", "{}")
    browser = Browser(writing)

    answer = await browser.press((await browser.get("/events")).page, "/act/consumer.release")
    after = (await browser.get(answer.header("location"))).page

    assert "consumer mailer released from quarantine" in after.text
    assert "No consumer is in quarantine." in after.text


async def test_health_shows_every_check_with_thresholds_and_remedies(bus, served):
    bus.queue("mail").publish_many(range(150))
    bus.queue("mail").fetch(count=1)

    page = (await Browser(served).get("/health")).page

    assert page.unbalanced == []
    assert "149 tasks 100 tasks" in page.text
    assert "agentbus work mail" in page.text
    for check in ("starving", "memory", "clock", "silent", "holder_gone"):
        assert check in page.text
    # Every link within the page leads to an element of it.
    known = {attrs["id"] for _, attrs in page.elements if "id" in attrs}
    assert {a["href"][1:] for a in page.all("a") if a["href"][:1] == "#"} <= known


async def test_without_a_directory_the_archive_says_how_to_have_one(served):
    browser = Browser(served)

    page = (await browser.get("/archive")).page
    answer = await browser.get("/report?name=a.html")

    assert "agentbus report all /var/bus --html reports/today.html" in page.text
    assert answer.status == 404


@pytest.fixture
async def archived(abus, tmp_path: pathlib.Path):
    """The application with a directory of reports."""
    directory = tmp_path / "reports"
    directory.mkdir()
    (directory / "today.html").write_text("<!doctype html><title>report</title><script>1</script>")
    (directory / "x<b>.html").write_text("second")
    (tmp_path / "secret.html").write_text("secret")
    (directory / "link.html").symlink_to(tmp_path / "secret.html")
    made = app(abus, reports=str(directory))
    yield made
    await made.state.site.feed.aclose()


async def test_reports_are_listed_and_open_in_a_sandbox(archived):
    browser = Browser(archived)

    page = (await browser.get("/archive")).page
    answer = await browser.get("/report?name=today.html")

    assert "x<b>.html" in page.text
    assert "link.html" not in page.text
    assert {"href": "/report?name=today.html", "target": "_blank", "rel": "noopener"} in page.all(
        "a"
    )
    assert answer.status == 200
    assert answer.header("content-security-policy").startswith("sandbox allow-scripts; default-src")
    assert "'unsafe-inline'" not in answer.header("content-security-policy").split("script-src")[1]
    assert answer.header("x-content-type-options") == "nosniff"
    assert answer.header("content-type") == "text/html; charset=utf-8"


@pytest.mark.parametrize(
    "name", ["../secret.html", "link.html", "/etc/passwd", "", "none.html", "..%2fsecret.html"]
)
async def test_nothing_outside_the_directory_of_reports_is_served(archived, name):
    answer = await Browser(archived).get(f"/report?name={name}")

    assert answer.status == 404
    assert "secret" not in answer.text.replace("secret.html", "")


async def test_a_directory_that_is_gone_is_a_page_that_says_so(abus, tmp_path: pathlib.Path):
    made = app(abus, reports=str(tmp_path / "gone"))

    answer = await Browser(made).get("/archive")

    assert "cannot be read" in answer.page.text
    await made.state.site.feed.aclose()
