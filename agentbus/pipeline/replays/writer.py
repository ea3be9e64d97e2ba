"""Publishes archived rows again, in Spark's tasks, each with its share of the streams.

Rows come sorted by stream and id. They go to the server in slices; each slice is one atomic step
that also moves the replay's cursor of its stream, while the next slice is prepared. A slice names
the preceding row: if that row was not published, the slice is not either, so that no row is
skipped. Rows up to the cursor are ignored, so that no row is published twice, even by several
tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from agentbus.core.errors import (
    AgentBusError,
    BackendUnavailable,
    NotFound,
    OutcomeUnknown,
    QueueFull,
)
from agentbus.core.settings import Settings
from agentbus.core.stream import position, text
from agentbus.pipeline.replays.reading import TaskShare, batches
from agentbus.pipeline.replays.slices import Slice, Slicer, Stream, cursor_field
from agentbus.pipeline.source.connection import ServerConnection
from agentbus.queues.publish import Ahead
from agentbus.store.steps import Command, Pause, one_step

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from agentbus.store.steps import Op

# Seconds without progress at a full queue, or without a server, after which a replay gives up.
PATIENCE = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


def run_field(token: str) -> str:
    """Return the replay's hash field that counts the rows published by one run."""
    return f"run:{token}"


def failure_field(token: str) -> str:
    """Return the replay's hash field with the error that stopped one run."""
    return f"failed:{token}"


def fields_of(key: str, fields: Sequence[str]) -> Op[list[Any]]:
    """Return fields of a replay's hash."""
    found: list[Any] = []
    for at in range(0, len(fields), 1000):
        found += yield Command("HMGET", key, *fields[at : at + 1000])
    return found


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """The parameters of a Spark task that publishes: the server, the replay, and its options.

    `settings` may hold a password, which is sent only inside the pickled writer.
    """

    settings: Settings
    replay_id: str
    token: str
    streams: tuple[Stream, ...]
    keep_replies: bool = False
    patience: float = PATIENCE


@dataclass
class ReplayCommit(WriterCommitMessage):
    """The report of a Spark task at its end."""

    rows: int


class ReplayWriter(DataSourceArrowWriter):
    """Writes the rows of a replay in Spark's tasks, one task for each stream at a time."""

    def __init__(self, task: ReplayTask) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ReplayCommit:
        """Publish the rows of a partition; an error is recorded in the replay's record."""
        with ServerConnection(self._task.settings) as server:
            return ReplayCommit(_publish_all(server, self._task, iterator))


def publish_share(task: ReplayTask, share: TaskShare) -> int:
    """Read rows of an archive's files, publish those not yet published, and return their number.

    An error is recorded in the replay's record.
    """
    with ServerConnection(task.settings) as server:
        names = list(share.numbers)
        key = server.scope.keys.replay(task.replay_id)
        cursors: list[Any] = server.run(fields_of(key, [*map(cursor_field, names)]))
        at = {name: text(id) for name, id in zip(names, cursors, strict=True) if id is not None}
        rows = batches(share, {name: position(id) for name, id in at.items()})
        done = {share.numbers[name]: id for name, id in at.items()}
        return _publish_all(server, task, rows, done)


def _publish_all(
    server: ServerConnection,
    task: ReplayTask,
    rows: Iterable[pa.RecordBatch],
    done: Mapping[int, str] | None = None,
) -> int:
    """Publish rows and return their number; `done` has the preceding id of each stream."""
    slicer = Slicer(
        server.scope,
        task.settings,
        task.replay_id,
        task.streams,
        keep_replies=task.keep_replies,
        after=done,
    )
    ahead, pace = Ahead(slicer.slices(rows)), Pace()
    number = 0
    try:
        while part := ahead.take():
            number += len(part.ids)
            pace.wait(len(part.ids), part.rate)
            op = publish(part, run_field(task.token), task.patience, ahead.prepare)
            server.run(op, patience=task.patience)
    except (BackendUnavailable, OutcomeUnknown):
        # Spark retries the task.
        raise
    except AgentBusError as error:
        # A retry would fail too, so the task succeeds and the driver raises the error.
        said = {
            "error": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
            "shell_hint": error.shell_hint,
        }
        key = server.scope.keys.replay(task.replay_id)
        noted = Command("HSET", key, failure_field(task.token), orjson.dumps(said))
        server.run(one_step(noted), patience=task.patience)
    return number


def source(task: ReplayTask) -> type[DataSource]:
    """Return a data source for one replay, to be registered and written to once.

    Python pickles such a class by value, so that its data reaches the tasks without appearing in an
    option, a plan or a log.
    """

    class Replay(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"agentbus-replay-{task.token}"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            return ReplayWriter(task)

    return Replay


# -- to the server ------------------------------------------------------------------------------


class Pace:
    """Delays slices to limit the rows per second."""

    def __init__(self, monotonic: Any = time.monotonic, sleep: Any = time.sleep) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._due = monotonic()

    def wait(self, rows: int, rate: float) -> None:
        """Wait until `rows` more rows may be sent; a rate of 0 means no limit."""
        if not rate:
            return
        now = self._monotonic()
        if self._due > now:
            self._sleep(self._due - now)
        # After a delay, catch up with at most one second's rows at once.
        self._due = max(self._due, now - 1.0) + rows / rate


def publish(
    part: Slice,
    run: str,
    patience: float,
    meanwhile: Callable[[], None] | None = None,
    monotonic: Any = time.monotonic,
) -> Op[None]:
    """Publish a slice, waiting while the queue is full. Raises `QueueFull`, `NotFound`.

    `patience` is the maximum time in seconds without progress; `meanwhile` is called while the
    server works.
    """
    pause, moved = _FIRST_PAUSE, monotonic()
    step = part.step(run)
    step.meanwhile = meanwhile
    state, passed = _read((yield step))
    while state == "full":
        part.drop(passed)
        now = monotonic()
        if passed:
            pause, moved = _FIRST_PAUSE, now
        late = now - moved >= patience
        if not late:
            yield Pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        state, passed = _read((yield part.step(run, last_try=late)))
        if late and state == "full" and not passed:
            raise QueueFull(
                f"the queue {part.to.queue!r} had no room for {patience:g} s",
                hint="start workers, or raise its bound; the replay goes on when it is run again",
            )
    if state == "behind":
        # The server had confirmed to this task that the previous row was published.
        raise NotFound(
            f"the server no longer knows that {part.stream} was published up to {part.after}: it"
            " went back in time (restored from a backup, or failed over to a late replica)",
            hint="run it again: it goes on where the server is now",
        )
    if state != "done":
        raise NotFound(
            "the record of this replay was removed while it ran",
            hint="clearing the project does that; run it again if it is still wanted",
        )


def _read(reply: Any) -> tuple[str, int]:
    return text(reply[0]), int(reply[1]) if len(reply) > 1 else 0
