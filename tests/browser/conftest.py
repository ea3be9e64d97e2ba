"""The browser, the demo project with its dashboard, and a dashboard for each test's own project."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser import chromium
from tests.browser.chromium import Watched
from tests.browser.serving import Web
from tests.screenshots.demo import Demo, demo

if TYPE_CHECKING:
    import pathlib

    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def opened() -> Iterator[Browser]:
    """The browser of all these tests. Those after them could start no event loop while it is open."""
    with chromium.browser() as found:
        yield found


class Person:
    """Somebody with a browser, who was let into a dashboard."""

    def __init__(self, opened: Browser, web: Web) -> None:
        self._opened = opened
        self.web = web
        self._state = chromium.let_in(opened, web.url)
        self._pages: list[Watched] = []

    def sees(self, path: str = "/", width: int = 1280, theme: str = "light") -> Watched:
        """Open a page in a window of its own."""
        page = chromium.context(self._opened, width, theme, self._state).new_page()
        self._pages.append(Watched(page))
        page.goto(self.web.base + path)
        return self._pages[-1]

    def close(self) -> list[str]:
        """Close all windows, and return what went wrong in them."""
        found = [one for page in self._pages for one in page.trouble]
        for one in self._pages:
            one.page.context.close()
        self._pages = []
        return found


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """The demo project, by the machine's clock."""
    with demo(tmp_path_factory.mktemp("shop"), end=time.time()) as project:
        yield project


@pytest.fixture(scope="package")
def shop_web(shop: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The dashboard of the demo project, with buttons."""
    home = tmp_path_factory.mktemp("shop-web")
    with Web(home, shop.url, shop.name, "--write", "--as", "maria") as web:
        yield web


@pytest.fixture(scope="package")
def _shopper(opened: Browser, shop_web: Web) -> Person:
    return Person(opened, shop_web)


@pytest.fixture
def shopper(_shopper: Person) -> Iterator[Person]:
    """A person who looks at the demo project; nothing may go wrong in the pages."""
    yield _shopper
    assert _shopper.close() == []


@pytest.fixture
def web(real_url: str, project: str, tmp_path: pathlib.Path) -> Iterator[Web]:
    """A dashboard of the test's own project, with buttons."""
    with Web(tmp_path / "web", real_url, project, "--write", "--as", "eve") as found:
        yield found


@pytest.fixture
def eve(opened: Browser, web: Web) -> Iterator[Person]:
    """A person who looks at the test's own project; nothing may go wrong in the pages."""
    found = Person(opened, web)
    yield found
    assert found.close() == []


@pytest.fixture
def url(real_url: str) -> str:
    """The URL of a real server: the dashboard is a process of its own."""
    return real_url
