"""Pages that follow the project: what comes is seen, what is open stays, and outages are said."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import Person

if TYPE_CHECKING:
    import agentbus
    from tests.servers import Server

pytestmark = pytest.mark.slow


def test_a_message_and_a_figure_are_seen_without_a_reload(eve: Person, bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    page = eve.sees().page
    page.evaluate("window.sameDocument = true")

    bus.speak("the build is green", topic="ci")
    bus.queue("mail").publish_many(range(41))

    page.locator(".talk").get_by_text("the build is green").wait_for()
    page.locator("#cards .card", has_text="Backlog").get_by_text("42", exact=True).wait_for()
    assert page.evaluate("window.sameDocument")


def test_a_message_comes_once_in_its_place(eve: Person, bus: agentbus.Bus) -> None:
    bus.speak("message 0")
    page = eve.sees().page
    for number in range(1, 30):
        bus.speak(f"message {number}")
    page.get_by_text("message 29", exact=True).wait_for()

    texts = [one.strip() for one in page.locator(".talk .said").all_inner_texts()]

    assert texts == [f"message {number}" for number in range(29, -1, -1)]


def test_what_is_open_focused_and_selected_stays_so(eve: Person, bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    page = eve.sees("/queue?name=mail").page
    page.locator("summary", has_text="Pause").click()
    page.get_by_role("button", name="Pause the queue", exact=True).focus()

    bus.queue("mail").publish_many(range(41))
    page.locator("#groups td", has_text=re.compile("^42$")).first.wait_for()

    assert page.locator("details[open]").count() == 1
    assert page.evaluate("document.activeElement.innerText") == "Pause the queue"


# A headless browser shows every window: so a test says that this one is hidden.
_HIDE = """hidden => {
  Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden});
  document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_a_hidden_page_closes_its_stream_and_resumes(eve: Person, bus: agentbus.Bus) -> None:
    bus.speak("before")
    shown = eve.sees()
    shown.live()
    page = shown.page
    asked: list[Any] = []
    page.on("request", lambda request: asked.append(request.url))

    with page.expect_event("requestfailed", lambda one: "/live" in one.url):
        page.evaluate(_HIDE, True)
    for number in range(3):
        bus.speak(f"while it slept {number}")
    with eve.sees().page.context as other:
        # What another window has been sent, this one would have, too.
        other.pages[0].get_by_text("while it slept 2").wait_for()
    assert page.get_by_text("while it slept").count() == 0
    assert asked == []

    page.evaluate(_HIDE, False)

    page.get_by_text("while it slept 2").wait_for()
    assert page.get_by_text("while it slept").count() == 3
    assert len([one for one in asked if "/live" in one]) == 1


def test_a_server_that_is_away_is_said_and_the_page_goes_on_by_itself(
    opened: Any, own_server: Server, project: str, tmp_path: Any
) -> None:
    import agentbus
    from tests.browser.serving import Web

    with (
        agentbus.connect(own_server.url, project=project, agent="ada") as bus,
        Web(tmp_path / "web", own_server.url, project) as web,
    ):
        bus.speak("before")
        eve = Person(opened, web)
        shown = eve.sees()
        shown.live()
        page = shown.page

        own_server.kill()
        page.locator("#blind", has_text=re.compile(r"No data since \d\d:\d\d:\d\d")).wait_for()
        assert page.get_by_text("before").first.is_visible()

        # A page that is opened now says it, too.
        other = eve.sees().page
        assert "did not serve" in other.locator("main").inner_text()

        own_server.start()
        page.locator("#blind").wait_for(state="hidden")
        bus.speak("after")
        page.get_by_text("after", exact=True).wait_for()
        # The answer 503 of the other page is an error of the console.
        assert [one for one in eve.close() if "503" not in one] == []


def test_a_dashboard_that_is_away_is_said_and_the_page_goes_on_by_itself(
    opened: Any, real_url: str, project: str, bus: agentbus.Bus, tmp_path: Any
) -> None:
    from tests.browser.serving import Web

    with Web(tmp_path / "web", real_url, project) as web:
        eve = Person(opened, web)
        shown = eve.sees()
        shown.live()

        assert web.stop() == 0
        shown.page.locator("#blind", has_text="No connection to the dashboard since").wait_for()
        assert shown.page.locator("h1").inner_text() == "Overview"
        eve.close()


def test_a_session_that_has_ended_is_said(
    opened: Any, real_url: str, project: str, bus: agentbus.Bus, tmp_path: Any
) -> None:
    from tests.browser.serving import Web

    bus.speak("before")
    with Web(tmp_path / "web", real_url, project) as web:
        eve = Person(opened, web)
        shown = eve.sees()
        shown.live()

        # The sessions of a code end with the program.
        assert web.stop() == 0
        web.start()
        shown.page.locator("#blind", has_text="This session has ended.").wait_for()
        assert shown.page.get_by_text("before").first.is_visible()
        eve.close()
