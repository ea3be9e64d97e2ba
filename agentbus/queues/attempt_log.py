"""The attempt log: packs all attempts that one step settles into one entry, and reads entries.

The scripts that settle tasks append the entry, so that an attempt is logged exactly if it counts. The
script that reclaims a task appends the attempt that was cut off when the worker died.
`docs/reference/keys.md` describes the format of an entry. Failures are also written to the operations log.
"""

from __future__ import annotations

import re
import sys
import time
from array import array
from collections import defaultdict
from math import nan
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agentbus.core import loggers
from agentbus.core.stream import id_time
from agentbus.queues.claimed import Expired, NotRun, Taken, said
from agentbus.queues.ids import PRIORITIES, split, suffix

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentbus.queues.notify import Notifications
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg


DONE, RETRIED, DEAD, SNOOZED = "done", "retried", "dead", "snoozed"
CANCELLED, EXPIRED, CUT_OFF = "cancelled", "expired", "cut_off"
_LONGEST_ERROR = 200
_meta = attrgetter("meta")
# Default values of columns, which the log omits.
_READY: dict[str, Any] = {"priority": "normal", "attempt": 1, "outcome": DONE}
_IDS = re.compile(r"\d{1,15}-\d{1,20}( \d{1,15}-\d{1,20})*")
# Scores below this only give an order, not a time.
_FIRST_DUE = 1000


class EndedAttempt(NamedTuple):
    """An attempt that has ended; `error` is the reason if it failed."""

    task: Taken
    outcome: str = DONE
    error: BaseException | str | None = None


class AttemptLog:
    """Packs the attempts that one consumer settles. The log keeps about `bound` entries."""

    def __init__(self, scope: Scope, queue: str, group: str, worker: str, bound: int) -> None:
        self.key = scope.keys.attempt_log
        self.bound = bound
        self._scope = scope
        self._of = ("queue", queue, "group", group, "worker", worker)
        # Tasks to acknowledge, whose attempts have ended, by priority and entry.
        self._ended: defaultdict[str, dict[bytes, Taken]] = defaultdict(dict)

    def remember(self, tasks: Iterable[Taken]) -> None:
        """Remember done tasks until they are acknowledged by their ids; thread-safe."""
        ended = self._ended
        for task in tasks:
            ended[task.priority][task.entry_id] = task

    def of_done(self, done: Mapping[str, Sequence[bytes]]) -> tuple[Arg, ...]:
        """Return the log words for tasks that are acknowledged by their ids, in order of priorities."""
        tasks: list[Taken] = []
        tiers: list[str] = []
        for priority in PRIORITIES:
            ids = done.get(priority)
            if ids:
                known = self._ended[priority].pop
                known_tasks = [known(entry_id, None) for entry_id in ids]
                tasks += [
                    Taken(entry_id, priority, None, {}, 1) if task is None else task
                    for entry_id, task in zip(ids, known_tasks, strict=True)
                ]
                tiers += [priority] * len(ids)
        columns: dict[str, Sequence[Any]] = {}
        if tiers[0] != "normal" or tiers[-1] != "normal":
            columns["priority"] = tiers
        return self._words(tasks, columns)

    def of(self, attempts: Sequence[EndedAttempt]) -> tuple[Arg, ...]:
        """Return the log words for attempts that are settled in one step; empty if no handler ran."""
        if not any(map(_counts, attempts)):
            return ()
        tasks = [attempt.task for attempt in attempts]
        columns: dict[str, Sequence[Any]] = {
            "priority": [task.tier for task in tasks],
            "attempt": [_number(attempt) for attempt in attempts],
            "outcome": [
                EXPIRED if isinstance(attempt.error, Expired) else attempt.outcome
                for attempt in attempts
            ],
        }
        if any(attempt.error is not None for attempt in attempts):
            columns["error"] = [
                None if attempt.error is None else _line(attempt.error) for attempt in attempts
            ]
        if any(task.redelivered for task in tasks):
            columns["due"] = [_due(task) for task in tasks]
        return self._words(tasks, columns)

    def aboard(self, others: Notifications, attempt: EndedAttempt) -> None:
        """Let the script that appends these notifications also append the attempt."""
        if words := self.of([attempt]):
            others.log(self.key, words)

    def _words(self, tasks: Sequence[Taken], columns: dict[str, Sequence[Any]]) -> tuple[Arg, ...]:
        now = time.monotonic()
        try:
            began = [now - task.began for task in tasks]
            took = [task.took for task in tasks]
        except AttributeError:
            spans = [_span(task, now) for task in tasks]
            began, took = [span[0] for span in spans], [span[1] for span in spans]
        if any(map(_meta, tasks)):
            for name, field in (("task", "task"), ("id", "id")):
                values = [_text(task.meta.get(field)) for task in tasks]
                if any(values):
                    columns[name] = values
        more = {
            name: _interned(values)
            for name, values in columns.items()
            if not _usual(values, _READY.get(name))
        }
        return (
            *(self.bound, *self._of, "agent", self._scope.agent),
            *("ids", b" ".join([task.entry_id for task in tasks])),
            *("began", _packed(began), "took", _packed(took)),
            *("more", orjson.dumps(more) if more else b""),
        )


