"""Photographs the dashboard in a browser."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.browser import chromium
from tests.browser.serving import Web
from tests.screenshots import terminal
from tests.screenshots.pages import looks
from tests.servers import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.screenshots.demo import Demo

# What README and the how-tos show.
_FOR_DOCS = ("overview", "task")
_FIVE_MINUTES = ROOT / "docs/tutorial/five-minutes.md"
_PERSON = "maria"


def of_all(
    project: Demo, home: pathlib.Path, directory: pathlib.Path, only: Sequence[str] | None = None
) -> list[pathlib.Path]:
    """Make a picture of every page in each size and theme, and return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = [
        (name, width, theme)
        for name in looks(project)
        if not only or name in only
        for width in chromium.SIZES
        for theme in chromium.THEMES
    ]
    made = _pages(project, home, directory, wanted, "{name}-{width}-{theme}.png")
    if not only or "top" in only:
        made += [
            terminal.picture(project, directory / "top.svg"),
            terminal.picture(project, directory / "top-talk.svg", "2"),
            terminal.picture(project, directory / "top-80x24.svg", width=80, height=24),
        ]
    return made


def for_docs(project: Demo, home: pathlib.Path, directory: pathlib.Path) -> list[pathlib.Path]:
    """Make the pictures of the documentation, and return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = [(name, 1280, "light") for name in _FOR_DOCS]
    made = _pages(project, home, directory, wanted[:1], "{name}.png", whole=False)
    made += _pages(project, home, directory, wanted[1:], "{name}.png")
    return [
        *made,
        terminal.picture(project, directory / "top.svg", height=26),
        terminal.session(_FIVE_MINUTES, directory / "five-minutes.svg"),
    ]


def _pages(
    project: Demo,
    home: pathlib.Path,
    directory: pathlib.Path,
    wanted: Sequence[tuple[str, int, str]],
    names: str,
    *,
    whole: bool = True,
) -> list[pathlib.Path]:
    paths = looks(project)
    made = []
    clock = tuple(project.server._clocked())
    options = ("--write", "--as", _PERSON)
    with (
        Web(home / "web", project.url, project.name, *options, clock=clock) as web,
        chromium.browser() as opened,
    ):
        state = chromium.let_in(opened, web.url)
        for width, theme in dict.fromkeys((width, theme) for _, width, theme in wanted):
            context = chromium.context(opened, width, theme, state)
            page = context.new_page()
            for name in (one[0] for one in wanted if one[1:] == (width, theme)):
                path = directory / names.format(name=name, width=width, theme=theme)
                _take(page, web.base + paths[name], path, whole=whole)
                made.append(path)
            context.close()
    return made


def _take(page: Page, url: str, path: pathlib.Path, *, whole: bool) -> None:
    page.goto(url)
    page.wait_for_load_state("load")
    # The page says that it is live, once its stream is open.
    page.wait_for_timeout(1200)
    page.screenshot(path=str(path), full_page=whole, animations="disabled", caret="hide")
