"""The page stands alone, stays small, and takes names for data, whatever they hold."""

from __future__ import annotations

import errno
import html.parser
import os
import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentbus.errors import AgentBusError
from agentbus.pipeline.reports import page, svg, wording
from agentbus.pipeline.reports.report import Chart, Span
from agentbus.pipeline.reports.running import Filled, LostEntries, Outcome, Result, Summary
from tests.pipeline.talk import HOSTILE, START

VOID = {"meta", "br", "link", "img", "input"}


class Reader(html.parser.HTMLParser):
    """Checks that elements are closed in order, and keeps what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def filled(rows: list[dict[str, Any]], chart: Chart | None = None, name: str = "agents") -> Filled:
    return Filled("activity", name, "By agent", tuple(rows[0]) if rows else (), rows, 0, chart)


def outcome(*tables: Filled, lost: int = 0, empty: str | None = None) -> Outcome:
    losses = (LostEntries("q:<b>", lost, START),) if lost else ()
    span = Span(START, START + timedelta(hours=5))
    summary = Summary({"channel": 7, "queue": 3}, 2, span, lost, losses)
    result = Result("activity", "Activity", "Who said what.", tables, empty)
    return Outcome(summary, (result,), 1.5)


def agents(*names: str) -> list[dict[str, Any]]:
    return [
        {"agent": name, "messages": 3 + at, "took_ms": 1.5 * at} for at, name in enumerate(names)
    ]


CHARTS = [
    Chart("bar", "agent", "messages"),
    Chart("bar", "agent", ("messages", "took_ms"), unit="ms"),
    Chart("stacked", "agent", ("messages", "took_ms")),
    Chart("heat", "agent", "messages", series="agent"),
    Chart("bar", "agent", "messages", series="agent"),
    None,
]


@pytest.mark.parametrize("chart", CHARTS, ids=repr)
def test_names_are_data_in_every_table_and_chart(chart):
    rows = agents(*HOSTILE, "x" * 256, "</script><svg/onload=x>")

    text = page.render(outcome(filled(rows, chart), lost=3), source=HOSTILE[0])

    got = read(text)
    assert got.tags.count("script") == 1
    assert not {name for name, _ in got.attributes if name.startswith("on")}
    assert "\u202e" not in text
    # A name is there as it is written, unless it was cut.
    assert HOSTILE[1] in "".join(got.text)


def test_no_script_may_run_but_the_pages_own():
    text = page.render(outcome(filled(agents("ada"))), source="bus")

    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert " style=" not in text


def test_nothing_is_fetched_from_elsewhere():
    text = page.render(
        outcome(*(filled(agents("ada", "bob"), one) for one in CHARTS)), source="bus"
    )

    got = read(text)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    assert not {"link", "img", "iframe", "object", "embed"} & set(got.tags)
    links = [value for name, value in got.attributes if name in ("href", "src")]
    assert all(value and value.startswith("#") for value in links)


def test_the_page_stays_below_its_limit_whatever_the_rows():
    wide = [
        {f"{column}{at}": "<" * 256 for at in range(12)} | {"n": row}
        for row, column in enumerate("c" * 100)
    ]
    tables = [filled(wide, Chart("bar", "c0", "n"), f"t{at}") for at in range(30)]

    text = page.render(outcome(*tables), source="bus")

    assert len(text.encode()) <= page.LIMIT
    assert "100 rows" in text


def test_what_was_lost_is_said_first_and_a_report_without_rows_in_a_sentence():
    text = page.render(outcome(filled([]), lost=17, empty="Nobody spoke."), source="bus")

    words = "".join(read(text).text)
    assert "17 entries were gone before they could be archived" in words
    assert "q:<b>: 17, up to 2025-11-20 07:00" in words
    assert words.index("17 entries") < words.index("Nobody spoke.")


def test_charts_of_many_moments_stay_readable_and_small():
    rows = [
        {"time": START + timedelta(hours=at), "agent": f"a{at % 30}", "entries": at % 7}
        for at in range(5000)
    ]

    for kind in ("line", "stacked", "heat"):
        drawn = svg.draw(filled(rows, Chart(kind, "time", "entries", series="agent")))
        ET.fromstring(re.search(r"<svg.*</svg>", drawn, re.DOTALL)[0])
        assert len(drawn) < 500_000


def test_a_line_breaks_where_a_moment_is_missing():
    hours = (0, 1, 2, 5, 6)
    rows = [{"time": START + timedelta(hours=at), "p50_ms": 5.0} for at in hours]

    drawn = svg.draw(filled(rows, Chart("line", "time", "p50_ms", unit="ms")))

    path = re.search(r'class="l0" d="([^"]+)"', drawn)
    assert path
    assert path[1].count("M") == 2


def test_figures_without_a_value_are_not_drawn_as_nought():
    rows = [{"time": START, "p50_ms": None}, {"time": START, "p50_ms": float("nan")}]

    assert svg.draw(filled(rows, Chart("line", "time", "p50_ms"))) == ""


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("took_ms", 0, "0 ms"),
        ("took_ms", 1234.5, "1.2 s"),
        ("took_ms", 59_999, "1 min"),
        ("took_ms", 3_599_999, "1 h"),
        ("took_ms", 90_061_000, "1 d 1 h"),
        ("bytes", 1500, "1.5 kB"),
        ("dead_share", 0.125, "12.5 %"),
        ("rate", 0.25, "0.250/s"),
        ("messages", 1234567, "1,234,567"),
        ("messages", None, wording.NOTHING),
        ("p50_ms", float("nan"), wording.NOTHING),
        ("time", datetime(2025, 11, 20, 7, tzinfo=UTC), "2025-11-20 07:00"),
        ("agent", "a\nb", "a\\nb"),
    ],
)
def test_figures_are_written_in_their_units(column, value, text):
    assert wording.cell(column, value) == text


# -- writing -----------------------------------------------------------------------------------------


def test_a_page_replaces_the_one_before_and_others_may_read_it(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")

    page.write("new", path)

    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_page_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("old")

    def full(_number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AgentBusError, match="No space left on device"):
        page.write("new", path)

    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_directory_that_is_not_there_is_told(tmp_path):
    with pytest.raises(AgentBusError, match="could not be written"):
        page.write("new", tmp_path / "nowhere" / "page.html")
