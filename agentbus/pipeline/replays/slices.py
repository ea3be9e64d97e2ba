"""Cuts archived rows into slices, each published by one script call.

Rows of plain tasks become arguments column by column: a loop over the rows would cost more than the
rest of the replay.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from agentbus.core.envelope import AGENT
from agentbus.core.errors import Unhealthy
from agentbus.pipeline.replays import restore
from agentbus.pipeline.rows.schema import CHANNEL, DEAD_LETTER, QUEUE
from agentbus.queues import policy
from agentbus.queues.publish import BATCH, BATCH_BYTES
from agentbus.store.steps import Script

if TYPE_CHECKING:
    from agentbus.core.settings import Settings
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg

# The columns of a row, in this order. `number` is its stream's index in `ReplayTask.streams`;
# `target` and `priority` give its destination, unless all rows of the stream share one. Missing
# values are null.
COLUMNS = (
    *("number", "id", "target", "priority"),
    *("agent", "topic", "event", "payload", "fields"),
)
KEPT = 30 * 86_400
# With a rate limit, this many slices are sent per second.
BEATS = 10.0
_OF_IDS = b"0123456789-"


def cursor_field(stream: str) -> str:
    """Return the replay's hash field with the id of a stream's last published entry."""
    return f"at:{stream}"


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream to replay: its name and kind, and its destination (None: the channel).

    `rate` is the maximum rows per second that its task may publish, 0 for no limit; it is the same
    for all streams of a task.
    """

    name: str
    kind: str
    target: str | None
    priority: str
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of rows: the script's keys, the queue ('' for the channel) and its bound."""

    keys: tuple[str, ...]
    queue: str
    bound: int


@dataclass(slots=True)
class Slice:
    """Rows of one stream with one destination, and the id of the preceding row.

    With `names`, each row is a list of these fields' values. Otherwise it is the ordering key or
    topic ('' for none), the number of following words, and its fields and values.
    """

    to: Destination
    stream: str
    after: str
    ids: list[str]
    names: Sequence[Arg]
    rows: list[Sequence[Arg]]
    rate: float = 0.0

    def step(self, run: str, *, last_try: bool = False) -> Script:
        """Return the step that publishes the rows, and adds their number to the replay's record."""
        ids, names = self.ids, self.names
        to = self.to
        return Script(
            "replay_slice",
            to.keys,
            (
                *(to.queue, to.bound, cursor_field(self.stream), run, self.after),
                *(1 if last_try else 0, KEPT, len(ids), "\n".join(ids), ids[-1]),
                *(len(names), *names, *itertools.chain.from_iterable(self.rows)),
            ),
        )

    def drop(self, number: int) -> None:
        """Drop the first rows, which have been published."""
        if number:
            self.after = self.ids[number - 1]
            del self.ids[:number], self.rows[:number]


