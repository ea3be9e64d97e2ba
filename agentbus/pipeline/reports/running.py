"""Runs reports: Spark computes the aggregates, and this module the tables from them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from agentbus.core.errors import UsageError
from agentbus.pipeline.reports import load, wording
from agentbus.pipeline.reports.aggregate import Aggregate, Figures
from agentbus.pipeline.reports.report import Chart, Report, Table
from agentbus.pipeline.reports.span import Span
from agentbus.pipeline.rows import schema
from agentbus.pipeline.spark.errors import told

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_UNKNOWN = Span()
# Number of concurrent queries: Spark plans one while it runs another.
_AT_ONCE = 2
# Maximum number of streams with lost entries that are named.
_LOSERS = 20


@dataclass(frozen=True, slots=True)
class Filled:
    """A table whose rows were fetched from Spark: dicts of plain values, times in UTC.

    `left_out` is the number of omitted rows, `span` the time range of the rows from which it was
    computed; the rest is as of `Table`.
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
    unmeasured: str = wording.NOTHING
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a report. `empty` is a sentence if no table has a row, else None."""

    name: str
    title: str
    about: str
    tables: tuple[Filled, ...]
    empty: str | None


@dataclass(frozen=True, slots=True)
class LostEntries:
    """Entries of a stream that were gone before they were archived."""

    stream: str
    lost: int
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of the rows: their number by kind, their streams, their span, and lost entries."""

    rows: Mapping[str, int]
    streams: int
    span: Span
    lost: int
    losses: tuple[LostEntries, ...]

    @property
    def total(self) -> int:
        """The number of entries, without gaps."""
        return sum(n for kind, n in self.rows.items() if kind != schema.GAP)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a run, and its duration in seconds."""

    summary: Summary
    results: tuple[Result, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class ReportStep:
    """The progress of a run: the number of passes over the rows, and the current step `doing`."""

    doing: str
    done: int
    all: int


SUMMARY = Aggregate(
    "summary",
    """
    SELECT kind, stream, count(*) AS rows, min(time) AS first, max(time) AS last, try_sum(lost) AS lost
    FROM {rows}
    GROUP BY kind, stream
    """,
)


def run(
    names: Sequence[str],
    rows: DataFrame | None,
    *,
    table: str | None = None,
    alone: bool = False,
    tell: Callable[[ReportStep], None] | None = None,
) -> Outcome:
    """Compute these reports from rows of the schema, and return the results; None means no rows.

    `table` selects a table by name, and with `alone` there must be exactly one such table:
    otherwise `UsageError`, with the list, is raised. Only aggregates leave Spark. Raises
    `AgentBusError` if Spark fails.
    """
    began = time.monotonic()
    check(names, table, alone=alone)
    reports = [load(name) for name in names]
    summary, figures = _figures(rows, reports, tell or (lambda _step: None))
    results = []
    for report in reports:
        if table is not None and table not in report.tables:
            continue
        filled = tuple(
            fill(report.name, one, figures.span)
            for one in report.build(figures)
            if table in (None, one.name)
        )
        empty = None if any(got.rows for got in filled) else report.empty
        results.append(Result(report.name, report.title, report.about, filled, empty))
    return Outcome(summary, tuple(results), time.monotonic() - began)


def check(names: Sequence[str], table: str | None, *, alone: bool = False) -> None:
    """Raise `UsageError` unless the reports have the table; with `alone`, exactly one."""
    names = [one for name in names for one in load(name).tables]
    found = names.count(table) if table is not None else len(names)
    if found == 1 or (found and not alone) or (table is None and not alone):
        return
    if table is None:
        raise UsageError(
            "several tables do not fit in one file",
            hint=f"choose one table of {', '.join(names)}",
            shell_hint=f"choose one: --table {'|'.join(names)}",
        )
    many = "several reports have" if found else "there is no"
    raise UsageError(f"{many} table {table[:60]!a}", hint=f"tables: {', '.join(names)}")


def fill(report: str, table: Table, span: Span = _UNKNOWN) -> Filled:
    """Keep a table's first rows, reduced to its columns; the other rows are counted."""
    rows = [{name: row[name] for name in table.columns} for row in table.rows[: table.top]]
    return Filled(
        report,
        table.name,
        table.title,
        table.columns,
        rows,
        len(table.rows) - len(rows) + table.more,
        table.chart,
        table.note,
        span,
        table.unmeasured,
        table.repeats,
    )


def figures(rows: DataFrame | None, names: Sequence[str]) -> Figures:
    """Return the aggregates that these reports need."""
    return _figures(rows, [load(name) for name in names], lambda _step: None)[1]


def _figures(
    rows: DataFrame | None, reports: Iterable[Report], say: Callable[[ReportStep], None]
) -> tuple[Summary, Figures]:
    """Let Spark compute the aggregates, first the summary, whose span others need."""
    if rows is None:
        return _summary(()), Figures(_UNKNOWN)
    needed = dict.fromkeys(one for report in reports for one in report.needs)
    at_once = [one for one in needed if not one.spanned and one.kinds == schema.KINDS]
    say(ReportStep("summary", 0, len(needed) + 1))
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        first = pool.submit(_answer, SUMMARY, rows, _UNKNOWN)
        asked = {pool.submit(_answer, one, rows, _UNKNOWN): one for one in at_once}
        summary = _summary(first.result().to_pylist())
        asked |= {
            pool.submit(_answer, one, rows, summary.span): one
            for one in needed
            if one not in at_once and not summary.rows.keys().isdisjoint(one.kinds)
        }
        found: dict[str, pa.Table] = {}
        for answer in as_completed(asked):
            found[asked[answer].name] = answer.result()
            say(ReportStep(asked[answer].name, len(found) + 1, len(asked) + 1))
    finally:
        # Queries that still run after an error end with Spark.
        pool.shutdown(wait=False, cancel_futures=True)
    return summary, Figures(summary.span, found)


def _answer(aggregate: Aggregate, rows: DataFrame, span: Span) -> pa.Table:
    try:
        return aggregate.frame(rows, span).toArrow()
    except (PySparkException, Py4JError) as error:
        # Reduce Spark's long report to one sentence.
        found = told(error)
        message = f"the reports' {aggregate.name}: {found.message}"
        raise type(found)(message, hint=found.hint, shell_hint=found.shell_hint) from error


def _summary(by_stream: Sequence[Mapping[str, Any]]) -> Summary:
    """Combine the figures of the streams into a summary."""
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
