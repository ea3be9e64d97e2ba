"""Publishes archived rows again: Spark's tasks run this, each on its share of the streams.

Rows come sorted by stream and id. They go to the server in slices, each one atomic step that also moves
the replay's cursor of its stream, several slices in one round trip. A slice names the row that it
follows: if that one was not published, neither is the slice, so that no row is skipped; and rows at or
before the cursor are ignored, so that no row is published twice, by whichever task and how often.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
from agentbus.core.stream import text
from agentbus.pipeline.replays import restore
from agentbus.pipeline.rows.schema import CHANNEL, DEAD_LETTER
from agentbus.pipeline.source.connection import ServerConnection
from agentbus.queues.policy import Policies
from agentbus.store.resp import digest
from agentbus.store.steps import Batch, Command, Pause, Script, one_step

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Op

# What a row must have, in this order. `number` is its stream in `Task.streams`; `target`, `priority` say
# where it goes, unless all of its stream go to the same place. What is not there is null, an empty map too:
# whatever is handed over by name costs more than all that is done with it.
COLUMNS = (
    *("number", "id", "target", "priority"),
    *("agent", "topic", "event", "payload", "fields"),
)
# A slice blocks the server while it runs; a round trip carries several.
SLICE_ROWS, SLICE_BYTES = 50, 256 * 1024
BATCH_SLICES, BATCH_BYTES = 20, 4 * 1024 * 1024
KEPT = 30 * 86_400
# Seconds without progress at a full queue, or without a server, after which a replay gives up.
PATIENCE = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
# With a rate, batches are sent this many times a second.
_BEATS = 10.0


def cursor_field(stream: str) -> str:
    """Return the field of a replay's hash that holds the id of a stream's entry published last."""
    return f"at:{stream}"


def run_field(token: str) -> str:
    """Return the field of a replay's hash that counts what one run published."""
    return f"run:{token}"


def failure_field(token: str) -> str:
    """Return the field of a replay's hash that says why one run could not go on."""
    return f"failed:{token}"


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that is replayed: its name and kind, and where its entries go (None: the channel).

    `rate` is how many rows a second its task may publish, 0 for as many as it can; all streams of one
    task have the same.
    """

    name: str
    kind: str
    target: str | None
    priority: str
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """What a Spark task needs to publish: the server, the replay, and its options.

    `settings` may hold a password: it travels inside the pickled writer, and nowhere else.
    """

    settings: Settings
    replay_id: str
    token: str
    streams: tuple[Stream, ...]
    keep_replies: bool = False
    patience: float = PATIENCE


@dataclass(slots=True)
class Slice:
    """Some rows of one stream that go to the same place, and the id of the row before them."""

    keys: tuple[str, ...]
    head: tuple[Arg, ...]
    after: str
    run: str
    queue: str
    rows: list[list[Any]] = field(default_factory=list)
    size: int = 0

    def argv(self, *, last_try: bool = False) -> tuple[Arg, ...]:
        head = (*self.head, self.run, self.after, 1 if last_try else 0, KEPT)
        return (*head, *itertools.chain.from_iterable(self.rows))

    def command(self) -> tuple[Arg, ...]:
        """Return the slice as one of many commands."""
        return ("EVALSHA", digest("replant"), len(self.keys), *self.keys, *self.argv())

    def step(self, *, last_try: bool = False) -> Script:
        return Script("replant", self.keys, self.argv(last_try=last_try))

    def drop(self, number: int) -> None:
        """Forget the first rows, which are published."""
        if number:
            self.after = self.rows[number - 1][0]
            del self.rows[:number]


@dataclass
class ReplayCommit(WriterCommitMessage):
    """What a Spark task reports at its end."""

    rows: int


class ReplayWriter(DataSourceArrowWriter):
    """Writes the rows of a replay: `write` runs in Spark's tasks, one task for each stream at a time."""

    def __init__(self, task: ReplayTask) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ReplayCommit:
        """Publish the rows of a partition; why it could not is noted in the replay's hash."""
        task = self._task
        rows = 0
        with ServerConnection(task.settings) as server:
            key = server.scope.keys.replay(task.replay_id)
            try:
                for slices in paced(batches(_Ground(server.scope, task).slices(_rows(iterator)))):
                    rows += sum(len(each.rows) for each in slices)
                    server.run(publish(slices, task.patience), patience=task.patience)
            except (BackendUnavailable, OutcomeUnknown):
                # Spark tries the task again.
                raise
            except AgentBusError as error:
                # Another try would fail too, so the task ends well and the driver raises the error.
                said = {
                    "error": type(error).__name__,
                    "message": error.message,
                    "hint": error.hint,
                    "shell_hint": error.shell_hint,
                }
                noted = Command("HSET", key, failure_field(task.token), orjson.dumps(said))
                server.run(one_step(noted), patience=task.patience)
        return ReplayCommit(rows)


