"""What a person does with the dashboard: find why a task failed, replay, pause, write to an agent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

    import agentbus
    from tests.browser.conftest import Person
    from tests.screenshots.demo import Demo

pytestmark = pytest.mark.slow


def confirmed(page: Page, label: str, **fields: str) -> str:
    """Open a button's question, fill in its fields, confirm it, and return what was done."""
    page.locator("summary", has_text=re.compile(rf"^{label}…$")).first.click()
    form = page.locator("details[open] form")
    for name, value in fields.items():
        form.locator(f"[name={name}]").fill(value)
    form.get_by_role("button").click()
    return page.locator(".notice").inner_text()


def test_why_a_task_failed_is_found_in_three_clicks(shopper: Person, shop: Demo) -> None:
    page = shopper.sees("/").page

    page.locator("#cards").get_by_role("link", name="Dead letters").click()
    page.get_by_role("link", name="ConnectionRefusedError").click()
    page.locator("main tbody th a").first.click()

    main = page.locator("main").inner_text()
    assert "smtp.example.com:587: connection refused" in page.locator("pre.error").inner_text()
    assert "Traceback" in main
    assert "order-shipped" in main


def test_a_failed_task_is_found_by_words_of_its_error(shopper: Person) -> None:
    page = shopper.sees("/").page

    page.get_by_label(re.compile("Search|Find")).first.fill("connection refused")
    page.keyboard.press("Enter")
    page.locator("main tbody th a").first.click()

    assert "smtp.example.com:587: connection refused" in page.locator("pre.error").inner_text()


def test_five_hundred_dead_letters_of_one_error_are_replayed_at_once(
    eve: Person, bus: agentbus.Bus
) -> None:
    queue = bus.queue("mail")
    for error, count in (("smtp: connection refused", 500), ("no such template", 20)):
        queue.publish_many(range(count))
        for one in queue.fetch(count=count):
            one.bury(error)
    page = eve.sees("/letters").page
    page.get_by_role("link", name="smtp: connection refused").click()

    said = confirmed(page, "Replay all")

    assert "500" in said
    assert bus.stats("mail")[0].backlog == 500
    left = [one.error for one in queue.dead_letters(limit=1000) if not one.replayed]
    assert left == ["no such template"] * 20
    assert any(
        one.agent_id == "human:eve" and "500" in one.text for one in bus.overhear("coordination")
    )


def test_a_queue_is_paused_and_resumed(eve: Person, bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    page = eve.sees("/").page
    page.locator("main").get_by_role("link", name="mail", exact=True).first.click()

    assert "paused" in confirmed(page, "Pause")

    (order,) = bus.paused()
    assert "human:eve" in repr(order)
    page.locator("#state").get_by_text("paused", exact=True).wait_for()
    assert "resumed" in confirmed(page, "Resume")
    assert bus.paused() == []


def test_an_agent_is_told_something_and_the_receipt_is_seen(
    eve: Person, bus: agentbus.Bus, connect: Any
) -> None:
    ada = connect("ada")
    ada.here(doing="the parser")
    list(ada.inbox())
    page = eve.sees("/agents").page
    page.get_by_role("link", name="ada", exact=True).click()

    assert "ada" in confirmed(page, "Tell", text="Is the parser done?")
    received = page.locator("#received")
    received.get_by_text("Is the parser done?").wait_for()
    assert received.locator("td", has_text="sent").count() == 1

    (message,) = ada.inbox()
    assert (message.agent_id, message.ask) == ("human:eve", True)
    received.get_by_text("read", exact=True).wait_for()
    ada.reply(message.id, "yes")
    received.get_by_text("answered", exact=True).wait_for()


def test_a_person_does_all_of_it_by_the_keyboard(eve: Person, bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    page = eve.sees("/queue?name=mail").page

    def tab_to(text: str) -> None:
        for _ in range(100):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.innerText") == text:
                return
        raise AssertionError(f"Tab does not lead to {text!r}")

    tab_to("Pause…")
    page.keyboard.press("Enter")
    tab_to("Pause the queue")
    page.keyboard.press("Enter")
    page.locator(".notice.done").wait_for()

    assert len(bus.paused()) == 1


def test_without_write_there_is_no_button(
    opened: Any, real_url: str, project: str, bus: agentbus.Bus, tmp_path: Any
) -> None:
    from tests.browser.conftest import Person
    from tests.browser.serving import Web

    bus.queue("mail").publish_many([1, 2])
    bus.queue("mail").fetch(count=1)[0].bury("broken")
    with Web(tmp_path / "read", real_url, project) as web:
        reader = Person(opened, web)
        for path in ("/", "/queue?name=mail", "/letters", "/letters-error?error=broken"):
            page = reader.sees(path).page
            forms = page.locator("form[method=post]:not([action$='leave']), summary:has-text('…')")
            assert forms.count() == 0
        assert reader.close() == []
