"""report: tables and charts from an archive."""

from __future__ import annotations

import csv
import importlib
import io
import os
import pathlib
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agentbus.commands import _format, _progress, _spark, _together
from agentbus.commands._declare import Call, Param, Verb
from agentbus.core import written_path
from agentbus.core.clock import rfc3339
from agentbus.core.errors import UsageError

if TYPE_CHECKING:
    from agentbus.commands._output import Out
    from agentbus.pipeline.reports.running import Filled, Outcome, ReportStep

# The package that defines these names takes long to import.
NAMES = (
    *("activity", "conversations", "tasks", "attempts", "flags", "lag", "slowest", "anomalies"),
    "all",
)
VERB = Verb(
    "report",
    Param("NAME", "Name of a report, or all.", required=True, choices=NAMES),
    Param("PATH", "The archive: a path, file://, s3://, gs:// or az://.", values="file"),
    Param("--since 30m|TIME|ID", "Start: a time span ago, a time, or an id."),
    Param("--until 30m|TIME|ID", "End: a time span ago, a time, or an id."),
    Param("--as-of VERSION|TIME", "Report on the archive as it was at this version or time."),
    Param("--html FILE", "Write one self-contained page with charts.", values="file"),
    Param("--csv", "Print one table as CSV."),
    Param("--table T", "Only this table of the report."),
    Param("--live", "Report on the bus as it changes, until interrupted."),
    _spark.STORAGE,
    *_spark.PARAMS,
    text="NAME is activity, conversations, tasks, attempts, flags, lag, slowest, anomalies, or all."
    " Without --html or --csv the first rows of each table are shown. All times are UTC. Exit 5 if there is"
    " no archive. JSON: report, table, and the table's columns.",
    examples=(
        "agentbus report all /var/bus --html page.html",
        "agentbus report flags /var/bus --since 7d",
        "agentbus report tasks s3://bucket/bus --table causes --csv",
    ),
    subject="name",
    excludes={"--live": ("--until", "--as-of", "--html", "--csv", "--table")},
    waits="live",
)
# Maximum rows of a table on a terminal: of a single report, and of each if all are shown.
_TOP, _TOP_OF_ALL = 20, 8
# Characters that begin a formula in a spreadsheet.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
# Maximum characters of a text, such as an error; names are shorter.
_WIDEST = 256


def run(call: Call) -> None:
    """Compute the report and write it."""
    args, out = call.args, call.out
    from agentbus.pipeline import reports  # needs the extra `pipeline`

    names = reports.chosen(args.name)
    project, entries, version = _check(call, names)
    with _spark.extra():
        from agentbus.pipeline.reports import running  # needs the extra `pipeline`

        if args.html:
            # Import this before Spark works for minutes: a package that writes the page may be
            # missing.
            from agentbus.pipeline.reports import page
    with _Steps(call) as steps:
        if args.live:
            with _spark.session(call) as spark:
                _live(call, spark, steps)
            return
        if entries:
            outcome = _report(call, names, entries, version, steps)
        else:
            outcome = running.run(names, None, table=args.table, alone=args.csv)
    if outcome.summary.lost and not args.html:
        many = (
            f"{outcome.summary.lost:,} entries were" if outcome.summary.lost > 1 else "1 entry was"
        )
        out.warn(f"{many} gone before they could be archived; the figures lack them")
    if args.html:
        title = f"{args.name} of {args.path}" if args.name != reports.ALL else str(args.path)
        text = page.render(outcome, source=title, project=project)
        page.write(text, pathlib.Path(args.html))
        out.record({"html": args.html, "entries": outcome.summary.total}, args.html)
    elif args.csv:
        _csv(out, outcome)
    elif out.json:
        for table in _tables(outcome):
            for row in table.rows:
                out.record({"report": table.report, "table": table.name, **_fields(row)}, "")
    else:
        _text(out, outcome, project, _TOP_OF_ALL if args.name == reports.ALL else _TOP)


def _report(
    call: Call, names: Sequence[str], entries: int, version: int | None, steps: _Steps
) -> Outcome:
    from agentbus.pipeline.archives.reader import read  # needs the extra `pipeline`
    from agentbus.pipeline.reports import running  # needs the extra `pipeline`

    args = call.args
    steps.say("starting Spark")
    at = _spark.located(call, args.path)
    with _spark.session(call, at, rows=entries) as spark:
        span = {"since": args.since, "until": args.until}
        rows = read(spark, at, version=version, marked=True, **span)
        return running.run(names, rows, table=args.table, alone=args.csv, tell=steps.step)


