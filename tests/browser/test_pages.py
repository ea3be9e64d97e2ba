"""Every page of the dashboard, on a laptop and on a phone, light and dark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser import axe
from tests.browser.chromium import SIZES, THEMES
from tests.screenshots.pages import NAMES, looks

if TYPE_CHECKING:
    from tests.browser.conftest import Person
    from tests.screenshots.demo import Demo

pytestmark = pytest.mark.slow

each_page = pytest.mark.parametrize("name", NAMES)
each_width = pytest.mark.parametrize("width", SIZES)
each_theme = pytest.mark.parametrize("theme", THEMES)


def test_each_page_of_the_application_is_looked_at(shop: Demo) -> None:
    from agentbus.dashboard.web.pages import PAGES

    paths = {path.partition("?")[0] for path in looks(shop).values()}

    assert {page.path for page in PAGES} == paths
    assert tuple(looks(shop)) == NAMES


@each_theme
@each_width
@each_page
def test_a_page_opens_without_errors_and_fits_its_window(
    shopper: Person, shop: Demo, name: str, width: int, theme: str
) -> None:
    shown = shopper.sees(looks(shop)[name], width, theme)
    shown.live()

    assert shown.page.locator("[role=alert]:visible").all_inner_texts() == []
    assert shown.overflow() == []
    assert width < 1000 or shown.cut() == []
    assert shown.trouble == []


@each_theme
@each_width
@each_page
def test_a_page_has_no_barrier(
    shopper: Person, shop: Demo, name: str, width: int, theme: str
) -> None:
    shown = shopper.sees(looks(shop)[name], width, theme)
    shown.live()

    assert axe.violations(shown.page) == []


@each_page
def test_a_page_is_reached_and_left_by_the_keyboard_alone(
    shopper: Person, shop: Demo, name: str
) -> None:
    shown = shopper.sees(looks(shop)[name])
    shown.live()
    page = shown.page

    # The first stop is the link past the navigation; it is seen, and leads to the content.
    page.keyboard.press("Tab")
    skip = page.locator(":focus")
    assert skip.inner_text() == "Skip to the content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"

    # Every stop is visible, and shows that it has the focus.
    stops = 0
    page.keyboard.press("Shift+Tab")
    for _ in range(400):
        page.keyboard.press("Tab")
        where = page.evaluate(_FOCUSED)
        if where is None:
            break
        stops += 1
        assert where["seen"], where["html"]
        assert where["marked"], where["html"]
    assert stops > 0 or page.locator("main a, main button, main summary").count() == 0


_FOCUSED = """() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const box = one.getBoundingClientRect(), style = getComputedStyle(one);
  return {
    html: one.outerHTML.slice(0, 160),
    seen: box.width > 0 && box.height > 0,
    marked: one.id === 'main' || (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1),
  };
}"""


def test_a_page_works_without_its_script(opened, shopper: Person) -> None:
    state = shopper._state
    context = opened.new_context(java_script_enabled=False, storage_state=state)
    page = context.new_page()
    try:
        page.goto(shopper.web.base + "/")
        page.get_by_role("navigation", name="Pages").get_by_role("link", name="Queues").click()
        page.get_by_label("Name").fill("mail")
        page.get_by_role("button", name="Filter").click()
        page.get_by_role("link", name="mail", exact=True).first.click()

        assert "Queue mail" in page.locator("h1").inner_text()
    finally:
        context.close()
