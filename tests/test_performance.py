"""The page of figures: what is measured becomes data, tables and pictures. Nothing is measured here."""

from __future__ import annotations

import ast
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from scripts.benchmarks import _page
from scripts.benchmarks._figures import Figure, Row, Spread
from scripts.benchmarks._page import Page, Run
from scripts.benchmarks._plot import shown, svg, times

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/explanation/performance.md"
SVG = "{http://www.w3.org/2000/svg}"

WAKING = Figure(
    name="wakeup",
    source="wakeup.waking",
    title="From <satisfy> & await",
    measured="12 rounds",
    unit="ms",
    better="less",
    rows=(
        Row("raw XREAD", Spread(0.2, 0.1, 0.3), "baseline", group="p50"),
        Row(
            "await",
            Spread(0.25, 0.2, 0.5),
            ratio=1.25,
            against="raw XREAD",
            wanted="≤ 2",
            group="p50",
        ),
        Row("raw XREAD", Spread(0.4, 0.4, 0.4), "baseline", group="p99"),
        Row(
            "await",
            Spread(0.8, 0.7, 90.0),
            ratio=2.0,
            against="raw XREAD",
            wanted="≤ 2",
            group="p99",
        ),
    ),
)
ROUTING = Figure(
    name="router",
    source="router.routing",
    title="Tasks routed",
    measured="5 rounds",
    unit="tasks/s",
    rows=(
        Row("a plain worker", Spread(200_000, 190_000, 210_000), "baseline"),
        Row("10 rules", Spread(50_000, 40_000, 60_000), ratio=0.25, against="a plain worker"),
    ),
)
FIGURES = [WAKING, ROUTING]


def made(**changes: object) -> Page:
    """Return a page as one go would find it."""
    found = {
        "date": "2026-11-21",
        "size": "page",
        "software": {"Python": "3.11.7", "Valkey": "9.1.2", "system": "Linux", "cores": "2"},
        "runs": (Run("wakeup", 12.0, (WAKING,)), Run("router", 34.5, (ROUTING,))),
    }
    return Page(**(found | changes))  # type: ignore[arg-type]


def drawn(figure: Figure) -> ET.Element:
    return ET.fromstring(svg(figure))


def words(picture: ET.Element) -> list[str]:
    return ["".join(each.itertext()) for each in picture.iter(f"{SVG}text")]


# -- figures --


def test_a_spread_is_the_median_with_the_lowest_and_the_highest_round() -> None:
    assert Spread.of([3.0, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0)


def test_a_percentile_is_that_of_all_with_those_of_ten_parts_beside_it() -> None:
    found = Spread.at(50, [float(n) for n in range(100)])

    assert found.middle == 50.0
    assert (found.low, found.high) == (4.0, 94.0)


def test_a_percentile_of_fewer_values_than_parts_is_among_them() -> None:
    assert Spread.at(99, [2.0, 1.0, 3.0]) == Spread(3.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(344325.4, "344,325"), (13.44, "13.4"), (2.634, "2.63"), (0.2094, "0.209"), (0, "0")],
)
def test_a_figure_is_written_with_three_digits(value: float, text: str) -> None:
    assert shown(value) == text


# -- pictures --


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_picture_is_well_formed_and_carries_each_figure_with_its_name(figure: Figure) -> None:
    found = words(drawn(figure))

    assert {figure.title, figure.measured} <= set(found)
    assert any(text.startswith(f"{figure.unit} (") for text in found)
    for row in figure.rows:
        assert row.label in found
        ratio = f" {times(row.ratio)} x" if row.ratio is not None else ""
        assert f"{shown(row.spread.middle)}{ratio}" in found
    assert {row.group for row in figure.rows if row.group} <= set(found)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_bars_are_as_long_as_their_figures_say(figure: Figure) -> None:
    kinds = {row.kind for row in figure.rows}
    bars = [
        float(each.get("width", ""))
        for each in drawn(figure).iter(f"{SVG}rect")
        if each.get("class") in kinds and each.get("height") == "14"
    ]

    longest = max(row.spread.middle for row in figure.rows)
    assert bars == pytest.approx(
        [row.spread.middle / longest * max(bars) for row in figure.rows], abs=0.2
    )


