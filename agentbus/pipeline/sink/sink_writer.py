"""Writes rows to a queue, a topic or notes, in Spark's tasks, one per partition."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from agentbus.coordination.notes import jot
from agentbus.core import names
from agentbus.core.errors import UsageError
from agentbus.pipeline.sink.queue_slices import QueueSlices, Spot, digest
from agentbus.pipeline.sink.rows import TaskRows, named, numbered
from agentbus.pipeline.sink.sink_options import Sink
from agentbus.pipeline.source.connection import ServerConnection
from agentbus.queues.publish import BATCH, Ahead, confirmed
from agentbus.store.steps import Script, one_step

if TYPE_CHECKING:
    from typing import TypeVar

    import pyarrow as pa

    from agentbus.store.steps import Op

    T = TypeVar("T")

# Spark's properties of a query's tasks: the query's id, which a restart keeps, and the batch.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
# Seconds for which the server keeps the record of the last write of a query, and of a save.
QUERY_KEPT, SAVE_KEPT = 7 * 86_400, 3 * 3600


@dataclass
class SinkCommit(WriterCommitMessage):
    """The report of a Spark task at its end."""

    rows: int


class SinkWriter(DataSourceArrowWriter):
    """Writes the rows of a frame."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        return _write(self._sink, _spot(self._sink), iterator)


class StreamSinkWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        return _write(self._sink, _spot_in_query(), iterator)


def _spot(sink: Sink) -> Spot:
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    if sink.app:
        return Spot(_named_run(sink, sink.app), sink.version, partition, QUERY_KEPT)
    # A save in `foreachBatch` belongs to the batch, which runs again if the driver dies.
    query = context.getLocalProperty(_QUERY) if context else None
    batch = context.getLocalProperty(_BATCH) if context else None
    if query and batch:
        return Spot(_named_run(sink, query), int(batch), partition, QUERY_KEPT)
    return Spot(sink.run, 0, partition, SAVE_KEPT)


def _named_run(sink: Sink, name: str) -> str:
    """Return the run of the saves of one name to a target: equal rows may go to several targets."""
    return digest([name.encode(), sink.target.encode(), sink.name.encode()])


def _spot_in_query() -> Spot:
    context = TaskContext.get()
    assert context is not None
    query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if query and batch:
        return Spot(query, int(batch), context.partitionId(), QUERY_KEPT)
    # Without batches (a continuous trigger), nothing distinguishes a repeated slice from a new one.
    return Spot(secrets.token_hex(8), 0, context.partitionId(), SAVE_KEPT)


def _write(sink: Sink, spot: Spot, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
    """Write a partition; raises the error of the first row that cannot be written."""
    writers = {"queue": _to_queue, "topic": _to_topic, "notes": _to_notes}
    with ServerConnection(sink.settings) as server:
        return SinkCommit(writers[sink.target](server, sink, spot, numbered(iterator)))


def _run(server: ServerConnection, sink: Sink, op: Op[T]) -> T:
    """Run an operation; without any reply so far, the deadline applies if it is shorter."""
    deadline = min(sink.timeout, sink.settings.deadline)
    return server.run(op, patience=sink.timeout, deadline=deadline)


def _to_queue(
    server: ServerConnection, sink: Sink, spot: Spot, rows: Iterator[tuple[int, tuple[Any, ...]]]
) -> int:
    slices, rules = QueueSlices(server.scope, sink, spot), server.policy(sink.name)
    reader = TaskRows(server.scope, sink, rules, spot.partition)
    most = _run(server, sink, slices.most())
    ahead = Ahead(slices.cut(reader.tasks(rows), most))
    written = 0
    while (one := ahead.take()) is not None:
        op = confirmed(slices.send(one, ahead.prepare), server, rules, None, None)
        _run(server, sink, op)
        written += len(one.rows)
    return written


def _to_topic(
    server: ServerConnection, sink: Sink, spot: Spot, rows: Iterator[tuple[int, tuple[Any, ...]]]
) -> int:
    scope, keys = server.scope, server.scope.keys
    record = keys.sink(spot.run, spot.partition)
    written = 0
    pages = iter(lambda: list(itertools.islice(rows, BATCH)), [])
    for number, page in enumerate(pages):
        said = []
        for row, (message,) in page:
            try:
                said.append(names.body("message", message, scope.max_body))
            except UsageError as error:
                raise named(error, row, spot.partition, "message") from error
        mark = digest([b"%d %d" % (spot.batch, number), *(text.encode() for text in said)])
        step = Script(
            "sink_channel",
            (keys.channel, keys.agents, keys.topics, record),
            (
                *(spot.batch, spot.kept, mark, scope.channel_bound, scope.agent, sink.name),
                *said,
            ),
            writes=True,
        )
        _run(server, sink, one_step(step))
        written += len(said)
    return written


def _to_notes(
    server: ServerConnection, sink: Sink, spot: Spot, rows: Iterator[tuple[int, tuple[Any, ...]]]
) -> int:
    written, limit = 0, server.scope.max_body
    for number, values in rows:
        note = dict(zip(sink.columns, values, strict=True))
        try:
            op = jot(server.scope, note["key"], note["value"], note.get("tags") or ())
            _run(server, sink, op)
        except UsageError as error:
            raise named(error, number, spot.partition, _culprit(note, limit)) from error
        written += 1
    return written


def _culprit(note: dict[str, Any], limit: int) -> str:
    """Return the column that makes a note invalid."""
    try:
        names.name("key", note["key"])
    except UsageError:
        return "key"
    try:
        names.body("note", note["value"], limit)
    except UsageError:
        return "value"
    return "tags"
