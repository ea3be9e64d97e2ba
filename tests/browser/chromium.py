"""Debian's Chromium, driven by Playwright; scripts/setup browser puts both there."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Only in the nightly tier: what each change runs collects these tests, too.
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request

PROGRAM = pathlib.Path("/usr/bin/chromium")
# Without the last four it asks for Google's hosts at each start; --no-sandbox is for root.
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--force-color-profile=srgb", "--font-render-hinting=none"),
)
# The widths of a laptop and of a phone, with a height each.
SIZES = {1280: 800, 390: 844}
THEMES = ("light", "dark")
# Seconds after which what is waited for in a page does not come.
PATIENCE = 20


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Run the browser during a block."""
    from playwright.sync_api import sync_playwright

    assert PROGRAM.exists(), f"{PROGRAM} is not there: run scripts/setup browser (tests/README.md)"
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=str(PROGRAM), args=list(_FLAGS))
        try:
            yield opened
        finally:
            opened.close()


def context(
    opened: Browser, width: int = 1280, theme: str = "light", state: Any = None
) -> BrowserContext:
    """Open what a person with a screen of this width has, with the cookies of `state`, if any."""
    made = opened.new_context(
        viewport={"width": width, "height": SIZES.get(width, 800)},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="UTC",
        storage_state=state,
    )
    made.set_default_timeout(PATIENCE * 1000)
    return made


def let_in(opened: Browser, url: str, token: str = "") -> Any:
    """Open the link that the dashboard printed, enter its token if any, and return the cookies it gave."""
    first = context(opened)
    try:
        page = first.new_page()
        page.goto(url)
        if token:
            page.locator("input[name=token]").fill(token)
            page.get_by_role("button", name="Open").click()
            page.locator("h1", has_text="Overview").wait_for()
        return first.storage_state()
    finally:
        first.close()


# By how much the page is wider than its window, and what reaches beyond it without a bar to scroll by.
_OVERFLOW = """() => {
  const wide = document.documentElement.clientWidth;
  const out = [...document.querySelectorAll('body *')].filter(one => {
    if (one.closest('.scroll, nav, pre, .skip, svg, thead')) return false;
    const box = one.getBoundingClientRect();
    return box.width > 0 && box.right > wide + 1;
  });
  const more = document.documentElement.scrollWidth - wide;
  return [more, out.slice(0, 3).map(one => one.outerHTML.slice(0, 160))];
}"""

_CUT = """() => [...document.querySelectorAll('.scroll')]
  .filter(one => one.scrollWidth > one.clientWidth)
  .map(one => one.querySelector('caption').innerText)"""


class Watched:
    """A page, and what went wrong in it: errors of the console, of scripts, and of the content policy."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.trouble: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.trouble.append(f"script: {error}"))
        page.on("dialog", self._asked)
        page.on("request", self._requested)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.trouble.append(f"console: {message.text}")

    def _requested(self, request: Request) -> None:
        if not request.url.startswith("http://127.0.0.1:"):
            self.trouble.append(f"request: {request.url[:200]}")

    def _asked(self, dialog: Dialog) -> None:
        # No page of ours opens one: only a script that came with somebody's text would.
        self.trouble.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def live(self) -> None:
        """Wait until the page says that it is live."""
        self.page.locator("#connection[data-state=live]").wait_for()

    def cut(self) -> list[str]:
        """Return the headings of tables that are wider than their boxes, and so have to be scrolled."""
        found: list[str] = self.page.evaluate(_CUT)
        return found

    def overflow(self) -> list[str]:
        """Return what is wider than the window."""
        more, out = self.page.evaluate(_OVERFLOW)
        return [f"{more} px too wide", *out] if more > 0 or out else []
