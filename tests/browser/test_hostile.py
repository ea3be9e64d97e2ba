"""Sixty hostile texts in every field of every page run no script, leave nothing, and break no layout."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

import agentbus
from tests.browser.conftest import Person
from tests.browser.hostile import TEXTS
from tests.browser.serving import Web
from tests.browser.spoilt import details, spoil

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.servers import Server

pytestmark = pytest.mark.slow

_WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def spoilt_bus(valkey: Server) -> Iterator[agentbus.Bus]:
    with agentbus.connect(valkey.url, project=f"spoilt-{uuid.uuid4().hex}", agent="ada") as bus:
        spoil(bus)
        yield bus


@pytest.fixture(scope="module")
def _looker(
    opened: Browser,
    valkey: Server,
    spoilt_bus: agentbus.Bus,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Person]:
    home = tmp_path_factory.mktemp("spoilt")
    with Web(home, valkey.url, spoilt_bus.project, "--write", "--as", "eve") as web:
        yield Person(opened, web)


@pytest.fixture
def looker(_looker: Person) -> Iterator[Person]:
    yield _looker
    assert _looker.close() == []


def _lists() -> list[str]:
    from agentbus.dashboard.web.pages import PAGES

    return [page.path for page in PAGES if not page.under]


@pytest.mark.parametrize("width", _WIDTHS)
def test_lists_of_hostile_texts_are_lists_of_texts(looker: Person, width: int) -> None:
    for path in _lists():
        shown = looker.sees(path, width)
        shown.live()
        # What came by the stream is there as well.
        shown.page.wait_for_timeout(1500)

        assert shown.page.url == looker.web.base + path
        assert shown.overflow() == [], path
        assert shown.page.locator("main iframe, main script, main style, main img").count() == 0


def test_pages_about_hostile_names_are_found_and_hold(
    looker: Person, spoilt_bus: agentbus.Bus
) -> None:
    shown = looker.sees("/")
    page = shown.page
    for name, query in details(spoilt_bus):
        answer = page.goto(f"{looker.web.base}/{name}?{urlencode(query)}")

        assert answer is not None
        assert answer.status == 200, (name, query)
        assert page.locator("main iframe, main script, main style, main img").count() == 0
        assert shown.trouble == [], (name, query)
        for width in _WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            assert shown.overflow() == [], (name, query, width)


def test_a_hostile_message_that_comes_while_the_page_is_open_is_text(
    looker: Person, spoilt_bus: agentbus.Bus
) -> None:
    shown = looker.sees("/")
    shown.live()
    for text in TEXTS:
        spoilt_bus.speak(f"now {text} now", topic=text)
    spoilt_bus.speak("that is all")
    shown.page.get_by_text("that is all").wait_for()

    assert shown.overflow() == []
    assert shown.page.locator(".talk script, .talk iframe, .talk img, .talk style").count() == 0
    texts = shown.page.locator(".talk .said").evaluate_all("all => all.map(one => one.textContent)")
    assert sum(one.startswith("now <") for one in texts) > 10
