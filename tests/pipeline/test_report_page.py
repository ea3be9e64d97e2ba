"""The page stands alone, stays small, and takes names for data, whatever they hold."""

from __future__ import annotations

import errno
import html
import html.parser
import itertools
import os
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentbus.errors import AgentBusError
from agentbus.pipeline.reports import axes, page, svg, wording
from agentbus.pipeline.reports.report import Chart
from agentbus.pipeline.reports.running import Filled, LostEntries, Outcome, Result, Summary
from agentbus.pipeline.reports.span import Span
from agentbus.pipeline.rows import schema
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


def filled(
    rows: list[dict[str, Any]],
    chart: Chart | None = None,
    name: str = "agents",
    span: Span = Span(),  # noqa: B008 (a value)
) -> Filled:
    columns = tuple(rows[0]) if rows else ()
    return Filled("activity", name, "By agent", columns, rows, 0, chart, None, span)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def texts(drawn: str, kind: str) -> list[tuple[float, float, str]]:
    """Return the texts of a class in a chart: x, y, and what they say."""
    found = re.findall(rf'<text class="{kind}" x="([^"]+)" y="([^"]+)">([^<]*)', drawn)
    return [(float(x), float(y), html.unescape(text)) for x, y, text in found]


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


def test_a_line_breaks_where_a_moment_is_missing_however_few_there_are():
    """The distance between two moments says nothing of how long one lasts."""
    rows = [{"time": at(600 * n), "n": 5} for n in range(6)]

    drawn = svg.draw(filled(rows, Chart("line", "time", "n"), span=Span(at(0), at(3000))))

    assert 'class="l0"' not in drawn
    assert drawn.count("a3 3 0 1 0 6 0") == 6


@pytest.mark.parametrize("kind", ["stacked", "line"])
def test_the_axis_has_the_whole_span_and_no_more(kind):
    rows = [{"time": at(3 + n), "n": 1 + n} for n in range(2)]

    drawn = svg.draw(filled(rows, Chart(kind, "time", "n"), span=Span(at(0.4), at(15.9))))

    below = texts(drawn, "a m")
    assert [text for *_, text in below] == [
        f"07:00:{n:02}" for n in (0, 2, 4, 6, 8, 10, 12, 14, 16)
    ]
    # Sixteen seconds, each as wide as the others.
    assert [round((x - below[0][0]) / (below[-1][0] - below[0][0]) * 16) for x, *_ in below] == [
        *range(0, 17, 2)
    ]


def test_the_only_moment_is_a_dot_or_a_bar_in_a_second_of_its_own():
    rows = [{"time": START, "n": 4}]
    span = Span(START, START)

    line, bar = (
        svg.draw(filled(rows, Chart(kind, "time", "n"), span=span)) for kind in ("line", "stacked")
    )

    for drawn in (line, bar):
        assert [text for *_, text in texts(drawn, "a m")] == ["07:00:00", "07:00:01"]
    assert "a3 3 0 1 0 6 0" in line
    assert [text for *_, text in texts(bar, "v m")] == ["4"]


@pytest.mark.parametrize(
    ("most", "written"),
    [
        (0.9, ["0", "0.25 ms", "0.5 ms", "0.75 ms", "1 ms"]),
        (2_100, ["0", "1 s", "2 s", "3 s"]),
        (90_000, ["0", "25 s", "50 s", "75 s", "100 s"]),
        (7_100_000, ["0", "50 min", "100 min", "150 min"]),
    ],
)
def test_an_axis_is_written_in_one_unit(most, written):
    assert [text for _, text in axes.ticks(0, most, "ms")] == written


def test_figures_below_nought_have_their_place_on_the_axis():
    assert [value for value, _ in axes.ticks(-6.2, 12.5, None)] == [-10, -5, 0, 5, 10, 15]


def test_what_is_less_than_usual_is_drawn_below_nought():
    rows = [{"time": at(0), "name": name, "score": n} for name, n in (("a", 8.0), ("b", -4.0))]

    drawn = svg.draw(filled(rows, Chart("line", "time", "score", series="name", bucket="hour")))

    heights = {text: y for _, y, text in texts(drawn, "a e")}
    dots = [float(y) + 4 for y in re.findall(r'class="s\d" d="M[^ ]+ ([^a]+)a', drawn)]
    assert dots == [heights["8"], heights["-4"]]


@pytest.mark.parametrize("kind", ["bar", "stacked"])
def test_each_bar_has_its_figure_as_the_table_writes_it(kind):
    row = {"a_ms": 930.0, "b_ms": 150_000.0, "c_ms": 0.0554}
    rows = [{"agent": name, **row} for name in ("x", "y")]
    chart = Chart(kind, "agent", (*row,), unit="ms")

    written = [text for *_, text in texts(svg.draw(filled(rows, chart)), "v")]

    cells = [wording.cell(name, value) for name, value in row.items()]
    assert written == 2 * (cells if kind == "bar" else ["2 min 31 s"])


def test_the_figure_over_a_bar_is_written_as_in_the_table():
    rows = [{"time": at(0), "took_ms": 930.0}, {"time": at(60), "took_ms": 150_000.0}]
    span = Span(at(0), at(600))

    drawn = svg.draw(filled(rows, Chart("bar", "time", "took_ms", unit="ms"), span=span))

    assert [text for *_, text in texts(drawn, "v m")] == ["930 ms", "2 min 30 s"]


