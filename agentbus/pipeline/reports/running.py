"""Runs reports: computes their tables on Spark, and brings home the few rows that are shown."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from agentbus.core.errors import UsageError
from agentbus.pipeline.reports import load
from agentbus.pipeline.reports.report import Chart, Given, Report, Span, Table
from agentbus.pipeline.rows import schema
from agentbus.pipeline.spark.errors import told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Built: TypeAlias = "list[tuple[Report, Future[Sequence[Table]]]]"
_UNKNOWN = Span()
# How many of the streams that lost entries are named.
_LOSERS = 20


@dataclass(frozen=True, slots=True)
class Filled:
    """A table whose rows were brought home: dicts of plain values, times in UTC.

    `left_out` is how many further rows it has, `span` what the rows span from which it was computed.
    """

    report: str
    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]]
    left_out: int = 0
    chart: Chart | None = None
    note: str | None = None
    span: Span = field(default_factory=Span)


@dataclass(frozen=True, slots=True)
class Result:
    """What a report came to. `empty` is a sentence if no table has a row, else None."""

    name: str
    title: str
    about: str
    tables: tuple[Filled, ...]
    empty: str | None


@dataclass(frozen=True, slots=True)
class LostEntries:
    """Entries of a stream that were gone before anybody archived them."""

    stream: str
    lost: int
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What the rows are: how many of each kind, from how many streams, when, and what is missing."""

    rows: Mapping[str, int]
    streams: int
    span: Span
    lost: int
    losses: tuple[LostEntries, ...]

    @property
    def total(self) -> int:
        """How many entries there are; gaps are none."""
        return sum(n for kind, n in self.rows.items() if kind != schema.GAP)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a run found, and how long it took in seconds."""

    summary: Summary
    results: tuple[Result, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class ReportStep:
    """How far a run is: how many of its tables are done; `doing` is the current step.

    `all` is how many there are, 0 until that is known.
    """

    doing: str
    done: int
    all: int


def run(
    names: Sequence[str],
    rows: DataFrame,
    *,
    table: str | None = None,
    alone: bool = False,
    tell: Callable[[ReportStep], None] | None = None,
) -> Outcome:
    """Compute these reports from rows of the schema, and return what they say.

    `table` names the one table that is wanted, and `alone` says that it must be one: `UsageError`,
    with the list, if there is none such, or several. Only aggregated rows leave Spark, at most `top`
    of a table. What several tables start from is computed once. Raises `AgentBusError` if Spark
    fails; nothing stays cached then either.
    """
    began = time.monotonic()
    reports = [load(name) for name in names]
    say = tell or (lambda _step: None)
    say(ReportStep("reading", 0, 0))
    given = Given()
    # To plan all tables takes Spark many seconds in one thread: so the next are planned meanwhile.
    planner = ThreadPoolExecutor(1)
    try:
        summary = _summary(rows)
        given.span = summary.span
        built = [(report, planner.submit(_build, report, rows, given)) for report in reports]
        if table is not None or alone:
            _check(built, table, alone=alone)
        done = 0
        results = []
        for report, tables in built:
            filled = []
            for one in tables.result():
                if table in (None, one.name):
                    doing = f"{report.name}: {one.title.lower()}"
                    say(ReportStep(doing, done, _number(built, table)))
                    filled.append(fill(report.name, one, given.span))
                    done += 1
            empty = None if any(got.rows for got in filled) else report.empty
            if filled:
                found = Result(report.name, report.title, report.about, tuple(filled), empty)
                results.append(found)
    finally:
        planner.shutdown(cancel_futures=True)
        given.release()
    return Outcome(summary, tuple(results), time.monotonic() - began)


def _number(built: _Built, name: str | None) -> int:
    """Return how many tables are wanted, 0 as long as they are not all planned."""
    if not all(tables.done() for _, tables in built):
        return 0
    return sum(name in (None, one.name) for _, tables in built for one in tables.result())


def fill(report: str, table: Table, span: Span = _UNKNOWN) -> Filled:
    """Compute a table; its first rows come home, and the others are counted."""
    with _told(f"report {report}, table {table.name}"):
        # One more row than is shown, to know whether there are others.
        found = table.frame.limit(table.top + 1).toArrow()
        rows = found.slice(0, table.top).to_pylist()
        over = found.num_rows > table.top
        left_out = table.frame.count() - table.top if over else 0
    return Filled(
        report,
        table.name,
        table.title,
        tuple(found.column_names),
        rows,
        left_out,
        table.chart,
        table.note,
        span,
    )


def _check(built: _Built, name: str | None, *, alone: bool) -> None:
    """Raise `UsageError` unless there is the table that is wanted, and one alone if it must be."""
    names = [one.name for _, tables in built for one in tables.result()]
    found = names.count(name) if name is not None else len(names)
    if found == 1 or (found and not alone):
        return
    if name is None:
        raise UsageError(
            "several tables do not fit in one file",
            hint=f"choose one table of {', '.join(names)}",
            shell_hint=f"choose one: --table {'|'.join(names)}",
        )
    many = "several reports have" if found else "there is no"
    raise UsageError(f"{many} table {name[:60]!a}", hint=f"tables: {', '.join(names)}")


def _build(report: Report, rows: DataFrame, given: Given) -> Sequence[Table]:
    with _told(f"report {report.name}"):
        return report.build(rows, given)


def _summary(rows: DataFrame) -> Summary:
    """Sum up the rows by stream, of which there are few, and the rest of it here."""
    with _told("the rows to report on"):
        by_stream = (
            rows.groupBy("kind", "stream")
            .agg(
                F.count("*").alias("rows"),
                F.min("time").alias("first"),
                F.max("time").alias("last"),
                F.sum("lost").alias("lost"),
            )
            .toArrow()
            .to_pylist()
        )
    kinds: Counter[str] = Counter()
    for one in by_stream:
        kinds[one["kind"]] += one["rows"]
    entries = [one for one in by_stream if one["kind"] != schema.GAP]
    losers = [one for one in by_stream if one["lost"]]
    losers.sort(key=lambda one: (-one["lost"], one["stream"]))
    return Summary(
        rows=dict(kinds.most_common()),
        streams=len(entries),
        span=Span(
            min((one["first"] for one in entries if one["first"]), default=None),
            max((one["last"] for one in entries if one["last"]), default=None),
        ),
        lost=sum(one["lost"] for one in losers),
        losses=tuple(
            LostEntries(one["stream"], one["lost"], one["last"]) for one in losers[:_LOSERS]
        ),
    )


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Say what failed, and in one sentence what Spark said in a page."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        found = told(error)
        message = f"{what}: {found.message}"
        raise type(found)(message, hint=found.hint, shell_hint=found.shell_hint) from error