def test_each_group_has_its_baseline_as_a_line_at_the_end_of_its_bar() -> None:
    picture = drawn(WAKING)
    lines = [each for each in picture.iter(f"{SVG}line") if each.get("class") == "reference"]
    ends = [
        float(each.get("x", "")) + float(each.get("width", ""))
        for each in picture.iter(f"{SVG}rect")
        if each.get("class") == "baseline" and each.get("height") == "14"
    ]

    assert [float(each.get("x1", "")) for each in lines] == pytest.approx(ends, abs=0.2)


def test_a_round_that_went_far_astray_does_not_make_the_others_small() -> None:
    ticks = [float(text) for text in words(drawn(WAKING)) if re.fullmatch(r"[\d.]+", text)]

    assert max(ticks) < 2
    assert "90.0" in (drawn(WAKING).findtext(f"{SVG}desc") or "")


def test_pictures_have_a_background_of_their_own_and_colours_for_the_dark() -> None:
    style = drawn(ROUTING).findtext(f"{SVG}style") or ""
    light, dark = style.split("@media (prefers-color-scheme: dark)")

    names = set(re.findall(r"^\.(\w+) { (?:fill|stroke): ", light, re.MULTILINE))
    assert {"card", "ours", "baseline", "other", "grid", "whisker", "reference"} <= names
    assert names == set(re.findall(r"^\.(\w+) { (?:fill|stroke): ", dark, re.MULTILINE))


# -- the page --


def test_data_is_the_same_when_it_was_written_and_read() -> None:
    page = made(failed=("events",))

    assert Page.load(page.dump()) == page


def test_the_page_has_a_section_a_table_and_a_picture_for_each_figure(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "fast.md"

    _page.save(made(), path)

    text = path.read_text()
    assert "2026-11-21, in one run, on 2 cores, Linux: Python 3.11.7, Valkey 9.1.2." in text
    assert "| p99: await | **0.800** | 0.700 | 90.0 | 2.00 x raw XREAD | ≤ 2 |" in text
    assert "| p99: raw XREAD | 0.400 |  |  |  |  |" in text
    assert "| 10 rules | **50,000** | 40,000 | 60,000 | 0.25 x a plain worker |" in text
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert ET.parse(tmp_path / picture).getroot().tag == f"{SVG}svg"
    assert len(list(tmp_path.glob("fast/*.svg"))) == 2
    assert "| `router` | 34 |" in text
    assert "scripts/bench wakeup --size page" in text


@pytest.mark.parametrize(("share", "loaded"), [(0.04, False), (0.61, True)])
def test_the_page_says_how_busy_the_machine_was(share: float, loaded: bool) -> None:
    runs = (Run("wakeup", 12.0, (WAKING,), busy=0.01), Run("router", 34.5, (ROUTING,), busy=share))

    text = _page.text(made(runs=runs), "fast")

    assert f"at most {share:.0%} of the processors was in use" in text
    assert ("**The machine was loaded.**" in text) is loaded


def test_a_page_is_not_measured_while_others_use_the_processors(tmp_path: pathlib.Path) -> None:
    spin = "import os\nwhile os.getppid() == PARENT: pass".replace("PARENT", str(os.getpid()))
    others = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(os.cpu_count() or 1)]
    try:
        words = [
            sys.executable,
            "-m",
            "scripts.benchmarks",
            "wakeup",
            "--quick",
            "--page",
            tmp_path / "p.md",
        ]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        for each in others:
            each.kill()
            each.wait()

    assert done.returncode == 2
    assert "of the processors" in done.stderr
    assert "--loaded" in done.stderr
    assert not (tmp_path / "p.md").exists()


