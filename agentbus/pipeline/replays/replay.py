"""Replay: rows of an archive are published again, into queues or the channel, marked with their origin.

A replay has an id and a record on the server: its options, the streams with their last ids, and a
cursor for each stream. So it may be killed and resumed at any time, and two processes may run it at
once: each entry is published exactly once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from agentbus.core import names, settings as resolving
from agentbus.core.errors import AgentBusError, ConfigError, NotFound, UsageError
from agentbus.core.settings import Settings
from agentbus.pipeline.archives import reader
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.log import Log
from agentbus.pipeline.replays import selection, slices, writer
from agentbus.pipeline.replays.record import ReplayRecord, Source, ends
from agentbus.pipeline.replays.selection import Wanted
from agentbus.pipeline.replays.slices import Stream
from agentbus.pipeline.replays.writer import PATIENCE, ReplayTask
from agentbus.pipeline.rows.schema import CHANNEL, DEAD_LETTER, QUEUE
from agentbus.pipeline.spark.errors import sentence, told
from agentbus.queues.ids import Priority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay came to: of `rows` it published `published` now, and `skipped` were before.

    `streams` says what they are, in the order of their names. `skipped` are those that other runs of the
    same replay published. `finished` is when an earlier one had published all (RFC 3339), None if none had.
    """

    id: str
    rows: int
    published: int
    skipped: int
    streams: tuple[Source, ...]
    seconds: float
    dry_run: bool
    finished: str | None = None


# The name by which programs import it.
Replayed = ReplayResult


def replay(
    spark: SparkSession | Callable[[], SparkSession],
    path: str,
    settings: Settings | None = None,
    *,
    url: str | None = None,
    project: str | None = None,
    start: str | None = None,
    end: str | None = None,
    streams: Sequence[str] | None = None,
    where: str | None = None,
    queue: str | None = None,
    channel: bool = False,
    rate: float | None = None,
    dry_run: bool = False,
    replay_id: str | None = None,
    version: int | None = None,
    keep_replies: bool = False,
    patience: float = PATIENCE,
    watch: Callable[[str, int], None] | None = None,
) -> ReplayResult:
    """Publish entries of an archive again, each exactly once, however often this is called.

    `spark` is a session, or a function that opens one: it is called after all checks.
    `start` and `end` are ids, times or durations, both inclusive; `streams` names streams as the archive
    does; `where` is a condition in SQL on the columns of a row. Tasks go into the queues that they came
    from, or all into `queue`; messages into the `channel`, or into `queue`. `rate` is in rows a second in
    all. Order is kept within each stream.
    A call with the same arguments is the same replay: it resumes where the last one stopped, with the
    rows that the archive held when it began. Another `replay_id` makes another replay. `patience` is the
    number of seconds to wait for a full queue or for the server. `watch` is called with the replay's id
    and the number of rows, once they are known.
    Raises `UsageError`, `NotFound` (no such archive), `Refused` (the id is another replay's), `QueueFull`.
    """
    began = time.monotonic()
    if settings is None:
        settings = resolving.resolve({"url": url, "project": project})
    if replay_id is not None:
        names.name("replay", replay_id)
    if rate is not None and not rate > 0:
        raise UsageError(f"the rate is {rate}", hint="give rows a second, more than 0")
    settings = _for_tasks(settings)
    record = ReplayRecord(settings, patience)
    try:
        now = time.time()
        wanted = Wanted(
            None if start is None else selection.point(start, now),
            None if end is None else selection.point(end, now, last=True),
            tuple(dict.fromkeys(streams or ())),
            where,
            queue,
            channel,
        )
        selection.check(wanted)
        archive, newest = _archive(path, wanted, version)
        asked = {
            "archive": archive,
            "version": version,
            # As they were written: `30m` means the same replay when it is started again.
            "start": start,
            "end": end,
            "streams": sorted(wanted.streams),
            "where": where,
            "queue": queue,
            "channel": channel,
            "keep_replies": keep_replies,
        }
        name = replay_id or _id(asked)
        begun = record.look(name, asked)
        opened: SparkSession | None = None
        if begun is None:
            opened = _opened(spark)
            found = _count(opened, path, wanted, version)
            # Without rows there is nothing to resume, and no record.
            if dry_run or not found:
                rows = sum(each.rows for each in found)
                return ReplayResult(name, rows, 0, 0, found, time.monotonic() - began, dry_run)
            begun = record.begin(name, asked, wanted, found, newest)
        # The bounds of the first run.
        wanted = replace(wanted, start=begun.start, end=begun.end)
        rows = sum(each.rows for each in begun.streams)
        published = 0
        if not dry_run and begun.finished is None:
            if watch is not None:
                watch(name, rows)
            task = ReplayTask(settings, name, record.token, (), keep_replies, patience)
            opened = opened or _opened(spark)
            frame = _read(opened, path, wanted, version)
            _write(opened, frame, where, begun.streams, task, rate, record)
            published = record.close(name, begun.streams)
        return ReplayResult(
            name,
            rows,
            published,
            begun.published if dry_run else rows - published,
            begun.streams,
            time.monotonic() - began,
            dry_run,
            begun.finished,
        )
    finally:
        record.server.close()


def _opened(spark: SparkSession | Callable[[], SparkSession]) -> SparkSession:
    return spark() if callable(spark) else spark


# -- the archive --------------------------------------------------------------------------------


def _archive(path: str, wanted: Wanted, version: int | None) -> tuple[str, int]:
    """Return an archive's own id and its version. Raises `NotFound`, for a stream that it lacks too."""
    at = place(path)
    state = Log(at).state(version)
    for stream in wanted.streams:
        if stream not in state.positions:
            raise NotFound(
                f"{at} holds nothing of {stream[:80]!a}",
                hint="status(path) returns its streams",
                shell_hint="'agentbus archive status' lists its streams",
            )
    return state.archive, state.version


