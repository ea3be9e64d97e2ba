"""Converts rows to tasks; an error names the row and its column."""

from __future__ import annotations

import datetime
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agentbus.core import envelope, names
from agentbus.core.errors import AgentBusError, InvalidPayload
from agentbus.queues.publish import Encoded, check_priority, due, encoded
from agentbus.queues.task import Task, check_due

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from agentbus.pipeline.sink.sink_options import Sink
    from agentbus.queues.policy import Policy
    from agentbus.store.scope import Scope

# Columns that are not stored in a task's envelope.
_ASIDE = ("payload", "priority", "delay", "at")


class RowTask(NamedTuple):
    """A row as an encoded task: its priority, and its delay and time in ms if it is due later."""

    payload: bytes
    meta: bytes
    key: str | None
    ordering_key: str | None
    priority: str
    when: tuple[str, str] | None = None
    # The whole task, if it is due later.
    task: Task | None = None


def numbered(iterator: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield the rows of batches, each with its number from 1."""
    number = 0
    for batch in iterator:
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            number += 1
            yield number, values


def named(error: AgentBusError, number: int, partition: int, column: str) -> AgentBusError:
    """Return a value's error with the row and the column in its message."""
    found = type(error)(
        f"row {number} of partition {partition}, column {column!r}: {error.message}",
        hint=error.hint,
    )
    found.shell_hint = error.shell_hint
    return found


class TaskRows:
    """Reads the rows of one partition as tasks of a queue."""

    def __init__(self, scope: Scope, sink: Sink, policy: Policy, partition: int) -> None:
        self._scope = scope
        self._policy = policy
        self._partition = partition
        self._columns = sink.columns
        self._is_json = sink.is_json
        self._limit = scope.max_body
        self._payload_at = sink.columns.index("payload")
        self._key_at = sink.columns.index("key") if "key" in sink.columns else None
        # With only these columns, no row needs a `Task`, which takes twice as long.
        self._is_plain = set(sink.columns) <= {"payload", "key"} and policy.key_field is None

    def tasks(self, rows: Iterable[tuple[int, tuple[Any, ...]]]) -> Iterator[RowTask]:
        """Yield a task for each row; raises the error of the first invalid row."""
        read = self._plain if self._is_plain else self._whole
        for number, values in rows:
            try:
                task = read(values)
            except AgentBusError as error:
                raise named(error, number, self._partition, self._culprit(values)) from error
            yield task

    def _plain(self, values: tuple[Any, ...]) -> RowTask:
        data = self._encoded(values[self._payload_at])
        key = None if self._key_at is None else values[self._key_at]
        if key is None:
            return RowTask(data, b"", None, None, self._policy.tier)
        meta = b'{"key":%b}' % orjson.dumps(names.name("key", key))
        return RowTask(data, meta, key, None, self._policy.tier)

    def _whole(self, values: tuple[Any, ...]) -> RowTask:
        row = dict(zip(self._columns, values, strict=True))
        when = _when(row.get("delay"), row.get("at"))
        task = self._task(row)
        if self._policy.key_field is not None:
            keyed = self._policy.keyed(task)
            assert isinstance(keyed, Task)
            task = keyed
        if when is not None:
            seconds = float(when[0]) / 1000 if when[0] else float(when[1]) / 1000 - time.time()
            check_due(task, seconds)
        priority = row.get("priority") or self._policy.tier
        check_priority(priority)
        found = encoded(self._scope, task)
        if not isinstance(found, Encoded):
            return RowTask(found, b"", None, None, priority, when, task)
        whole = found.payload, found.meta, found.key, found.ordering_key
        return RowTask(*whole, priority, when, task)

    def _task(self, row: dict[str, Any]) -> Task:
        fields = {name: value for name, value in row.items() if name not in _ASIDE}
        for name in ("expires", "time_limit"):
            if fields.get(name) is not None:
                fields[name] = float(fields[name])
        if fields.get("headers") is not None:
            fields["headers"] = dict(fields["headers"])
        return Task(self._payload(row["payload"]), **fields)

    def _payload(self, value: Any) -> Any:
        if value is None:
            raise InvalidPayload("the payload is null", hint="leave such rows out, or give 'null'")
        if not isinstance(value, str) or not self._is_json:
            return value
        try:
            return orjson.loads(value)
        except ValueError as error:
            raise InvalidPayload(
                f"the payload is not JSON ({error})",
                hint="make it so by to_json(…), or set payloadFormat to text",
            ) from None

    def _encoded(self, value: Any) -> bytes:
        """Return a payload as JSON; text that is already JSON is unchanged."""
        found = self._payload(value)
        if self._is_json and isinstance(value, str) and "\\u0000" not in value:
            data = value.encode()
            if len(data) <= self._limit:
                return data
        return envelope.encode(found, self._limit)

    def _check(self, row: dict[str, Any]) -> None:
        encoded(self._scope, self._task(row))

    def _culprit(self, values: tuple[Any, ...]) -> str:
        """Return the column that makes a row invalid, by checking each alone."""
        row = dict(zip(self._columns, values, strict=True))
        checks: dict[str, Callable[[], object]] = {
            "priority": lambda: check_priority(row["priority"]) if row["priority"] else None,
            "delay": lambda: _when(row["delay"], None),
            "at": lambda: _when(None, row["at"]),
        }
        for name in self._columns:
            alone = {"payload": "null" if self._is_json else "", name: row[name]}
            try:
                checks.get(name, partial(self._check, alone))()
            except AgentBusError:
                return name
        return next((name for name in ("at", "delay") if row.get(name) is not None), "payload")


def _when(delay: Any, at: Any) -> tuple[str, str] | None:
    """Return the delay and the time of a row in ms as text; None if it is due at once."""
    if delay is None and at is None:
        return None
    if isinstance(at, datetime.datetime):
        at = at.timestamp()
    return due(None if delay is None else float(delay), None if at is None else float(at))