def test_what_a_benchmark_says_of_itself_stands_on_the_page_whatever_was_measured(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "fast.md"
    _page.save(made(), path)
    _page.save(made(runs=(Run("wakeup", 1.0, (WAKING,)),)), path)

    text = path.read_text()

    prose = _page.docstring("wakeup").partition("\n")[0]
    assert prose.startswith("How quickly an awaiter wakes")
    assert prose in text
    assert _page.docstring("wakeup", "waking") in text
    assert [path.name for path in tmp_path.glob("fast/*.svg")] == ["wakeup.svg"]


@pytest.mark.parametrize("module", ["memory", "queue", "events"])
def test_command_lines_of_a_docstring_are_left_out_of_the_page(module: str) -> None:
    assert "python -m scripts.benchmarks" in _page.docstring(module)
    figure = dataclasses.replace(ROUTING, source=f"{module}.main")

    text = _page.text(made(runs=(Run(module, 1.0, (figure,)),)), "fast")

    assert _page.docstring(module).partition("\n")[0] in text
    assert "python -m" not in text


@pytest.mark.parametrize(
    ("ratio", "text"), [(12.345, "12.35"), (1.0, "1.00"), (0.1, "0.10"), (0.0024, "0.0024")]
)
def test_a_small_ratio_has_two_digits(ratio: float, text: str) -> None:
    assert times(ratio) == text


def test_figures_that_were_measured_apart_replace_their_former_ones() -> None:
    later = made(date="2026-11-29", runs=(Run("router", 1.0, (WAKING,), busy=0.84),))

    page = _page.updated(made(failed=("router", "sink")), later)

    assert [(run.benchmark, run.figures) for run in page.runs] == [
        ("wakeup", (WAKING,)),
        ("router", (WAKING,)),
    ]
    assert page.runs[0].apart == ""
    assert page.runs[1].apart == (
        "apart from the others, on 2026-11-29, on 2 cores, Python 3.11.7, Valkey 9.1.2,"
        " on a machine that was 84% busy with other work"
    )
    assert page.failed == ("sink",)


def test_quick_figures_are_said_to_be_worth_nothing() -> None:
    assert "worth nothing" in _page.text(made(size="quick"), "fast").split("##")[0]
    assert "worth nothing" not in _page.text(made(), "fast")


def test_a_benchmark_that_fails_is_said_to_be_missing_and_the_others_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_page, "one", lambda name, _size: None if name == "events" else (ROUTING,))
    monkeypatch.setattr(_page, "software", lambda _names: {"system": "Linux", "cores": "2"})

    page = _page.measured(["events", "router"], "page")

    assert (page.failed, [run.benchmark for run in page.runs]) == (("events",), ["router"])
    assert "**`events` failed" in _page.text(page, "fast")


def test_the_command_writes_a_page_anew_from_its_data(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "fast.md"
    _page.save(made(), path)
    expected = path.read_text()
    path.write_text("outdated")

    command = [sys.executable, "-m", "scripts.benchmarks", "--again", str(path)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=120)

    assert path.read_text() == expected


def test_the_command_refuses_a_benchmark_that_it_does_not_know(tmp_path: pathlib.Path) -> None:
    command = [
        sys.executable,
        "-m",
        "scripts.benchmarks",
        "queues",
        "--page",
        str(tmp_path / "fast.md"),
    ]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=120
    )

    assert done.returncode == 2
    assert "no such benchmark: queues" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", _page.NAMES)
def test_every_benchmark_has_a_quick_size_and_one_for_the_page(name: str) -> None:
    lines = ast.parse((ROOT / f"scripts/benchmarks/{name}.py").read_text()).body
    (sizes,) = (
        ast.literal_eval(line.value)
        for line in lines
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "SIZES"
    )

    assert set(sizes) | {"full"} == set(_page.SIZES)


def test_the_page_in_the_documentation_is_what_its_data_and_the_benchmarks_say() -> None:
    page = Page.load((PAGE.with_suffix("") / "figures.json").read_text())

    assert PAGE.read_text() == _page.text(page, PAGE.stem), "scripts/bench --again, or restore it"
    pictures = {path.name: path.read_text() for path in PAGE.with_suffix("").glob("*.svg")}
    assert pictures == {
        f"{figure.name}.svg": svg(figure) for run in page.runs for figure in run.figures
    }