class Slicer:
    """Cuts rows into slices; the rows are ordered by stream and id.

    `after` maps streams to the id that precedes their rows, unless they begin with their first row.
    """

    def __init__(
        self,
        scope: Scope,
        settings: Settings,
        replay_id: str,
        streams: Sequence[Stream],
        *,
        keep_replies: bool = False,
        after: Mapping[int, str] | None = None,
    ) -> None:
        self._scope = scope
        self._streams = streams
        self._keep = keep_replies
        self._record = scope.keys.replay(replay_id)
        self._policies = policy.read(settings)
        self._places: dict[tuple[str | None, str], Destination] = {}
        # The id of the last row by stream.
        self._last: dict[int, str] = dict(after or {})

    def slices(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Slice]:
        """Yield the rows of batches as slices, in order."""
        for batch in batches:
            runs = pc.run_end_encode(batch.column("number"))
            start = 0
            for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
                rows = self._fresh(number, batch.slice(start, end - start))
                start = end
                if rows.num_rows:
                    yield from self._cut(number, rows)

    def _fresh(self, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Omit duplicate ids: an archive may hold entries of two streams with the same name."""
        ids = rows.column("id")
        if ids[0].as_py() == self._last.get(number):
            rows = rows.slice(1)
            ids = ids.slice(1)
        if len(ids) > 1:
            other = pc.not_equal(ids.slice(1), ids.slice(0, len(ids) - 1))
            if not pc.all(other).as_py():
                rows = rows.filter(pa.concat_arrays([pa.array([True]), other]))
        return rows

    def _cut(self, number: int, rows: pa.RecordBatch) -> Iterator[Slice]:
        stream = self._streams[number]
        most = BATCH
        if stream.rate:
            most = min(most, max(1, int(stream.rate / BEATS)))
        for target, priority, group in _by_place(rows, stream):
            to = self._place(target, priority)
            for start in range(0, group.num_rows, most):
                for part in _halved(group.slice(start, most)):
                    ids = _ids(part, stream.name)
                    names, cells = _plain(part, stream) or self._restored(part, stream, to)
                    after, self._last[number] = self._last.get(number, ""), ids[-1]
                    yield Slice(to, stream.name, after, ids, names, cells, stream.rate)

    def _restored(
        self, rows: pa.RecordBatch, stream: Stream, to: Destination
    ) -> tuple[Sequence[Arg], list[Sequence[Arg]]]:
        """Return rows of any kind as the names and rows of a slice."""
        found: list[tuple[str, restore.Words]] = []
        columns = (column.to_pylist() for column in rows.columns)
        for _, entry_id, _, _, agent, topic, event, payload, fields in zip(*columns, strict=True):
            origin = f"{stream.name} {entry_id}"
            rest = {} if fields is None else dict(fields)
            if stream.kind == CHANNEL:
                said = (origin, agent, topic, event, payload, rest)
                if to.queue:
                    found.append(("", restore.message_as_task(*said)))
                else:
                    found.append((topic or "", restore.message(*said)))
            else:
                task = restore.letter if stream.kind == DEAD_LETTER else restore.task
                found.append(task(origin, payload, rest, agent=agent, keep_replies=self._keep))
        names = found[0][1][::2]
        if all(not key and words[::2] == names for key, words in found):
            return names, [words[1::2] for _, words in found]
        return (), [(key, len(words), *words) for key, words in found]

    def _place(self, target: str | None, priority: str) -> Destination:
        place = self._places.get((target, priority))
        if place is None:
            place = self._places[target, priority] = self._found(target, priority)
        return place

    def _found(self, target: str | None, priority: str) -> Destination:
        keys = self._scope.keys
        if target is None:
            return Destination(
                (keys.channel, self._record, keys.topics), "", self._scope.channel_bound
            )
        return Destination(
            (
                *(keys.queue(target, priority), self._record, keys.queues, keys.stats(target)),
                *(keys.order(target, priority), keys.metrics, keys.readers(target, priority)),
            ),
            target,
            self._policies.policy_of(target).bound,
        )


def _by_place(
    rows: pa.RecordBatch, stream: Stream
) -> Iterator[tuple[str | None, str, pa.RecordBatch]]:
    """Yield runs of rows with the same queue and priority."""
    targets, priorities = rows.column("target"), rows.column("priority")
    if targets.null_count == priorities.null_count == len(targets):
        yield stream.target, stream.priority, rows
        return
    start = 0
    places = zip(targets.to_pylist(), priorities.to_pylist(), strict=True)
    for (target, priority), group in itertools.groupby(places):
        number = len(list(group))
        part = rows.slice(start, number)
        yield target or stream.target, priority or stream.priority, part
        start += number


def _halved(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows in parts small enough for one request."""
    if rows.num_rows == 1 or rows.nbytes <= BATCH_BYTES:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _halved(rows.slice(0, half))
    yield from _halved(rows.slice(half))


def _ids(rows: pa.RecordBatch, stream: str) -> list[str]:
    """Return the ids of rows. Raises `Unhealthy` for an invalid id, since the script splits ids."""
    ids: list[str | None] = rows.column("id").to_pylist()
    if not all(ids) or "".join(ids).encode().translate(None, _OF_IDS):  # type: ignore[arg-type]
        odd = next(one for one in ids if not one or one.encode().translate(None, _OF_IDS))
        raise Unhealthy(
            f"the archive has a row of {stream[:80]!a} with the id {str(odd)[:40]!a}",
            hint="verify(spark, path) checks the archive",
            shell_hint="'agentbus archive verify' checks the archive",
        )
    return ids  # type: ignore[return-value]


def _plain(
    rows: pa.RecordBatch, stream: Stream
) -> tuple[Sequence[Arg], list[Sequence[Arg]]] | None:
    """Return tasks with a payload and at most a publisher as names and rows, else None."""
    payloads, agents, fields = (rows.column(name) for name in ("payload", "agent", "fields"))
    if stream.kind != QUEUE or payloads.null_count or 0 < agents.null_count < len(agents):
        return None
    if fields.null_count < len(fields) and fields.offsets[0] != fields.offsets[len(fields)]:
        return None
    head = restore.mark(f"{stream.name} ")[:-2]
    marks = pc.binary_join_element_wise(head, rows.column("id"), '"}', "")
    columns = [payloads, marks] + ([] if agents.null_count else [agents])
    names = ("payload", "meta", AGENT)[: len(columns)]
    # Convert the values as bytes, which takes a third of the time.
    return names, list(
        zip(*(column.cast(pa.binary()).to_pylist() for column in columns), strict=True)
    )
