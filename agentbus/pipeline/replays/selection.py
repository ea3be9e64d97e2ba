"""Selects the rows of an archive to replay, and the destination of each row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 (as all of Spark's users call it)

from agentbus.core import names, timespec
from agentbus.core.errors import UsageError
from agentbus.pipeline.archives.file_selection import IdRange
from agentbus.pipeline.rows import schema, streams
from agentbus.pipeline.rows.schema import CHANNEL, DEAD_LETTER, EVENT, QUEUE
from agentbus.pipeline.rows.typed_columns import STREAM_QUEUE
from agentbus.pipeline.spark.errors import sentence
from agentbus.queues.dead_letters import OWN
from agentbus.queues.ids import OF_THE_BUS, PRIORITIES, writable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame

_MAX = 2**64 - 1
# Matches strings, comments and quoted names in SQL, whose words are not keywords.
_QUOTED = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL
)
_QUERIES = re.compile(r"\b(?:select|using)\b|\(\s*(?:from|with|table|values)\b", re.IGNORECASE)
# Functions that are not deterministic, which would prevent resuming a replay, and functions that
# run code.
_FICKLE = re.compile(
    r"\b(current_timestamp|current_date|current_time|localtimestamp)\b"
    r"|\b(now|curdate|rand|randn|random|randstr|uniform|uuid|shuffle|unix_timestamp"
    r"|monotonically_increasing_id|spark_partition_id|input_file_name"
    r"|reflect|try_reflect|java_method)\s*\(",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The entries to replay, and their destination.

    `start` and `end` are the first and the last id, as two numbers each. Without `streams` all
    queues are selected, or the channel with `channel` and without `queue`. Without `queue` each
    task returns to its own queue.
    """

    start: tuple[int, int] | None = None
    end: tuple[int, int] | None = None
    streams: tuple[str, ...] = ()
    where: str | None = None
    queue: str | None = None
    channel: bool = False

    @property
    def range(self) -> IdRange:
        """The range of ids that can be selected."""
        end = self.end and timespec.stream_id(timespec.following(self.end))
        return IdRange(self.start, end)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of rows that can be selected."""
        if self.streams:
            return tuple(sorted({kind for each in self.streams if (kind := kind_of(each))}))
        return (CHANNEL,) if self.channel else (QUEUE,)


def check(wanted: Wanted) -> None:
    """Raise `UsageError` if the selection cannot be replayed."""
    if wanted.queue is not None:
        writable(names.name("queue", wanted.queue))
        if wanted.channel:
            raise UsageError("a queue and the channel were given", hint="replay to one of them")
    for stream in wanted.streams:
        kind = kind_of(stream)
        if kind is None and streams.kind(stream) == EVENT:
            raise UsageError(
                f"{stream[:80]!a} holds events, which their relay alone publishes",
                hint="send them again with send_event",
                shell_hint="send them again with 'agentbus events send'",
            )
        if kind is None:
            raise UsageError(
                f"{stream[:80]!a} is not a stream that can be replayed",
                hint="give it as in the archive: q:mail, q:mail:high, dlq:mail:default, ch:main",
            )
        if wanted.queue is None:
            writable(streams.queue(stream) or "")
        if wanted.channel and kind != CHANNEL:
            raise UsageError(
                f"{stream[:80]!a} holds tasks, and the channel takes messages",
                hint="replay it to a queue",
            )
        if kind == CHANNEL and not wanted.channel and wanted.queue is None:
            raise UsageError(
                "the channel's messages came from no queue",
                hint="give channel=True or a queue",
                shell_hint="give --to-channel, or --to-queue Q",
            )
    if wanted.start is not None and wanted.end is not None and wanted.start > wanted.end:
        raise UsageError("the replay ends before it starts", hint="give an earlier start")


def kind_of(stream: str) -> str | None:
    """Return the kind of a stream from its name if the stream can be replayed, else None."""
    kind = streams.kind(stream)
    return kind if kind in (CHANNEL, QUEUE, DEAD_LETTER) else None


def point(given: str, now: float, *, last: bool = False) -> tuple[int, int]:
    """Convert an id, a time or a duration before `now` to the first id of that time, or the last."""
    if not isinstance(given, str):
        raise UsageError(f"{given!r} is not a point in time", hint="give it as text, such as '30m'")
    given = given.partition("@")[0]
    parts = timespec.stream_id(given)
    if parts is not None and "-" in given:
        return parts
    milliseconds = int(timespec.since(given, now).partition("-")[0])
    return milliseconds, _MAX if last else 0


def choose(frame: DataFrame, wanted: Wanted) -> DataFrame:
    """Return the selected rows, with `target` (a queue; null: the channel) and `priority`.

    Raises `UsageError` if the condition is invalid.
    """
    found = frame.select(*schema.COLUMNS)
    if wanted.where is not None:
        found = filtered(found, wanted.where)
    found = found.filter(F.col("kind").isin(*wanted.kinds))
    if wanted.streams:
        found = found.filter(F.col("stream").isin(*wanted.streams))
    dead = F.col("kind") == DEAD_LETTER
    if DEAD_LETTER in wanted.kinds:
        # A tombstone contains no task that could be published.
        task = F.map_filter("fields", lambda name, _: ~name.isin(*OWN))
        found = found.filter(~dead | F.col("payload").isNotNull() | (F.size(task) > 0))
    said = F.when(dead, F.col("fields")["priority"]).otherwise(F.expr("split_part(stream, ':', 3)"))
    ours = F.when(said.isin(*PRIORITIES) & (F.col("kind") != CHANNEL), said)
    # If an entry does not name its queue, use the name of its stream.
    queue = F.coalesce(F.col("queue"), F.expr(STREAM_QUEUE))
    target = F.lit(None).cast("string") if wanted.channel else queue
    if wanted.queue is None and not wanted.channel:
        # Exclude the bus's own queues: their tasks were sent, and an archive must not send them
        # again.
        found = found.filter(~F.coalesce(queue.startswith(OF_THE_BUS), F.lit(False)))
    return found.withColumns(
        {
            "target": target if wanted.queue is None else F.lit(wanted.queue),
            "priority": F.coalesce(ours, F.lit("normal")),
        }
    )


def filtered(frame: DataFrame, where: str) -> DataFrame:
    """Return the rows that satisfy a condition in SQL. Raises `UsageError` if it is invalid."""
    bare = _QUOTED.sub(" '' ", where)
    if _QUERIES.search(bare):
        raise UsageError(
            f"the condition {_shown(where)} holds a query",
            hint="give a condition on the columns of a row only",
        )
    if fickle := _FICKLE.search(bare):
        raise UsageError(
            f"the condition {_shown(where)} asks {fickle[0].rstrip('( ')},"
            " which gives another answer each time",
            hint="write what is meant as a value, such as timestamp '2026-11-20 08:00:00'",
        )
    try:
        found = frame.filter(F.expr(where))
        # Force analysis, which Spark Connect would defer.
        _ = found.schema
    except PySparkException as error:
        raise UsageError(
            f"the condition {_shown(where)} cannot be used: {sentence(str(error))}",
            hint=f"give a condition on {', '.join(schema.COLUMNS)}",
        ) from error
    return found


def packed(rows: Iterable[tuple[str, int]], most: int) -> dict[str, int]:
    """Assign each stream to one of at most `most` parts with similar numbers of rows."""
    ordered: Sequence[tuple[str, int]] = sorted(rows, key=lambda one: (-one[1], one[0]))
    sizes = [0] * max(1, min(most, len(ordered)))
    found = {}
    for stream, number in ordered:
        part = min(range(len(sizes)), key=sizes.__getitem__)
        found[stream] = part
        sizes[part] += number
    return found


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 200 else text[:197] + "...")