def _packed(seconds: Sequence[float]) -> bytes:
    floats = array("f", seconds)
    if sys.byteorder == "big":
        floats.byteswap()
    return floats.tobytes()


def _span(task: Taken, now: float) -> tuple[float, float]:
    """Return how many seconds ago an attempt began, and its duration; NaN if it did not begin."""
    began = getattr(task, "began", None)
    if began is None:
        return nan, nan
    # Without `took`, the handler has settled the task itself, and is still running.
    return now - began, getattr(task, "took", now - began)


def _counts(attempt: EndedAttempt) -> bool:
    """Return whether an attempt is logged: it was made, or its task had expired or is malformed."""
    if isinstance(attempt.error, NotRun):
        return isinstance(attempt.error, Expired)
    return hasattr(attempt.task, "began") or attempt.task.error is not None


def _number(attempt: EndedAttempt) -> int:
    if isinstance(attempt.error, Expired):
        return attempt.task.attempt + 1
    return getattr(attempt.task, "snoozed", None) or attempt.task.attempt


def _due(task: Taken) -> float | None:
    """Return an attempt's due time in unix ms, 0 if unknown; None for the time of its entry."""
    return getattr(task, "due", None if task.attempt <= 1 else 0)


def _line(error: BaseException | str) -> str:
    """Return the class and the first line of an error, of bounded length."""
    return said(error).partition("\n")[0][:_LONGEST_ERROR]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _usual(values: Sequence[Any], usual: Any) -> bool:
    return values[0] == usual and values.count(usual) == len(values)


def _interned(values: Sequence[Any]) -> Any:
    """Return the common value, or else the distinct values and an index for each."""
    index: dict[Any, int] = {}
    places = [index.setdefault(value, len(index)) for value in values]
    return values[0] if len(index) == 1 else [list(index), places]


class LoggedAttempts(NamedTuple):
    """The attempts of one entry: their common values, and a list for each column.

    `began` is in unix seconds; `waited`, the time between due time and start, and `took` are in seconds;
    None means unknown. An attempt that was not made has no start, and one that was cut off may not have
    begun.
    """

    queue: str
    group: str
    worker: str
    agent: str | None
    tasks: list[str]
    attempts: list[int]
    priorities: list[str]
    outcomes: list[str]
    errors: list[str | None]
    names: list[str | None]
    began: list[float | None]
    waited: list[float | None]
    took: list[float | None]


def unpacked(entry_id: str, named: Mapping[bytes, bytes]) -> LoggedAttempts:
    """Return the attempts in an entry. Raises `ValueError` for a malformed entry."""
    try:
        return _unpacked(entry_id, named)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"the entry {entry_id} is not of the log of attempts") from error


