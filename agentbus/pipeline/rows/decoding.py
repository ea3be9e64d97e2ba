"""Converts stream entries to Arrow record batches of the schema, column by column.

The common cases are handled for all entries at once: a Python loop over each field of each entry
would cost more than the rest of archiving.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from agentbus.core.envelope import AGENT
from agentbus.core.stream import text
from agentbus.pipeline.rows import streams
from agentbus.pipeline.rows.attempt_rows import spread
from agentbus.pipeline.rows.schema import (
    ARROW,
    ATTEMPT,
    CHANNEL,
    DEAD_LETTER,
    EVENT,
    FIELDS,
    GAP,
    INBOX,
    METRICS,
    QUEUE,
    VERSION,
)
from agentbus.pipeline.rows.streams import StreamGap

# An entry as the server sends it: its id, then its fields and values, alternating.
Entry: TypeAlias = Sequence[Any]
Columns: TypeAlias = dict[str, Any]

_TIME = pa.timestamp("us", tz="UTC")
# The field of a gap without lost entries, which marks where the server went back in time.
ARCHIVE_ONLY = "archive_only"
_META = {"topic": "topic", "correlation_id": "correlation_id", "source": "agent"}


def batch(groups: Sequence[tuple[str, Sequence[Entry]]]) -> pa.RecordBatch:
    """Return entries of one or more streams of one kind as rows, in the given order."""
    kind = streams.kind(groups[0][0])
    assert kind is not None
    if kind == ATTEMPT:
        groups, columns = _attempts(groups)
    entries = [entry for _, page in groups for entry in page]
    if kind != ATTEMPT:
        columns = _READERS[kind](entries)
    number = len(entries)
    columns["version"] = _versions(number)
    columns["kind"] = _repeated(kind, number)
    columns["stream"] = _each(groups, lambda name: name)
    if "queue" not in columns and kind != CHANNEL:
        columns["queue"] = _each(groups, streams.queue)
    elif kind == DEAD_LETTER and columns["queue"].null_count:
        # If a letter does not name its queue, take the queue from the stream's name.
        columns["queue"] = pc.coalesce(columns["queue"], _each(groups, streams.queue))
    if kind == EVENT:
        columns["topic"] = _each(groups, streams.topic)
    ends = [page[at][0] for _, page in groups for at in (0, -1)]
    columns["id"], columns["time"], columns["seq"] = _ids([entry[0] for entry in entries], ends)
    return _record_batch(columns, number)


def gap(found: StreamGap) -> pa.RecordBatch:
    """Return the row that represents entries that were gone before they were read."""
    milliseconds, _, sequence = found.at.partition("-")
    fields = [("after", found.after)] + ([("before", found.before)] if found.before else [])
    if found.archive_only is not None:
        fields.append((ARCHIVE_ONLY, str(found.archive_only)))
    columns: Columns = {
        "version": pa.array([VERSION], pa.int32()),
        "stream": pa.array([found.stream]),
        "kind": pa.array([GAP]),
        "id": pa.array([found.at]),
        "time": pa.array([min(int(milliseconds), _LAST_MS) * 1000], _TIME),
        "seq": pa.array([min(int(sequence), _LAST_SEQ)], pa.int64()),
        "queue": pa.array([streams.queue(found.stream)], pa.string()),
        "fields": pa.array([fields], FIELDS),
        "lost": pa.array([found.lost], pa.int64()),
    }
    return _record_batch(columns, 1)


# The end of the year 9999: not every reader supports later times, but explicit ids may contain
# them.
_LAST_MS = 253_402_300_799_999
_LAST_SEQ = 2**63 - 1
# Times with fewer digits are before that end.
_MS_DIGITS, _ID_BYTES = 14, 41
_KEPT = 64


def _record_batch(columns: Columns, number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            columns[field.name] if field.name in columns else _nulls(number, field.type)
            for field in ARROW
        ],
        schema=ARROW,
    )


def _each(groups: Sequence[tuple[str, Sequence[Entry]]], value: Callable[[str], Any]) -> pa.Array:
    """Return an array with one value per stream, repeated for its entries."""
    if len(groups) == 1:
        return _repeated(value(groups[0][0]), len(groups[0][1]))
    return pa.concat_arrays([_repeated(value(name), len(page)) for name, page in groups])


# Most pages have the same number of entries, so that these columns repeat.
@functools.lru_cache(_KEPT)
def _repeated(value: str | None, number: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), number)


@functools.lru_cache(_KEPT)
def _nulls(number: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(number, kind)


@functools.lru_cache(_KEPT)
def _versions(number: int) -> pa.Array:
    return pa.repeat(pa.scalar(VERSION, pa.int32()), number)


@functools.lru_cache(_KEPT)
def _no_fields(number: int) -> pa.Array:
    return _map([0] * (number + 1), [], [])


def _ids(ids: Sequence[bytes], ends: Sequence[bytes]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return ids as text, times and numbers; `ends` are the first and last id of each stream."""
    found = pa.array(ids, pa.binary())
    widths = {one.find(b"-") for one in ends}
    if len(widths) == 1 and 0 < (width := widths.pop()) <= _MS_DIGITS:
        # The ids in between have the same width, since ids are in order.
        try:
            moments, numbers = (
                pc.binary_slice(found, start, stop).cast(pa.string()).cast(pa.int64())
                for start, stop in ((0, width), (width + 1, _ID_BYTES))
            )
        except pa.ArrowInvalid:
            return _odd_ids(found.cast(pa.string()))
        return found.cast(pa.string()), pc.multiply(moments, 1000).cast(_TIME), numbers
    return _odd_ids(found.cast(pa.string()))


