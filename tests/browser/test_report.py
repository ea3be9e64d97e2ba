"""The page of reports, on a laptop and on a phone, light and dark."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser import axe, chromium
from tests.browser.chromium import SIZES, THEMES, Watched
from tests.pipeline.talk import START

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

# Words of cells and heads that are on more than one line.
_BROKEN = r"""() => [...document.querySelectorAll('th, td')].flatMap(cell => {
  const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), found = [];
  for (let node; node = walk.nextNode();) {
    for (const word of node.data.matchAll(/[^\s]+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
      if (lines.size > 1) found.push(word[0]);
    }
  }
  return found;
})"""
# Whether tables scroll, and what lies at their edges: two covers that move with them, two shadows.
_EDGES = """() => [...document.querySelectorAll('.scroll')].map(one => [
  one.scrollWidth > one.clientWidth, getComputedStyle(one).backgroundAttachment])"""


def rows(columns: int) -> list[dict[str, Any]]:
    """Rows with the names that workers and errors have, and so many figures."""
    names = {
        "queue": "reports-nightly",
        "worker": "vm:4825:37036/560",
        "cause": "sqlalchemy.exc.OperationalError",
        "last": START,
        "latest_error": "ConnectionError: the peer at 10.0.0.7:5432 went away " * 3,
    }
    return [names | {f"figure_{n}": 1234 for n in range(columns)} for _ in range(3)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a page with a narrow table and a wide one, each with a chart."""
    from agentbus.pipeline.reports import page
    from agentbus.pipeline.reports.report import Chart
    from agentbus.pipeline.reports.running import Filled, Outcome, Result, Summary
    from agentbus.pipeline.reports.span import Span

    charts = (Chart("bar", "cause", "figure_0"), Chart("line", "last", "figure_0", "queue"))
    tables = tuple(
        Filled("tasks", f"t{n}", f"Table {n}", tuple(rows(n)[0]), rows(n), 0, chart)
        for n, chart in zip((1, 12), charts, strict=True)
    )
    span = Span(START, START + timedelta(hours=5))
    results = (Result("tasks", "Tasks", "How many.", tables, None),)
    outcome = Outcome(Summary({"queue": 3}, 2, span, 0, ()), results, 1.5)
    path: pathlib.Path = tmp_path_factory.mktemp("report") / "page.html"
    page.write(page.render(outcome, source="/var/bus"), path)
    return path.as_uri()


@pytest.fixture
def shown(opened: Browser, written: str, width: int, theme: str) -> Iterator[Watched]:
    watched = Watched(chromium.context(opened, width, theme).new_page())
    watched.page.goto(written)
    yield watched
    watched.page.context.close()


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", SIZES)
def test_tables_break_no_word_show_that_they_scroll_and_have_no_barrier(
    shown: Watched, width: int
) -> None:
    assert shown.page.evaluate(_BROKEN) == []
    edges = dict.fromkeys(map(tuple, shown.page.evaluate(_EDGES)))
    assert (True, "local, local, scroll, scroll") in edges
    # Only the tables scroll, not the page.
    assert shown.page.evaluate("document.documentElement.scrollWidth") == width
    assert axe.violations(shown.page) == []