def _unpacked(entry_id: str, named: Mapping[bytes, bytes]) -> LoggedAttempts:
    listed = named[b"ids"].decode("ascii")
    if not _IDS.fullmatch(listed):
        raise ValueError(f"the entry {entry_id} has no ids of tasks")
    ids = listed.split(" ")
    number, at = len(ids), id_time(entry_id)
    more = orjson.loads(named[b"more"] or b"{}")
    queue, group, worker, agent = (
        named[name].decode() for name in (b"queue", b"group", b"worker", b"agent")
    )
    ages, took = (_seconds(named[name], number) for name in (b"began", b"took"))
    began = [None if age is None else at - age for age in ages]
    priorities = _column(more.get("priority", "normal"), number, str)
    firsts = _column(more.get("id"), number, str)
    dues = _column(more.get("due"), number, float)
    tasks = [
        f"{own_id}{suffix(queue, priority)}" if first is None else first
        for own_id, priority, first in zip(ids, priorities, firsts, strict=True)
    ]
    columns: tuple[list[Any], ...] = (
        tasks,
        _column(more.get("attempt", 1), number, int),
        [_priority(*each) for each in zip(priorities, tasks, strict=True)],
        _column(more.get("outcome", "done"), number, str),
        _column(more.get("error"), number, str),
        [name or None for name in _column(more.get("task"), number, str)],
        began,
        [_waited(*each) for each in zip(began, ids, dues, strict=True)],
        took,
    )
    if b"without" in named:
        gone = set(map(int, named[b"without"].split()))
        columns = tuple(
            [value for place, value in enumerate(column) if place not in gone] for column in columns
        )
    return LoggedAttempts(queue, group, worker, agent or None, *columns)


def _seconds(data: bytes, number: int) -> list[float | None]:
    if not data:
        return [None] * number
    values = array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    if len(values) != number:
        raise ValueError("there is not a time for each attempt")
    # NaN marks an unknown value; unlike any number, it differs from itself.
    return [value if value == value else None for value in values.tolist()]  # noqa: PLR0124


def _column(packed: Any, number: int, kind: type) -> list[Any]:
    """Return a value per attempt, from one common value, or from distinct values and their indexes."""
    if isinstance(packed, list):
        values, places = packed
        column = [values[place] for place in places]
    else:
        column = [packed] * number
    if len(column) != number or not all(
        value is None or isinstance(value, kind if kind is not float else (int, float))
        for value in column
    ):
        raise ValueError("a column of the attempts is malformed")
    return column


def _priority(stream: str, task: str) -> str:
    """Return the priority of a task; an attempt that was cut off may name the retry stream instead."""
    return stream if stream in PRIORITIES else split(task)[2]


def _waited(began: float | None, entry: str, due: float | None) -> float | None:
    if began is None or (due is not None and due < _FIRST_DUE):
        return None
    # The two times come from different clocks, so the difference can be negative.
    return max(0.0, began - (id_time(entry) if due is None else due / 1000))


def is_heard(level: str) -> bool:
    """Report whether any handler receives records of a level."""
    return loggers.heard(level)


def emit(
    scope: Scope, of: tuple[str, str, str], level: str, task: Taken, error: BaseException | str
) -> None:
    """Log a failed run with the traceback, or that a task became dead.

    `of` is the task's queue, group and id.
    """
    why, raised = said(error), error if isinstance(error, BaseException) else None
    queue, group, name = of
    outcome = "dead" if raised is None else "failed"
    fields: dict[str, object] = {
        "verb": "work",
        "agent": scope.agent,
        "project": scope.keys.project,
        "queue": queue,
        "group": group,
        "id": name,
        "attempt": task.attempt,
        "outcome": outcome,
        "error": why,
    }
    text = f"{name} {outcome} (group {group}, attempt {task.attempt}): {why}"
    loggers.emit(level, fields, text, raised)
