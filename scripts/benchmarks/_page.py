"""The page of all figures: measured in one go, kept as data, and written with the benchmarks' own words.

What a figure means stands in the docstrings of what measures it, so it survives every run; `write` makes
the page and its pictures anew from the data that lie beside them.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime
import importlib
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from scripts.benchmarks import _load
from scripts.benchmarks._figures import FULL, Figure, Row
from scripts.benchmarks._plot import shown, svg, times
from tests.servers import Server

# The benchmarks, in the order of the page.
NAMES = (
    *(
        "cli_latency",
        "agents",
        "sessions",
        "leases",
        "wakeup",
        "pressure",
        "memory",
        "queue",
        "peers",
    ),
    *("typed", "task_options", "attempts", "processes"),
    *("cliffs", "dashboard", "web", "router", "events", "pipeline", "replay", "sink", "reports"),
    "capacity",
)
SIZES = ("quick", "page", FULL)
_TITLES = {
    "cli_latency": "Shell verbs",
    "agents": "Coding agents",
    "sessions": "Many sessions at once",
    "leases": "Leases",
    "wakeup": "Wake-up latency",
    "pressure": "Other clients beside a verb",
    "memory": "Memory of the channel",
    "queue": "Queues",
    "queue_latency": "Latency from publish to handler",
    "queue_growth": "Deep queues and many queues",
    "peers": "Other task queues",
    "processes": "Processes of one worker",
    "typed": "Typed tasks",
    "task_options": "Options of a task",
    "attempts": "The log of attempts",
    "cliffs": "What each path costs",
    "dashboard": "Dashboards",
    "web": "The dashboard in browsers",
    "router": "Routing",
    "events": "Events",
    "pipeline": "The archiver",
    "replay": "Replay",
    "sink": "The Spark sink",
    "reports": "Reports",
    "capacity": "Capacity",
}
_PACKAGES = {
    "redis": "redis-py",
    "sqlalchemy": "SQLAlchemy",
    **{name: name for name in ("hiredis", "orjson", "psycopg", "pyspark", "pyarrow")},
}
_DATA = "figures.json"
_COMMAND = re.compile(r"\s*python -m ")
_HERE = pathlib.Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Run:
    """What one benchmark measured, and how many seconds it took in all.

    `apart` says when and how it was measured, if not together with the others. `busy` is the share of the
    processors that was used right before it, from 0 to 1.
    """

    benchmark: str
    seconds: float
    figures: tuple[Figure, ...]
    apart: str = ""
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """All that one go measured. `failed` names benchmarks that came to no figures."""

    date: str
    size: str
    software: dict[str, str]
    runs: tuple[Run, ...]
    failed: tuple[str, ...] = ()

    def dump(self) -> str:
        """Return the data as JSON, a line for each figure's row, so that a change can be read."""
        text = json.dumps(_rounded(dataclasses.asdict(self)), indent=1, ensure_ascii=False)
        return re.sub(r"\{[^{}]*\{[^{}]*\}[^{}]*\}", _in_a_line, text) + "\n"

    @classmethod
    def load(cls, text: str) -> Page:
        """Return what `dump` wrote."""
        found = json.loads(text)
        runs = (
            Run(**{**run, "figures": tuple(map(Figure.load, run["figures"]))})
            for run in found["runs"]
        )
        return cls(**{**found, "runs": tuple(runs), "failed": tuple(found["failed"])})


