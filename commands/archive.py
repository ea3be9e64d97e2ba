"""archive: store the streams of a project as Parquet files, and maintain them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from agentbus.commands import (
    _events,
    _format,
    _schemas,
    _signals,
    _spark,
    _together,
    _typed,
    _values,
)
from agentbus.commands._bare import no_action, unknown_action
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.commands._format import age
from agentbus.commands._progress import Countdown, Line, Ticker, wanted
from agentbus.core import written_path
from agentbus.core.clock import rfc3339
from agentbus.core.errors import NotFound, UsageError
from agentbus.core.names import word
from agentbus.core.signals import StopEvent
from agentbus.store.scope import server_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from agentbus.pipeline.archives.archiver import Progress, Round
    from agentbus.pipeline.archives.compaction import Compacted
    from agentbus.pipeline.archives.forgetting import Forgotten
    from agentbus.pipeline.archives.places import Place
    from agentbus.pipeline.archives.verify import StreamStatus, Verified
    from agentbus.pipeline.archives.versions import ArchiveSnapshot, Change
    from agentbus.pipeline.payloads.tables import FollowedTable

_ACTIONS = ("compact", "verify", "status", "history", "forget", "expire", "tables", "release")
_INTERVAL = 5.0

VERB = Verb(
    "archive",
    Param(
        "[ACTION] PATH",
        "A directory, or s3://bucket/prefix, gs:// or az://; without an action, archive what is new.",
        dest="words",
        many=True,
        actions={
            "compact PATH": "Merge the files of past days into a few sorted files with typed columns.",
            "verify PATH": "Compare the archive with its log and with the server; exit 6 if they differ.",
            "status PATH": "Print how far the archive is behind.",
            "history PATH": "Print the versions that are kept, newest first.",
            "forget PATH": "Delete the rows of an agent, a task or a condition.",
            "expire PATH": "Delete the days that are older than --keep.",
            "tables PATH": "Keep a table for each typed task and event type, with payloads as columns.",
            "release PATH": "End what --hold started.",
        },
        values="file",
    ),
    Param("--continuous", "Keep archiving until interrupted."),
    Param(
        "--interval S",
        "With --continuous: seconds between two rounds (default 5).",
        convert=seconds,
    ),
    Param(
        "--streams LIST",
        "Streams: channel,queues,dead-letters,metrics,events,inboxes,attempts, or names (all).",
    ),
    Param("--hold", "Keep tasks and events from being trimmed before they are archived."),
    Param(
        "--mask FIELD",
        "Store masks of a field's values from now on: payload, payload.MEMBER, fields.NAME.",
        many=True,
    ),
    Param("--drop PART", "Store no payloads from now on.", choices=("payload",)),
    Param("--versions 7d", "From now on, keep replaced versions for so long.", convert=seconds),
    Param("--new-epoch", "Continue after the server was restored to an earlier state."),
    Param(
        "--as-of VERSION|TIME", "With verify: verify the archive as it was at this version or time."
    ),
    Param("--before DATE", "With compact: compact the days before this date (default today)."),
    Param("--dry-run", "With compact: change nothing."),
    Param("--task ID", "With forget: the task, its dead letters and its attempts."),
    Param("--key KEY", "With forget: the tasks with this key."),
    Param("--where SQL", "With forget: the rows that match this condition."),
    Param("--keep 90d", "With expire: keep the days that ended no longer ago.", convert=seconds),
    Param("--kind K", "With expire: only this kind; may be repeated.", dest="kinds", many=True),
    Param(
        "--tasks MODULE:TASKS",
        "With tables: a registry of typed tasks; may be repeated.",
        many=True,
    ),
    Param("--events MODULE", "With tables: a module that registers schemas of events."),
    Param("--to DIR", "With tables: where the tables lie (default PATH-tables)."),
    Param(
        "--now", "With forget, expire or tables: also delete older versions, which have the rows."
    ),
    _spark.STORAGE,
    *_spark.PARAMS,
    text="Archives new entries and exits; with --continuous it runs until interrupted. Several archivers"
    " may run at once, and each may be killed at any time: every entry is committed exactly once."
    " Entries that were trimmed before they were archived are counted in rows of the kind gap. Needs"
    " the extra pipeline. JSON: version, rows, lost, files, bytes, streams, seconds, complete for"
    " each version; for compact partitions, files_before, files_after, rows, bytes_before,"
    " bytes_after, dry_run; for verify stream, rows, lost, added, duplicates, missing,"
    " missing_ids, gone, gone_ids, deleted, ok; for status"
    " path, archive, project, version, files, rows, bytes, mask, drop, retention, lag, streams,"
    " of which each has stream, kind, rows, lost, lag, behind, last_id; for history version,"
    " at, action, rows, engine; for forget and expire version, rows, files, at, files_until; for tables"
    " kind, source, name, path, version, rows, added, rewritten.",
    examples=(
        "agentbus archive /data/bus",
        "agentbus archive s3://bucket/bus --continuous --hold",
        "agentbus archive status /data/bus",
        "agentbus archive compact /data/bus",
        "agentbus archive verify /data/bus --json",
        "agentbus archive forget /data/bus --agent ada --now",
        "agentbus archive expire /data/bus --keep 90d --kind metrics",
    ),
    subject="words",
    goes_with={
        **dict.fromkeys(("--continuous", "--streams", "--hold", "--new-epoch"), ("archive",)),
        **dict.fromkeys(("--mask", "--drop", "--versions"), ("archive",)),
        "--as-of": ("verify",),
        "--interval": ("--continuous",),
        **dict.fromkeys(("--before", "--dry-run"), ("compact",)),
        **dict.fromkeys(("--task", "--key", "--where"), ("forget",)),
        **dict.fromkeys(("--keep", "--kind"), ("expire",)),
        **dict.fromkeys(("--tasks", "--events", "--to"), ("tables",)),
        "--now": ("forget", "expire", "tables"),
    },
    waits="continuous",
)


def run(call: Call) -> int:
    """Archive a project, or run an action on an archive."""
    action, path = _asked(call)
    _together.check(VERB, call.args, action)
    if action in ("status", "history", "forget", "expire", "tables", "release"):
        _spark.spark_free(call.args)
    if action not in ("verify", "status", "history"):
        written_path.check(path.removeprefix("file://"))
    with _spark.extra():
        return int(_ACTS[action](call, _spark.located(call, path)) or 0)


def _asked(call: Call) -> tuple[str, str]:
    words = call.args.words
    if not words:
        raise no_action(VERB, json=call.out.json, needs="a PATH")
    if len(words) == 1 and words[0] not in _ACTIONS:
        return "archive", words[0]
    if len(words) == 2 and words[0] in _ACTIONS:
        return words[0], words[1]
    if len(words) == 2:
        raise unknown_action(VERB, words[0])
    raise UsageError(
        f"archive needs one PATH, after one of {', '.join(_ACTIONS)} or nothing",
        hint="to name a directory like an action, write ./compact",
    )


def _archive(call: Call, path: Place) -> None:
    from agentbus.pipeline.archives.archiver import Archiver  # needs the extra `pipeline`
    from agentbus.pipeline.source.discovery import ALL  # needs the extra `pipeline`

    args = call.args
    _may_begin(call, path)
    stop = StopEvent()
    with contextlib.ExitStack() as stack:
        if args.continuous:
            stack.enter_context(_stopping(stop))
        show = stack.enter_context(_line(call))

        def start() -> SparkSession:
            spark = stack.enter_context(_spark.session(call, path))
            if args.continuous:
                # Spark has installed other signal handlers, so install ours again.
                stack.enter_context(_stopping(stop))
            return spark

        archiver = stack.enter_context(
            Archiver(
                start,
                call.settings,
                path,
                wanted=args.streams or ALL,
                hold=args.hold,
                new_epoch=args.new_epoch,
                mask=args.mask or (),
                drop=(args.drop,) if args.drop else (),
                retention=args.versions,
                on_progress=show,
                warn=call.out.warn,
            )
        )
        told = 0

        def tell(done: Round) -> None:
            nonlocal told
            told += 1
            show(None)
            call.out.record(_values.fields(done), _sentence(done))

        archiver.run(
            continuous=args.continuous,
            interval=_INTERVAL if args.interval is None else args.interval,
            stop=stop,
            on_round=tell,
        )
        if not told and not args.continuous and not call.out.json:
            call.out.record({}, "nothing new")


def _may_begin(call: Call, path: Place) -> None:
    """Check the path and the server before anything is written."""
    from agentbus.pipeline.archives.reader import check  # needs the extra `pipeline`
    from agentbus.pipeline.source.range_reader import RangeReader  # needs the extra `pipeline`

    with RangeReader(call.settings) as reader:
        with contextlib.suppress(NotFound):
            check(path, project=reader.scope.keys.project)
        # A continuous archiver waits for a server that does not answer.
        if not call.args.continuous:
            reader.run(server_time(reader.scope))


def _n(value: int | None) -> str:
    """Format a number with separators, `?` if it is unknown."""
    return "?" if value is None else f"{value:,}"


def _of(value: int | None, singular: str, many: str | None = None) -> str:
    """Format a number with its noun."""
    return f"{_n(value)} {singular if value == 1 else many or singular + 's'}"


_VERIFIED: dict[str, Callable[[Verified], str]] = {
    "STREAM": lambda stream: word(stream.stream),
    "ROWS": lambda stream: _n(stream.rows),
    "LOST": lambda stream: _n(stream.lost),
    "ADDED": lambda stream: _n(stream.added),
    "TWICE": lambda stream: _n(stream.duplicates),
    "MISSING": lambda stream: _n(stream.missing),
    "GONE": lambda stream: _n(stream.gone),
    "DELETED": lambda stream: _n(stream.deleted),
    "": lambda stream: "ok" if stream.ok else "WRONG",
}
_STATUS: dict[str, Callable[[StreamStatus], str]] = {
    "STREAM": lambda stream: word(stream.stream),
    "ROWS": lambda stream: _n(stream.rows),
    "LOST": lambda stream: _n(stream.lost),
    "LAG": lambda stream: _n(stream.lag),
    "BEHIND": lambda stream: age(stream.behind) if stream.lag else "-",
    "LAST ID": lambda stream: stream.last_id,
}

_HISTORY: dict[str, Callable[[Change], str]] = {
    "VERSION": lambda change: str(change.version),
    "TIME": lambda change: change.at,
    "ACTION": lambda change: word(change.action),
    "ROWS": lambda change: "-" if change.rows is None else _n(change.rows),
    "BY": lambda change: word(change.engine),
}


def _sentence(done: Round) -> str:
    entries = _of(done.rows, "entry", "entries")
    text = f"version {done.version}: {entries} of {_of(done.streams, 'stream')}"
    text += f" in {_of(done.files, 'file')}, {_n(done.bytes)} bytes, {done.seconds:.1f} s"
    return text + (f"; {_n(done.lost)} were gone before" if done.lost else "")


@contextlib.contextmanager
def _stopping(stop: StopEvent) -> Iterator[None]:
    """Stop the archiver after the current round at the first signal, at once at the second."""

    def heard(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    with _signals.heard(heard):
        yield


def _compact(call: Call, path: Place) -> None:
    from agentbus.pipeline.archives.compaction import compact, date  # needs the extra `pipeline`
    from agentbus.pipeline.archives.reader import check  # needs the extra `pipeline`

    args = call.args
    if args.before is not None:
        date(args.before)
    check(path)
    rows, of = 0, 0

    def tell(done: int, all_rows: int) -> None:
        nonlocal rows, of
        rows, of = done, all_rows

    with contextlib.ExitStack() as stack:

        def start() -> SparkSession:
            spark = stack.enter_context(_spark.session(call, path))
            stack.enter_context(_compacting(call, spark, lambda: (rows, of)))
            return spark

        done = compact(start, path, before=args.before, dry_run=args.dry_run, on_progress=tell)
    fields = {**_values.fields(done), "dry_run": args.dry_run}
    call.out.record(fields, _compacted(done, dry_run=args.dry_run))


def _compacted(done: Compacted, *, dry_run: bool) -> str:
    if not done.partitions:
        return "nothing to compact"
    verb = "would become" if dry_run else "became"
    return (
        f"{_of(done.partitions, 'day')} of streams: {_of(done.files_before, 'file')} {verb}"
        f" {_n(done.files_after)}, {_of(done.rows, 'row')},"
        f" {_n(done.bytes_before)} bytes {verb} {_n(done.bytes_after)}"
    )


def _verify(call: Call, path: Place) -> int:
    # Needs the extra `pipeline`.
    from agentbus.pipeline.archives.delta_table import ArchiveTable
    from agentbus.pipeline.archives.reader import check  # needs the extra `pipeline`
    from agentbus.pipeline.archives.verify import verify  # needs the extra `pipeline`
    from agentbus.pipeline.source.range_reader import RangeReader  # needs the extra `pipeline`

    with RangeReader(call.settings) as reader:
        state = check(path, project=reader.scope.keys.project)
        reader.run(server_time(reader.scope))
    version = None
    if call.args.as_of is not None:
        table = ArchiveTable(path)
        version = table.version_as_of(call.args.as_of)
        state = table.snapshot(version)
    with _spark.session(call, path) as spark, _verifying(call, spark, state):
        streams = verify(spark, call.settings, path, version=version)
    _format.show(
        call.out, streams, _VERIFIED, lambda row: {**_values.fields(row), "ok": row.ok}, left=1
    )
    for row in streams:
        _tell_differences(call, row)
    wrong = [stream.stream for stream in streams if not stream.ok]
    if wrong:
        be = "is" if len(wrong) == 1 else "are"
        call.out.warn(
            f"{len(wrong)} of {_of(len(streams), 'stream')} {be} not archived as they should be"
        )
    return 6 if wrong else 0


def _tell_differences(call: Call, stream: Verified) -> None:
    """Name the entries that only the server or only the archive has."""
    told = (
        ("entries are not archived as they are on the server", stream.missing, stream.missing_ids),
        ("archived entries are not on the server, and not trimmed", stream.gone, stream.gone_ids),
    )
    for what, number, ids in told:
        if number:
            more = ", …" if number > len(ids) else ""
            call.out.warn(f"{word(stream.stream)}: {_n(number)} {what}: {', '.join(ids)}{more}")


def _status(call: Call, path: Place) -> None:
    from agentbus.pipeline.archives.verify import status  # needs the extra `pipeline`

    standing = status(call.settings, path)
    if call.out.json:
        call.out.record(_values.fields(standing) | {"lag": standing.lag}, "")
        return
    call.out.record(
        {},
        f"{standing.path}: version {standing.version} of {standing.project}, {_of(standing.rows, 'row')} in"
        f" {_of(standing.files, 'file')}, {_n(standing.bytes)} bytes; {_n(standing.lag)} to come",
    )
    if standing.mask or standing.drop:
        hidden = [*standing.mask, *(f"{part} (dropped)" for part in standing.drop)]
        call.out.record({}, f"masked: {', '.join(hidden)}")
    _format.show(call.out, standing.streams, _STATUS, left=1)


def _history(call: Call, path: Place) -> None:
    from agentbus.pipeline.archives.delta_table import ArchiveTable  # needs the extra `pipeline`

    _format.show(call.out, ArchiveTable(path).history(), _HISTORY, left=3)


def _forget(call: Call, path: Place) -> None:
    from agentbus.pipeline.archives.forgetting import forget  # needs the extra `pipeline`

    args = call.args
    # The agent of the environment is the one that asks.
    agent = call.settings.agent if call.settings.sources.get("agent") == "flag" else None
    done = forget(path, agent=agent, task=args.task, key=args.key, where=args.where, now=args.now)
    call.out.record(_values.fields(done), _forgotten(done))


def _expire(call: Call, path: Place) -> None:
    from agentbus.pipeline.archives.forgetting import expire  # needs the extra `pipeline`

    args = call.args
    if args.keep is None:
        raise UsageError("nothing says what to keep", hint="give --keep, such as --keep 90d")
    before = rfc3339(max(0.0, time.time() - args.keep))[:10]
    done = expire(path, before=before, kinds=args.kinds or (), now=args.now)
    call.out.record(_values.fields(done), _forgotten(done))


def _forgotten(done: Forgotten) -> str:
    if not done.files:
        return f"nothing to delete in version {done.version}"
    text = f"{_of(done.rows, 'row')} of {_of(done.files, 'file')} are gone from version {done.version} on"
    return f"{text}; older versions have them until {done.files_until}"


_TABLES: dict[str, Callable[[FollowedTable], str]] = {
    "OF": lambda table: word(f"{table.source} {table.name}"),
    "ROWS": lambda table: _n(table.rows),
    "ADDED": lambda table: _n(table.added),
    "VERSION": lambda table: str(table.version),
    "PATH": lambda table: word(table.path),
}


def _tables(call: Call, path: Place) -> None:
    from agentbus.pipeline.payloads.tables import follow  # needs the extra `pipeline`

    args = call.args
    tasks: dict[tuple[str, str], Any] = {}
    for each in args.tasks or ():
        tasks |= _typed.registry(each).schemas()
    events = {}
    if args.events is not None:
        _events.load(args.events)
        events = _schemas.registered()
    if args.to is not None:
        written_path.check(args.to.removeprefix("file://"))
    tables = follow(path, tasks=tasks, events=events, to=args.to, now=args.now)
    _format.show(call.out, tables, _TABLES, left=1)


def _release(call: Call, path: Place) -> None:
    from agentbus.pipeline.archives.archiver import release  # needs the extra `pipeline`

    streams = release(call.settings, path)
    call.out.record(
        {"streams": list(streams)},
        f"this archive keeps no entries in {_of(len(streams), 'stream')} any more",
    )


_ACTS = {
    "archive": _archive,
    "compact": _compact,
    "verify": _verify,
    "status": _status,
    "history": _history,
    "forget": _forget,
    "expire": _expire,
    "tables": _tables,
    "release": _release,
}


@contextlib.contextmanager
def _line(call: Call) -> Iterator[Any]:
    """Yield a function that shows a round's progress on a terminal; None clears the line."""
    if not wanted(call):
        yield lambda _progress: None
        return
    with Line() as line:

        def show(progress: Progress | None) -> None:
            line.show("" if progress is None else _progress_text(progress))

        yield show