def _check(call: Call, names: Sequence[str]) -> tuple[str, int, int | None]:
    """Reject invalid combinations of options before Spark is started, which takes seconds.

    Returns the project, the approximate number of entries, and the version if one is wanted.
    """
    args, project, entries = call.args, call.settings.project, 0
    version = None
    _together.check(VERB, args)
    if args.path is None and not args.live:
        raise UsageError(
            "report needs the path of an archive",
            hint="make one with 'agentbus archive PATH', or use --live",
        )
    if sum((bool(args.html), args.csv, call.out.json)) > 1:
        raise UsageError("--html, --csv and --json exclude each other", hint="choose one")
    if args.html:
        written_path.check(args.html)
    if not args.live:
        with _spark.extra():
            # Needs the extra `pipeline`.
            from agentbus.pipeline.archives.delta_table import ArchiveTable
            from agentbus.pipeline.archives.file_selection import between
            from agentbus.pipeline.archives.reader import check
            from agentbus.pipeline.reports import running  # needs the extra `pipeline`

        running.check(names, args.table, alone=args.csv)
        span = between(args.since, args.until)
        at = _spark.located(call, args.path)
        state = check(at)
        project = state.project
        if args.as_of is not None:
            table = ArchiveTable(at)
            version = table.version_as_of(args.as_of)
            state = table.snapshot(version)
        entries = sum(file.rows for file in state.files.values() if span.may_hold(file))
    if args.html and not os.path.isdir(os.path.dirname(os.path.abspath(args.html))):
        raise UsageError(
            f"there is no directory for {args.html!r}", hint="make it first, or name another file"
        )
    return project, entries, version


def _live(call: Call, spark: Any, steps: _Steps) -> None:
    """Show one report as it changes, until interrupted."""
    live = importlib.import_module("agentbus.pipeline.reports.live")

    def tell(table: Filled) -> None:
        steps.clear()
        if call.out.json:
            for row in table.rows:
                call.out.record({"report": table.report, "table": table.name, **_fields(row)}, "")
        else:
            _table(call.out, table, _TOP)

    live.watch(spark, call.settings, since=call.args.since, tell=tell)


# -- output -------------------------------------------------------------------------------------------


def _tables(outcome: Outcome) -> Iterator[Filled]:
    for result in outcome.results:
        yield from result.tables


def _fields(row: Any) -> dict[str, Any]:
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return rfc3339(value.timestamp(), milliseconds=True)
    if isinstance(value, (list, tuple)):
        return [_value(item) for item in value]
    return value


def _cell(value: Any) -> Any:
    """Return a value for CSV, in which a spreadsheet must not read text as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


def _csv(out: Out, outcome: Outcome) -> None:
    for table in _tables(outcome):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table.columns)
        writer.writerows([_cell(_value(row[name])) for name in table.columns] for row in table.rows)
        out.exactly(text.getvalue().encode())


def _text(out: Out, outcome: Outcome, project: str, top: int) -> None:
    from agentbus.pipeline.reports import wording  # needs the extra `pipeline`

    out.record({}, f"project {project}")
    span = outcome.summary.span
    if span.first is not None and span.last is not None:
        first, last = (wording.moment(at.replace(microsecond=0)) for at in (span.first, span.last))
        total = outcome.summary.total
        entries = "1 entry" if total == 1 else f"{total:,} entries"
        out.record({}, f"{entries}, {first} to {last} UTC")
    for result in outcome.results:
        out.record({}, "")
        out.record({}, result.title.upper())
        if result.empty is not None:
            out.record({}, result.empty)
            continue
        for table in result.tables:
            if table.rows and not (table.repeats and len(result.tables) > 1):
                out.record({}, "")
                _table(out, table, top)


def _table(out: Out, table: Filled, top: int) -> None:
    """Write the first rows aligned, with figures to the right."""
    from agentbus.pipeline.reports import wording  # needs the extra `pipeline`

    rows = table.rows[:top]
    cells = [
        [
            wording.cut(wording.cell(name, row[name], table.unmeasured), _WIDEST)
            for name in table.columns
        ]
        for row in rows
    ]
    right = [
        wording.unit(name) is not None or any(isinstance(row[name], (int, float)) for row in rows)
        for name in table.columns
    ]
    out.record({}, table.title)
    headings = [wording.heading(name) for name in table.columns]
    _format.table(out, headings, cells, right, indent=2)
    rest = len(table.rows) + table.left_out - len(rows)
    if rest:
        out.record({}, f"  and {rest:,} more")


# -- progress -----------------------------------------------------------------------------------------


class _Steps(_progress.Line):
    """The progress of a report, on a line of the terminal's stderr."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._wanted = _progress.wanted(call)
        self._began = time.monotonic()

    def step(self, step: ReportStep) -> None:
        self.say(f"{step.doing}, {step.done} of {step.all} passes")

    def say(self, what: str) -> None:
        if self._wanted:
            self.show(f"report: {what}, {time.monotonic() - self._began:.0f} s")