def _rounded(found: Any) -> Any:
    """Leave six digits of each figure."""
    if isinstance(found, dict):
        return {name: _rounded(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [_rounded(value) for value in found]
    return float(f"{found:.6g}") if isinstance(found, float) else found


def _in_a_line(found: re.Match[str]) -> str:
    return re.sub(r"\s*\n\s*", " ", found[0])


# -- measuring --


def measured(names: Sequence[str], size: str) -> Page:
    """Run the benchmarks one after the other, each in its own process, and return what they found."""
    runs, failed = [], []
    for name in names:
        share = _load.busy()
        began = time.monotonic()
        figures = one(name, size)
        took = time.monotonic() - began
        if figures is None:
            failed.append(name)
        else:
            runs.append(Run(name, round(took, 1), figures, busy=round(share, 3)))
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Page(date, size, software(names), tuple(runs), tuple(failed))


def one(name: str, size: str) -> tuple[Figure, ...] | None:
    """Run one benchmark, which prints its tables, and return its figures; none if it fails."""
    with tempfile.TemporaryDirectory(prefix="agentbus-figures-") as folder:
        path = pathlib.Path(folder) / _DATA
        words = [sys.executable, "-m", f"scripts.benchmarks.{name}", "--size", size]
        done = subprocess.run([*words, "--figures", str(path)], check=False)
        if done.returncode:
            return None
        return tuple(Figure.load(found) for found in json.loads(path.read_text()))


def software(names: Iterable[str]) -> dict[str, str]:
    """Return what was measured, and on what."""
    with (
        tempfile.TemporaryDirectory(prefix="ab-") as folder,
        Server(pathlib.Path(folder)) as server,
    ):
        lines = server.ask("INFO").decode().split()
    about = dict(line.split(":", 1) for line in lines if ":" in line)
    found = {
        "Python": platform.python_version(),
        "Valkey": about.get("valkey_version") or about["redis_version"],
        **{name: version(package) for package, name in _PACKAGES.items()},
    }
    if "events" in names:
        found["PostgreSQL"] = importlib.import_module("scripts.benchmarks.events").software()
    return found | {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
    }


def updated(page: Page, other: Page) -> Page:
    """Return a page with the runs of another one in place of its own; they say when they were made."""
    busy = max(run.busy or 0 for run in other.runs)
    loaded = (
        f", on a machine that was {busy:.0%} busy with other work" if busy > _load.QUIET else ""
    )
    about = ", ".join(
        (
            f"{other.software['cores']} cores",
            *(f"{name} {other.software[name]}" for name in ("Python", "Valkey")),
        )
    )
    apart = f"apart from the others, on {other.date}, on {about}{loaded}"
    new = {run.benchmark: dataclasses.replace(run, apart=apart) for run in other.runs}
    runs = {run.benchmark: run for run in page.runs} | new
    return dataclasses.replace(
        page,
        runs=tuple(runs[name] for name in NAMES if name in runs),
        failed=tuple(name for name in page.failed if name not in new),
    )


# -- writing --


def save(page: Page, path: pathlib.Path) -> None:
    """Keep the data beside the page, and write both the page and its pictures."""
    folder = _folder(path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _DATA).write_text(page.dump())
    write(path)


def loaded(path: pathlib.Path) -> Page:
    """Return the data beside a page."""
    return Page.load((_folder(path) / _DATA).read_text())


def write(path: pathlib.Path) -> None:
    """Write the page and its pictures from the data beside it. Pictures that it has no more are removed."""
    folder = _folder(path)
    page = loaded(path)
    pictures = {f"{figure.name}.svg": svg(figure) for run in page.runs for figure in run.figures}
    for old in folder.glob("*.svg"):
        if old.name not in pictures:
            old.unlink()
    for name, picture in pictures.items():
        (folder / name).write_text(picture)
    path.write_text(text(page, folder.name))


def _folder(path: pathlib.Path) -> pathlib.Path:
    return path.with_suffix("")


def text(page: Page, folder: str) -> str:
    """Return the page in Markdown, its pictures in the folder."""
    return "\n".join(_lines(page, folder)).rstrip() + "\n"


def _lines(page: Page, folder: str) -> Iterator[str]:
    title, _, rest = docstring("__init__").partition("\n")
    yield f"# {title.rstrip('.').partition(',')[0]}"
    yield "\n<!-- Generated by scripts/bench --page from the docstrings of scripts/benchmarks. -->\n"
    if page.size == "quick":
        yield (
            "**These figures are worth nothing**: they were measured with `--quick`, in a few rounds of a"
            " few tasks, to check that everything runs.\n"
        )
    for name in page.failed:
        yield f"**`{name}` failed and is missing here.**\n"
    yield f"{rest.strip()}\n"
    about = dict(page.software)
    where = f"{about.pop('cores')} cores, {about.pop('system')}"
    named = ", ".join(f"{name} {number}" for name, number in about.items())
    size = "" if page.size == "page" else f" --size {page.size}"
    others = ", but for the sections that say otherwise" if any(r.apart for r in page.runs) else ""
    yield f"Measured on {page.date}, in one run{others}, on {where}: {named}.{_busy(page)}\n"
    yield f"```text\nscripts/bench{size} --page docs/explanation/performance.md\n```\n"
    for run in page.runs:
        yield from _run(run, page.size, folder)
    yield "## Duration of the run\n"
    yield "| benchmark | seconds, preparation included |\n|---|---|"
    for run in page.runs:
        yield f"| `{run.benchmark}` | {run.seconds:,.0f} |"


def _busy(page: Page) -> str:
    shares = [run.busy for run in page.runs if run.busy is not None]
    if not shares:
        return ""
    loaded = "**The machine was loaded.** " if max(shares) > _load.QUIET else ""
    return f" {loaded}Right before each benchmark, at most {max(shares):.0%} of the processors was in use."


def _run(run: Run, size: str, folder: str) -> Iterator[str]:
    sections: dict[str, list[Figure]] = {}
    for figure in run.figures:
        sections.setdefault(figure.source.partition(".")[0], []).append(figure)
    for module, figures in sections.items():
        yield f"## {_TITLES[module]}\n"
        yield _prose(module)
        if run.apart:
            yield f"Measured {run.apart}.\n"
        yield f"Repeat it: `scripts/bench {run.benchmark} --size {size}`.\n"
        told: set[str] = set()
        for figure in figures:
            yield f"### {figure.title}\n"
            if figure.source not in told:
                told.add(figure.source)
                yield _prose(*figure.source.split("."))
            yield from _table(figure)
            yield f"\n![{figure.title}]({folder}/{figure.name}.svg)\n"


def docstring(module: str, function: str = "") -> str:
    """Return what a benchmark, or a function of it, says of itself. Nothing is imported, nor need it be."""
    found: ast.AST = ast.parse((_HERE / f"{module}.py").read_text())
    if function:
        found = next(
            each
            for each in ast.walk(found)
            if isinstance(each, ast.FunctionDef) and each.name == function
        )
    return ast.get_docstring(found) or ""  # type: ignore[arg-type]


def _prose(module: str, function: str = "") -> str:
    """Return a docstring without its command lines."""
    paragraphs = re.split(r"\n\n+", docstring(module, function))
    return "\n\n".join(each for each in paragraphs if not _COMMAND.match(each)) + "\n"


def _table(figure: Figure) -> Iterator[str]:
    wanted = any(row.wanted for row in figure.rows)
    yield f"{figure.measured[:1].upper()}{figure.measured[1:]}.\n"
    head = ["", figure.unit, "lowest", "highest", "ratio", *(["wanted"] if wanted else [])]
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in figure.rows:
        yield f"| {' | '.join([*_cells(row), *([row.wanted] if wanted else [])])} |"


def _cells(row: Row) -> Iterator[str]:
    group = f"{row.group}: " if row.group and row.group != row.label else ""
    yield f"{group}{row.label}"
    spread = row.spread
    yield f"**{shown(spread.middle)}**" if row.kind == "ours" else shown(spread.middle)
    for end in (spread.low, spread.high):
        yield shown(end) if spread.high > spread.low else ""
    yield f"{times(row.ratio)} x {row.against}" if row.ratio is not None else ""
