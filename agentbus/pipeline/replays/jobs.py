"""The Spark jobs of a replay: they count the rows, and publish them in tasks, by stream.

If possible, the tasks read the files themselves; otherwise Spark reads, selects and sorts the rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from agentbus.core.errors import AgentBusError, UsageError
from agentbus.pipeline.archives import reader
from agentbus.pipeline.archives.file_selection import LAST_MS, LAST_SEQ
from agentbus.pipeline.replays import selection, slices, writer
from agentbus.pipeline.replays.record import ReplayRecord, Source, ends
from agentbus.pipeline.replays.selection import Wanted
from agentbus.pipeline.replays.slices import Stream
from agentbus.pipeline.replays.writer import ReplayTask
from agentbus.pipeline.rows.masking import DROPPED, MASKED_PAYLOAD
from agentbus.pipeline.rows.schema import CHANNEL, DEAD_LETTER, QUEUE
from agentbus.pipeline.spark import task_calls
from agentbus.pipeline.spark.errors import sentence, told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from agentbus.pipeline.archives.places import Place
    from agentbus.pipeline.replays.survey import ArchiveSurvey

_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
# The function that a Spark task runs.
_PUBLISH = "agentbus.pipeline.replays.writer:publish_share"
_MOST_TASKS = 4


def rows_of(spark: SparkSession, at: Place, wanted: Wanted, version: int | None) -> DataFrame:
    """Return the rows to replay as a Spark frame."""
    found = reader.read_range(spark, at, wanted.range, wanted.kinds, version)
    return selection.choose(found, wanted)


def count(frame: DataFrame, wanted: Wanted) -> tuple[Source, ...]:
    """Return the streams to replay, with their numbers of rows."""
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
    return tuple(sorted((Source(*row) for row in rows), key=Source.order))


def hidden(frame: DataFrame, wanted: Wanted) -> dict[str, int]:
    """Return how many rows of each stream have no payload, as it was dropped or masked."""
    gone = F.map_contains_key("fields", F.lit(DROPPED))
    rows = frame.where(gone | F.col("payload").startswith(MASKED_PAYLOAD))
    counted = _done(lambda: rows.groupBy("stream").count().collect(), wanted.where)
    return {row["stream"]: row["count"] for row in counted}


@dataclass(frozen=True, slots=True)
class Work:
    """The rows to publish, their replay, and the maximum rows per second (None: no limit)."""

    chosen: Sequence[Source]
    task: ReplayTask
    rate: float | None
    record: ReplayRecord

    def sizes(self) -> dict[str, int]:
        """Return the number of rows of each stream."""
        found: dict[str, int] = {}
        for each in self.chosen:
            found[each.stream] = found.get(each.stream, 0) + each.rows
        return found

    def shared(self, parts: Mapping[str, int]) -> ReplayTask:
        """Return the parameters of the tasks, each of which publishes the streams of one part.

        Each task gets a share of the rate in proportion to its rows.
        """
        sizes = self.sizes()
        total: dict[int, int] = {}
        for stream, part in parts.items():
            total[part] = total.get(part, 0) + sizes[stream]
        places = {each.stream: each for each in self.chosen}
        streams = tuple(
            Stream(
                stream,
                selection.kind_of(stream) or QUEUE,
                places[stream].target,
                places[stream].priority,
                (self.rate or 0.0) * total[part] / sum(sizes.values()),
            )
            for stream, part in parts.items()
        )
        return replace(self.task, streams=streams)


def publish_files(spark: SparkSession, found: ArchiveSurvey, work: Work) -> None:
    """Let Spark's tasks read and publish the rows; all rows of a stream belong to one task."""
    # Use few tasks: each also reads the rows between its own, and a few tasks keep a server busy.
    parts = selection.packed(work.sizes().items(), min(_tasks(spark), _MOST_TASKS))
    last = ends(work.chosen)
    numbers: dict[int, dict[str, int]] = {}
    for number, (stream, part) in enumerate(parts.items()):
        numbers.setdefault(part, {})[stream] = number
    job = work.shared(parts)
    shares = [found.share(each, last) for each in numbers.values()]
    _done(lambda: task_calls.call(spark, _PUBLISH, job, shares), None, work.record.alive)


def publish_rows(spark: SparkSession, frame: DataFrame, where: str | None, work: Work) -> None:
    """Let Spark read and sort the rows, and its tasks publish them; one task per stream."""
    parts = selection.packed(work.sizes().items(), _tasks(spark))
    number = max(parts.values()) + 1
    last = ends(work.chosen)
    bounds = {s: (min(ms, LAST_MS), min(seq, LAST_SEQ)) for s, (ms, seq) in last.items()}
    plan = spark.createDataFrame(
        [(s, number, part, *bounds[s]) for number, (s, part) in enumerate(parts.items())],
        "stream string, number int, part int, last_ms bigint, last_seq bigint",
    )
    joined = frame.join(F.broadcast(plan), "stream")
    talk, dead = F.col("kind") == CHANNEL, F.col("kind") == DEAD_LETTER
    slim = {
        **{name: F.when(talk, F.col(name)) for name in ("topic", "event")},
        **{name: F.when(dead, F.col(name)) for name in ("target", "priority")},
        "fields": F.when(F.size("fields") > 0, F.col("fields")),
    }
    ms = F.unix_millis("time")
    last_of_its_time = (ms == F.col("last_ms")) & (F.col("seq") <= F.col("last_seq"))
    ordered = (
        # Exclude entries that were archived after the replay began.
        joined.where((ms < F.col("last_ms")) | last_of_its_time)
        .withColumns(slim)
        .repartitionById(number, F.col("part"))
        .sortWithinPartitions("number", "time", "seq")
        .select(*slices.COLUMNS)
    )
    made = writer.source(work.shared(parts))
    spark.dataSource.register(made)
    with _small_batches(spark):
        _done(
            lambda: ordered.write.format(made.name()).mode("append").save(),
            where,
            work.record.alive,
        )


@contextlib.contextmanager
def _small_batches(spark: SparkSession) -> Iterator[None]:
    """Make Spark pass rows in small batches.

    After each row Spark sums up the size of the batch so far: with its default of 10,000 rows per
    batch, that takes four times as long as the rest of its work for a replay.
    """
    kept = spark.conf.get(_BATCH)
    spark.conf.set(_BATCH, "500")
    try:
        yield
    finally:
        spark.conf.set(_BATCH, str(kept))


def _tasks(spark: SparkSession) -> int:
    """Return the number of tasks that may run at once."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkException:
        # Spark Connect does not report the parallelism.
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def _done(
    work: Callable[[], Any], where: str | None, look: Callable[[], None] | None = None
) -> Any:
    """Run a function on Spark, and convert its errors to ours."""
    # Py4J's errors are not instances of PySparkException.
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