def source(task: ReplayTask) -> type[DataSource]:
    """Return a data source for one replay, to be registered and written to once.

    Python pickles such a class whole, so that what it holds reaches the tasks without standing in an
    option, a plan or a log.
    """

    class Replay(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"agentbus-replay-{task.token}"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            return ReplayWriter(task)

    return Replay


# -- from rows to slices ------------------------------------------------------------------------


def _rows(iterator: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in iterator:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class _Ground:
    """Where the rows go: knows each place's keys and bound, and makes slices."""

    def __init__(self, scope: Scope, task: ReplayTask) -> None:
        self._scope = scope
        self._task = task
        self._run = run_field(task.token)
        settings = task.settings
        self._policies = Policies(
            settings.queues,
            str(settings.sources.get("queues", "the config")),
            nearby="queues" in settings.nearby,
        )
        self._places: dict[tuple[str | None, str], tuple[tuple[str, ...], str, int]] = {}

    def slices(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Slice, float]]:
        """Gather rows of one stream and one place, with how many a second may be published."""
        now: Slice | None = None
        keep, rate = self._task.keep_replies, 0.0
        spot: tuple[int, str | None, str] | None = None
        source, before, most = None, "", SLICE_ROWS
        for number, entry_id, to, ranked, agent, topic, event, payload, fields in rows:
            if spot is None or number != spot[0]:
                source, before = self._task.streams[number], ""
                most = SLICE_ROWS
                if source.rate:
                    most = min(most, max(1, int(source.rate / _BEATS)))
            elif entry_id == before:
                # An archive may hold an entry of two streams that bore the same name.
                continue
            assert source is not None
            target, priority = (to or source.target), (ranked or source.priority)
            if (
                now is None
                or (number, target, priority) != spot
                or len(now.rows) >= most
                or now.size >= SLICE_BYTES
            ):
                if now is not None:
                    yield now, rate
                spot, rate = (number, target, priority), source.rate
                now = self._slice(source.name, target, priority, before)
            origin = f"{source.name} {entry_id}"
            rest = {} if fields is None else dict(fields)
            if source.kind == CHANNEL:
                said = (origin, agent, topic, event, payload, rest)
                if target is None:
                    order, words = topic or "", restore.message(*said)
                else:
                    order, words = "", restore.message_as_task(*said)
            elif source.kind == DEAD_LETTER:
                order, words = restore.letter(origin, payload, rest, agent=agent, keep_replies=keep)
            else:
                order, words = restore.task(origin, payload, rest, agent=agent, keep_replies=keep)
            now.rows.append([entry_id, order, len(words), *words])
            now.size += sum(map(len, words)) if rest else len(words[1])
            before = entry_id
        if now is not None:
            yield now, rate

    def _slice(self, stream: str, target: str | None, priority: str, before: str) -> Slice:
        place = self._places.get((target, priority))
        if place is None:
            place = self._places[target, priority] = self._place(target, priority)
        keys, queue, bound = place
        return Slice(keys, (queue, bound, cursor_field(stream)), before, self._run, queue)

    def _place(self, target: str | None, priority: str) -> tuple[tuple[str, ...], str, int]:
        keys = self._scope.keys
        replay = keys.replay(self._task.replay_id)
        if target is None:
            return (keys.channel, replay, keys.topics), "", self._scope.channel_bound
        return (
            (
                *(keys.queue(target, priority), replay, keys.queues, keys.stats(target)),
                *(keys.order(target, priority), keys.metrics, keys.readers(target, priority)),
            ),
            target,
            self._policies.policy_of(target).bound,
        )


def batches(slices: Iterable[tuple[Slice, float]]) -> Iterator[tuple[list[Slice], float]]:
    """Gather what goes in one round trip, with how many rows a second may."""
    gathered: list[Slice] = []
    rows = size = 0
    for each, rate in slices:
        gathered.append(each)
        rows += len(each.rows)
        size += each.size
        most = rate / _BEATS if rate else float("inf")
        if len(gathered) >= BATCH_SLICES or size >= BATCH_BYTES or rows >= most:
            yield gathered, rate
            gathered, rows, size = [], 0, 0
    if gathered:
        yield gathered, rate


def paced(
    found: Iterable[tuple[list[Slice], float]],
    monotonic: Any = time.monotonic,
    sleep: Any = time.sleep,
) -> Iterator[list[Slice]]:
    """Hand batches on, each not before its rows are due."""
    due = monotonic()
    for slices, rate in found:
        if rate:
            now = monotonic()
            if due > now:
                sleep(due - now)
            # What was not sent in time is not made up for in one go.
            due = max(due, now - 1.0) + sum(len(each.rows) for each in slices) / rate
        yield slices


# -- to the server ------------------------------------------------------------------------------


def publish(slices: list[Slice], patience: float, monotonic: Any = time.monotonic) -> Op[None]:
    """Publish slices in their order, waiting where a queue is full. Raises `QueueFull`.

    `patience` is in seconds without any progress.
    """
    pause, moved = _FIRST_PAUSE, monotonic()
    while slices:
        replies = yield Batch([each.command() for each in slices])
        state, passed, went_on = "done", 0, False
        while slices:
            reply = replies.pop(0)
            if isinstance(reply, Exception):
                # In a separate step, an error is understood, and a script that the server forgot is sent.
                reply = yield slices[0].step()
            state, passed = _read(reply)
            slices[0].drop(passed)
            if state != "done":
                break
            went_on = True
            del slices[0]
        if state == "behind" and went_on:
            # The server did not know the script for the slice before, and knew it for this one: another
            # task had loaded it in between. The slice before has been sent since.
            continue
        while state == "full":
            now = monotonic()
            if passed:
                pause, moved = _FIRST_PAUSE, now
            late = now - moved >= patience
            if not late:
                yield Pause(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            state, passed = _read((yield slices[0].step(last_try=late)))
            slices[0].drop(passed)
            if state == "done":
                # Those after it were held back, or are published already: they are sent again.
                del slices[0]
                moved = monotonic()
            elif late and not passed:
                raise QueueFull(
                    f"the queue {slices[0].queue!r} had no room for {patience:g} s",
                    hint="start workers, or raise its bound; the replay goes on when it is run again",
                )
        if state in ("gone", "behind"):
            raise NotFound(
                "the record of this replay was removed while it ran",
                hint="clearing the project does that; run it again if it is still wanted",
            )


def _read(reply: Any) -> tuple[str, int]:
    return text(reply[0]), int(reply[1]) if len(reply) > 1 else 0