def _compacting(
    call: Call, spark: SparkSession, rows: Callable[[], tuple[int, int]]
) -> contextlib.AbstractContextManager[object]:
    """Return a context that shows the numbers of compacted and of all rows on a terminal."""

    def left() -> int:
        done, of = rows()
        return of - done

    def text(_left: int) -> str:
        done, of = rows()
        return f"compact: {_n(done)} of {_n(of)} rows{_at_work(spark)}"

    return Countdown(left, text) if wanted(call) else contextlib.nullcontext()


def _verifying(
    call: Call, spark: SparkSession, state: ArchiveSnapshot
) -> contextlib.AbstractContextManager[object]:
    """Return a context that shows Spark's progress on a terminal."""
    text = f"verify: {_n(state.rows)} rows in {_format.count(len(state.files), 'file')}"
    return Ticker(lambda: text + _at_work(spark)) if wanted(call) else contextlib.nullcontext()


def _at_work(spark: SparkSession) -> str:
    from agentbus.pipeline.spark.task_calls import at_work  # needs the extra `pipeline`

    done, tasks = at_work(spark)
    return f", {done} of {tasks} tasks of Spark's" if tasks else ""


def _progress_text(progress: Progress) -> str:
    done, total, passed = progress.done, progress.total, progress.seconds
    rate = done / passed if passed else 0.0
    text = f"{_n(done)} of {_n(total)} entries, {done * 100 // max(total, 1)} %"
    if rate:
        text += f", {rate:,.0f}/s, about {age((total - done) / rate)} left"
    return text