def _read(spark: SparkSession, path: str, wanted: Wanted, version: int | None) -> DataFrame:
    found = reader.read_range(spark, place(path), wanted.range, wanted.kinds, version)
    return selection.choose(found, wanted)


def _count(
    spark: SparkSession, path: str, wanted: Wanted, version: int | None
) -> tuple[Source, ...]:
    """Return what there is to replay."""
    frame = _read(spark, path, wanted, version)
    at = F.struct("time", "seq", "id")
    grouped = frame.groupBy("stream", "target", "priority").agg(
        F.count(F.lit(1)).alias("rows"), F.min(at).alias("first"), F.max(at).alias("last")
    )
    rows = _done(
        lambda: grouped.select(
            "stream", "target", "priority", "rows", "first.id", "last.id"
        ).collect(),
        wanted.where,
    )
    return tuple(sorted((Source(*row) for row in rows), key=_order))


def _order(one: Source) -> tuple[str, str, int]:
    return one.stream, one.target or "", list(Priority).index(Priority(one.priority))


def _write(
    spark: SparkSession,
    frame: DataFrame,
    where: str | None,
    chosen: Sequence[Source],
    task: ReplayTask,
    rate: float | None,
    record: ReplayRecord,
) -> None:
    """Have Spark's tasks publish the rows: each stream is one task's, a task may have many."""
    sizes: dict[str, int] = {}
    for each in chosen:
        sizes[each.stream] = sizes.get(each.stream, 0) + each.rows
    parts = selection.packed(sizes.items(), _tasks(spark))
    number = max(parts.values()) + 1
    last = ends(chosen)
    bounds = {
        s: (min(ms, reader.LAST_MS), min(seq, reader.LAST_SEQ)) for s, (ms, seq) in last.items()
    }
    plan = spark.createDataFrame(
        [(s, number, part, *bounds[s]) for number, (s, part) in enumerate(parts.items())],
        "stream string, number int, part int, last_ms bigint, last_seq bigint",
    )
    joined = frame.join(F.broadcast(plan), "stream")
    talk, dead = F.col("kind") == CHANNEL, F.col("kind") == DEAD_LETTER
    slim = {
        **{name: F.when(talk, F.col(name)) for name in ("agent", "topic", "event")},
        **{name: F.when(dead, F.col(name)) for name in ("target", "priority")},
        "fields": F.when(F.size("fields") > 0, F.col("fields")),
    }
    ms = F.unix_millis("time")
    last_of_its_time = (ms == F.col("last_ms")) & (F.col("seq") <= F.col("last_seq"))
    ordered = (
        # Entries that were archived after the replay began are left out.
        joined.where((ms < F.col("last_ms")) | last_of_its_time)
        .withColumns(slim)
        .repartitionById(number, F.col("part"))
        .sortWithinPartitions("number", "time", "seq")
        .select(*slices.COLUMNS)
    )
    made = writer.source(replace(task, streams=_streams(chosen, sizes, parts, rate)))
    spark.dataSource.register(made)
    with _small_batches(spark):
        _done(lambda: ordered.write.format(made.name()).mode("append").save(), where, record.alive)


@contextlib.contextmanager
def _small_batches(spark: SparkSession) -> Iterator[None]:
    """Have Spark hand over few rows at once.

    After each row it adds up the size of the batch so far: with its 10,000 rows a batch, that takes four
    times as long as all else it does for a replay.
    """
    kept = spark.conf.get(_BATCH)
    spark.conf.set(_BATCH, "500")
    try:
        yield
    finally:
        spark.conf.set(_BATCH, str(kept))


def _streams(
    chosen: Sequence[Source],
    sizes: Mapping[str, int],
    parts: Mapping[str, int],
    rate: float | None,
) -> tuple[Stream, ...]:
    """Return the streams by their numbers; each task has the share of the rate that its rows are of all."""
    total: dict[int, int] = {}
    for stream, part in parts.items():
        total[part] = total.get(part, 0) + sizes[stream]
    places = {each.stream: each for each in chosen}
    return tuple(
        Stream(
            stream,
            selection.kind_of(stream) or QUEUE,
            places[stream].target,
            places[stream].priority,
            (rate or 0.0) * total[part] / sum(sizes.values()),
        )
        for stream, part in parts.items()
    )


def _tasks(spark: SparkSession) -> int:
    """Return how many tasks may run at once."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkException:
        # Spark Connect does not report it.
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def _done(
    work: Callable[[], Any], where: str | None, look: Callable[[], None] | None = None
) -> Any:
    """Run work on Spark, and convert its errors to ours."""
    # Py4J's own errors are no PySparkException.
    try:
        return work()
    except AgentBusError:
        raise
    except Exception as error:
        state = error.getSqlState() if isinstance(error, PySparkException) else None
        if where is not None and state is not None and state.startswith("22"):
            raise UsageError(
                f"the condition {where!a} fails for a row: {sentence(str(error))}",
                hint="try_cast and try_divide give null where cast and / fail",
            ) from error
        if look is not None:
            look()
        raise told(error) from error


def _id(asked: Mapping[str, Any]) -> str:
    """Return the id of a replay by what it was asked for."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def _for_tasks(settings: Settings) -> Settings:
    """Return the settings by which Spark's tasks, other processes, reach the same server."""
    if settings.url is not None and settings.url.startswith("memory:"):
        raise ConfigError(
            "memory:// is in this process alone, and Spark's tasks are others",
            hint="use a server, or no URL for the embedded one",
        )
    return settings
