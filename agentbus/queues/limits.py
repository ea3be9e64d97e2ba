"""The limits of a queue across all workers: concurrent tasks, and starts per second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import names
from agentbus.core.errors import UsageError

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken

# Envelope fields to which a limit can apply; headers and the payload are addressed by a path.
_FIELDS = frozenset(
    ("tenant", "ordering_key", "key", "topic", "source", "correlation_id", "causation_id")
)
_PATHS = ("headers.", "payload.")
MOST_AT_ONCE = 10_000
MOST_PER_SECOND = 100_000.0
_LONGEST_KEY = 256


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """The limits of a queue, which apply to each of its groups.

    At most `at_once` tasks run at once, and at most `per_second` start per second, after an initial `burst`
    of at most that many. With `by`, this applies to each value of that field: `tenant`, `ordering_key`,
    `key`, `topic`, `source`, `correlation_id`, `causation_id`, `headers.NAME` or `payload.PATH`. Tasks
    without the field share one limit.
    """

    at_once: int | None = None
    per_second: float | None = None
    burst: int | None = None
    by: str | None = None

    def key_of(self, task: Taken) -> str:
        """Return the value of the limit's field in a task, without newlines and truncated."""
        if self.by is None:
            return ""
        value: Any = task.meta
        path = [self.by]
        if self.by.startswith(_PATHS):
            head, _, rest = self.by.partition(".")
            if head == "headers":
                path = ["headers", rest]
            else:
                value, path = task.payload, rest.split(".")
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        if value is None or isinstance(value, (dict, list)):
            return ""
        return names.escape(str(value)).replace("\n", "%0A")[:_LONGEST_KEY]

    def encoded(self) -> bytes:
        """Return the limits in stored form."""
        given = {name: getattr(self, name) for name in ("at_once", "per_second", "burst", "by")}
        return orjson.dumps({name: value for name, value in given.items() if value is not None})


def checked(
    at_once: int | None, per_second: float | None, burst: int | None, by: str | None
) -> QueueLimit:
    """Return validated limits. Raises `UsageError`."""
    if at_once is None and per_second is None:
        raise UsageError("no limit is given", hint="give at_once, per_second or both")
    if at_once is not None and not _whole(at_once, MOST_AT_ONCE):
        raise UsageError(
            f"at_once is {at_once!r}", hint=f"give a whole number from 1 to {MOST_AT_ONCE}"
        )
    if per_second is not None and not _rate(per_second):
        raise UsageError(
            f"per_second is {per_second!r}",
            hint=f"give a number from 0.001 to {MOST_PER_SECOND:.0f}",
        )
    if burst is not None:
        if per_second is None:
            raise UsageError("burst is given without per_second", hint="give both")
        if not _whole(burst, int(MOST_PER_SECOND)):
            raise UsageError(f"burst is {burst!r}", hint="give a whole number of at least 1")
    if by is not None and not _field(by):
        raise UsageError(
            f"by is {by!r}",
            hint=f"use {', '.join(sorted(_FIELDS))}, headers.NAME or payload.PATH",
        )
    return QueueLimit(at_once, None if per_second is None else float(per_second), burst, by)


def _whole(number: object, most: int) -> bool:
    return type(number) is int and 1 <= number <= most


def _rate(number: object) -> bool:
    return type(number) in (int, float) and 0.001 <= number <= MOST_PER_SECOND  # type: ignore[operator]


def _field(by: object) -> bool:
    if not isinstance(by, str) or len(by) > _LONGEST_KEY:
        return False
    return by in _FIELDS or (by.startswith(_PATHS) and all(by.split(".")))


def limit_of(stored: bytes | None) -> QueueLimit | None:
    """Return stored limits; None if there are none, or if the value is malformed."""
    if not stored:
        return None
    try:
        fields = orjson.loads(stored)
        given = (fields.get(name) for name in ("at_once", "per_second", "burst", "by"))
        return checked(*given)
    except (ValueError, AttributeError, UsageError):
        return None