def _odd_ids(ids: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    parts = pc.split_pattern(ids, "-")
    milliseconds, sequence = pc.list_element(parts, 0), pc.list_element(parts, 1)
    try:
        moments = milliseconds.cast(pa.int64())
        numbers = sequence.cast(pa.int64())
    except pa.ArrowInvalid:
        # An explicit id may have any 64-bit number in each part.
        moments = pa.array([min(int(m), _LAST_MS) for m in milliseconds.to_pylist()])
        numbers = pa.array([min(int(s), _LAST_SEQ) for s in sequence.to_pylist()])
    moments = pc.multiply(pc.min_element_wise(moments, _LAST_MS), 1000)
    return ids, moments.cast(_TIME), numbers


# -- by kind ------------------------------------------------------------------------------------


def _queue(entries: Sequence[Entry]) -> Columns:
    flats = [entry[1] for entry in entries]
    return _plain_tasks(flats) or _task_rows(flats)


def _plain_tasks(flats: Sequence[Sequence[bytes]]) -> Columns | None:
    """Return rows of tasks with only a payload and at most a publisher; otherwise None."""
    # Sets are filled by C code: a Python loop over the entries would take a sixth of the total
    # time.
    widths = set(map(len, flats))
    if widths not in ({2}, {4}):
        return None
    columns: Columns = {"fields": _no_fields(len(flats))}
    for at, field, column in ((0, b"payload", "payload"), (2, AGENT, "agent"))[: widths.pop() // 2]:
        if {flat[at] for flat in flats} != {field}:
            return None
        values = [flat[at + 1] for flat in flats]
        if values.count(values[0]) == len(values) and _is_text(values[0]):
            # All tasks have the same publisher.
            columns[column] = _repeated(values[0].decode(), len(values))
        else:
            columns[column] = _texts(values)
    return None if any(column is None for column in columns.values()) else columns


def _task_rows(flats: Sequence[Sequence[bytes]], *, letters: bool = False) -> Columns:
    rows = _Rows("payload", "topic", "correlation_id", "agent", "queue")
    for flat in flats:
        named = _named(flat)
        row: dict[str, str | None] = {}
        if letters:
            row["queue"] = rows.text(named, b"queue")
        if b"payload" in named:
            row["payload"] = rows.text(named, b"payload")
        elif not letters and all(_is_text(k) and _is_text(v) for k, v in named.items()):
            # Another program published the task: its fields become the payload.
            row["payload"] = orjson.dumps(
                {k.decode(): v.decode() for k, v in named.items()}
            ).decode()
            named = {}
        if b"meta" in named:
            row |= _of_meta(named[b"meta"])
        if "payload" in row and (agent := rows.text(named, AGENT)) is not None:
            row["agent"] = agent
        rows.add(row, named)
    columns = rows.columns()
    if not letters:
        del columns["queue"]
    return columns


def _of_meta(meta: bytes) -> dict[str, str | None]:
    try:
        found = orjson.loads(meta)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        column: found[name] for name, column in _META.items() if isinstance(found.get(name), str)
    }


def _dead_letter(entries: Sequence[Entry]) -> Columns:
    return _task_rows([entry[1] for entry in entries], letters=True)


def _plain(entries: Sequence[Entry], **fields: bytes) -> Columns:
    """Return rows whose columns are copies of the entries' fields."""
    rows = _Rows(*fields)
    for entry in entries:
        named = _named(entry[1])
        rows.add({name: rows.text(named, field) for name, field in fields.items()}, named)
    return rows.columns()


def _channel(entries: Sequence[Entry]) -> Columns:
    columns = _plain(entries, agent=b"agent_id", topic=b"topic", event=b"event", payload=b"message")
    columns["payload"] = _in_json(columns["payload"])
    return columns


def _in_json(texts: pa.Array) -> pa.Array:
    """Return texts as JSON."""
    return pa.array(
        [None if one is None else orjson.dumps(one).decode() for one in texts.to_pylist()],
        pa.string(),
    )


def _inbox(entries: Sequence[Entry]) -> Columns:
    columns = _plain(entries, agent=b"agent_id", topic=b"topic", payload=b"message")
    columns["payload"] = _in_json(columns["payload"])
    return columns


def _metrics(entries: Sequence[Entry]) -> Columns:
    return _plain(entries, event=b"kind", queue=b"queue", agent=b"agent")


def _event(entries: Sequence[Entry]) -> Columns:
    rows = _Rows("event", "correlation_id", "payload")
    for entry in entries:
        named = _named(entry[1])
        row = {"event": rows.text(named, b"event_type"), "payload": rows.text(named, b"payload")}
        # Search the text first: most metadata lacks the field, and parsing is the slowest part.
        if b'"correlation_id"' in (metadata := named.get(b"metadata", b"")):
            row["correlation_id"] = _of_meta(metadata).get("correlation_id")
        rows.add(row, named)
    return rows.columns()


def _attempts(
    groups: Sequence[tuple[str, Sequence[Entry]]],
) -> tuple[Sequence[tuple[str, Sequence[Entry]]], Columns]:
    """Return the rows of packed attempts, and each entry repeated for each of its rows."""
    rows = _Rows("queue", "agent", "event")
    found = []
    for name, page in groups:
        repeated: list[Entry] = []
        for entry in page:
            named = _named(entry[1])
            attempts = spread(text(entry[0]), named)
            if attempts is None:
                rows.add({}, named)
                repeated.append(entry)
                continue
            for row, fields in attempts:
                rows.add_text(row, fields)
                repeated.append(entry)
        found.append((name, repeated))
    return found, rows.columns()


_READERS: dict[str, Callable[[Sequence[Entry]], Columns]] = {
    CHANNEL: _channel,
    QUEUE: _queue,
    DEAD_LETTER: _dead_letter,
    METRICS: _metrics,
    EVENT: _event,
    INBOX: _inbox,
}


class _Rows:
    """Collects rows: columns of text, and a map of all other fields."""

    def __init__(self, *names: str) -> None:
        self._columns: dict[str, list[str | None]] = {name: [] for name in names}
        self._offsets = [0]
        self._keys: list[str] = []
        self._values: list[str] = []

    @staticmethod
    def text(named: dict[bytes, bytes], field: bytes) -> str | None:
        """Remove and return a field that has its own column; None if it is missing or not text."""
        value = named.get(field)
        if value is None or not _is_text(value):
            return None
        del named[field]
        return value.decode()

    def add(self, row: dict[str, str | None], rest: dict[bytes, bytes]) -> None:
        for name, column in self._columns.items():
            column.append(row.get(name))
        for key, value in rest.items():
            field, decoded = key.decode("utf-8", "backslashreplace"), _decoded(value)
            self._keys.append(field if decoded is not None else f"{field}:base64")
            self._values.append(
                decoded if decoded is not None else base64.b64encode(value).decode()
            )
        self._offsets.append(len(self._keys))

    def add_text(self, row: dict[str, str | None], rest: dict[str, str]) -> None:
        """Add a row whose other fields are text."""
        for name, column in self._columns.items():
            column.append(row.get(name))
        self._keys += rest
        self._values += rest.values()
        self._offsets.append(len(self._keys))

    def columns(self) -> Columns:
        columns: Columns = {
            name: pa.array(values, pa.string()) for name, values in self._columns.items()
        }
        columns["fields"] = _map(self._offsets, self._keys, self._values)
        return columns


def _map(offsets: list[int], keys: list[str], values: list[str]) -> pa.Array:
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )


def _named(flat: Sequence[bytes] | None) -> dict[bytes, bytes]:
    """Return an entry's fields; repeated fields have their occurrence's number in the name."""
    flat = flat or ()
    keys = flat[::2]
    named = dict(zip(keys, flat[1::2], strict=False))
    if len(named) < len(keys):
        named = {}
        for n in range(0, len(flat) - 1, 2):
            key, turn = flat[n], 2
            while key in named:
                key, turn = b"%b:%d" % (flat[n], turn), turn + 1
            named[key] = flat[n + 1]
    return named


def _texts(values: Sequence[bytes]) -> pa.Array | None:
    """Return values as text, or None if any value is not UTF-8."""
    try:
        found = pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return None
    return found


def _is_text(value: bytes) -> bool:
    return _decoded(value) is not None


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