def test_what_is_drawn_apart_has_axes_of_its_own():
    times = {"running": (10.0, 20.0), "waiting": (100_000.0, 200_000.0)}
    rows = [
        {"queue": queue, "what": what, "p50_ms": p50, "p99_ms": p99}
        for what, (p50, p99) in times.items()
        for queue in ("mail", "images")
    ]
    chart = Chart("bar", "queue", ("p50_ms", "p99_ms"), unit="ms", apart="what")

    drawn = svg.draw(filled(rows, chart))

    assert re.findall(r"<h4>(\w+)</h4>|<li class=\"k\d\">(\w+)</li>", drawn) == [
        *(("running", ""), ("", "p50"), ("", "p99"), ("waiting", ""), ("", "p50"), ("", "p99")),
    ]
    widths = [float(wide) for wide in re.findall(r'class="s1" d="M[^h]+h([\d.]+)', drawn)]
    assert min(widths) > 200


def test_what_is_too_short_to_be_measured_is_no_figure_in_table_and_chart():
    rows = [{"queue": "fast", "p50_ms": None}, {"queue": "slow", "p50_ms": 8.0}]
    chart = Chart("bar", "queue", "p50_ms", unit="ms")
    table = replace(filled(rows, chart, "timings"), unmeasured="< 1 ms")

    text = page.render(outcome(table), source="bus")

    assert [text for *_, text in texts(svg.draw(table), "v")] == ["< 1 ms", "8 ms"]
    # It is sorted as the smallest.
    assert '<td class=n data-v="0">&lt; 1 ms</td>' in text


def test_a_name_that_is_missing_is_told_in_words():
    rows = [{"queue": "mail", "group": group, "lag": 3} for group in (None, "audit")]
    charts = [
        Chart("bar", "queue", "lag", series="group"),
        Chart("bar", "group", "lag"),
        Chart("bar", "queue", ("lag",), detail="group"),
        Chart("heat", "queue", "lag", series="group"),
    ]

    drawn = [svg.draw(filled(rows, chart)) for chart in charts]

    assert not [text for text in drawn if "none" in text.lower()]
    assert all("no group" in text for text in (drawn[0], drawn[1], drawn[3]))
    assert [text for *_, text in texts(drawn[2], "e")] == ["mail", "mail audit"]


def test_all_series_that_a_chart_omits_are_counted():
    rows = [{"queue": "q", "group": f"g{n}", "a": 1, "b": 2} for n in range(4)]

    got = svg.limits(filled(rows, Chart("bar", "queue", ("a", "b"), series="group")))

    assert got == "The chart shows the 6 greatest of 8."


def test_a_note_on_a_chart_is_left_out_with_the_chart():
    chart = Chart("bar", "agent", "n", note="The chart shows tasks.")

    for number, there in ((0, False), (1, True)):
        text = page.render(outcome(filled([{"agent": "a", "n": number}], chart)), source="bus")
        assert ("The chart shows tasks." in text) is there


@pytest.mark.parametrize(("tiles", "columns"), [(6, 6), (7, 4), (10, 5), (11, 6)])
def test_no_tile_of_the_head_stands_alone_in_its_row(tiles, columns):
    kinds = [kind for kind in schema.KINDS if kind != schema.GAP][: tiles - 4]
    one = outcome(filled([]))
    summary = replace(one.summary, rows=dict.fromkeys(kinds, 1))

    text = page.render(replace(one, summary=summary), source="bus")

    assert text.count('<div class="tile">') == tiles
    assert f'<div class="tiles c{columns}">' in text


def test_labels_of_neighbours_do_not_overlap():
    span = Span(at(0), at(170 * 60))
    for step, kind in ((1, "stacked"), (7, "stacked"), (100, "line"), (1, "heat"), (170, "heat")):
        rows = [{"time": at(60 * n), "agent": "a", "n": 10**9 + n} for n in range(0, 171, step)]
        chart = Chart(kind, "time", "n", series="agent")
        drawn = svg.draw(filled(rows, chart, span=span if step < 170 else Span(at(0), at(0))))
        for one in ("a m", "v m", "a e"):
            found = sorted(texts(drawn, one))
            for (x, y, text), (x2, y2, text2) in itertools.pairwise(found):
                room = (axes.pixels(text) + axes.pixels(text2)) / 2
                assert x2 - x >= room or abs(y2 - y) >= 11, (step, kind, text, text2)


def test_names_fit_before_their_bars():
    names = ["root@a-host-with-a-long-name.example.com~19663", "W" * 40, "\u65e5" * 40, "short"]
    rows = [{"agent": name, "n": 1} for name in names]

    drawn = svg.draw(filled(rows, Chart("bar", "agent", "n")))

    labels = [text for *_, text in texts(drawn, "e")]
    assert labels[-1] == "short"
    assert all(label.endswith("…") for label in labels[:-1])
    assert all(axes.pixels(label) <= 142 for label in labels)


def test_the_project_is_the_title():
    text = page.render(outcome(filled(agents("ada"))), source="/var/bus", project="shop-<ab12>")

    assert "<h1>shop-&lt;ab12&gt;</h1>" in text
    assert "<title>AgentBus: shop-&lt;ab12&gt;</title>" in text
    assert "/var/bus" in text


def test_figures_without_a_value_are_not_drawn_as_nought():
    rows = [{"time": START, "p50_ms": None}, {"time": START, "p50_ms": float("nan")}]

    assert svg.draw(filled(rows, Chart("line", "time", "p50_ms"))) == ""


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("took_ms", 0, "0 ms"),
        ("took_ms", 0.0431, "0.043 ms"),
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
