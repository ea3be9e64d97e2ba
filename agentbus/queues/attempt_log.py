"""Packs the log of attempts: what each attempt at a task was, in one entry for all that one step settles.

The scripts that settle tasks append the entry, so that an attempt is in the log exactly if it counts. The
script that reclaims a task appends the attempt that its worker's death cut off. The form of an entry is in
`docs/reference/keys.md`.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections import defaultdict
from math import nan
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agentbus.queues.claimed import Expired, NotRun, Taken, said
from agentbus.queues.ids import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentbus.queues.notify import Notifications
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg

DONE, RETRIED, BURIED, SNOOZED = "done", "retried", "buried", "snoozed"
CANCELLED, EXPIRED, CUT_OFF = "cancelled", "expired", "cut_off"
_LONGEST_ERROR = 200
_meta = attrgetter("meta")
# What a column is of most attempts, and is left out.
_READY: dict[str, Any] = {"priority": "normal", "attempt": 1, "outcome": DONE}


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

    def ended(self, tasks: Iterable[Taken]) -> None:
        """Remember tasks that are done until they are acknowledged by their ids; thread-safe."""
        ended = self._ended
        for task in tasks:
            ended[task.priority][task.entry_id] = task

    def of_done(self, done: Mapping[str, Sequence[bytes]]) -> tuple[Arg, ...]:
        """Return the words for tasks that are acknowledged by their ids, in the order of priorities."""
        tasks: list[Taken] = []
        tiers: list[str] = []
        for priority in PRIORITIES:
            ids = done.get(priority)
            if ids:
                known = self._ended[priority].pop
                found = [known(one, None) for one in ids]
                tasks += [
                    Taken(one, priority, None, {}, 1) if task is None else task
                    for one, task in zip(ids, found, strict=True)
                ]
                tiers += [priority] * len(ids)
        columns: dict[str, Sequence[Any]] = {}
        if tiers[0] != "normal" or tiers[-1] != "normal":
            columns["priority"] = tiers
        return self._words(tasks, columns)

    def of(self, attempts: Sequence[EndedAttempt]) -> tuple[Arg, ...]:
        """Return the words for attempts that are settled in one step; none if no handler ran."""
        if not any(map(_counts, attempts)):
            return ()
        tasks = [one.task for one in attempts]
        columns: dict[str, Sequence[Any]] = {
            "priority": [task.tier for task in tasks],
            "attempt": [_number(one) for one in attempts],
            "outcome": [
                EXPIRED if isinstance(one.error, Expired) else one.outcome for one in attempts
            ],
        }
        if any(one.error is not None for one in attempts):
            columns["error"] = [None if one.error is None else _line(one.error) for one in attempts]
        if any(task.redelivered for task in tasks):
            columns["due"] = [_due(task) for task in tasks]
        return self._words(tasks, columns)

    def aboard(self, others: Notifications, attempt: EndedAttempt) -> None:
        """Have the script that appends these notifications append the attempt, too."""
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
    found = array("f", seconds)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


def _span(task: Taken, now: float) -> tuple[float, float]:
    """Return how many seconds ago an attempt began and how many it took; NaN if it did not begin."""
    began = getattr(task, "began", None)
    if began is None:
        return nan, nan
    # One that its handler has settled is still running.
    return now - began, getattr(task, "took", now - began)


def _counts(one: EndedAttempt) -> bool:
    """Return whether an attempt was made, or not made because its task had expired or is malformed."""
    if isinstance(one.error, NotRun):
        return isinstance(one.error, Expired)
    return hasattr(one.task, "began") or one.task.error is not None


def _number(one: EndedAttempt) -> int:
    if isinstance(one.error, Expired):
        return one.task.attempt + 1
    return getattr(one.task, "snoozed", None) or one.task.attempt


def _due(task: Taken) -> float | None:
    """Return when an attempt was due in unix ms, 0 if unknown; None if when its entry was written."""
    return getattr(task, "due", None if task.attempt <= 1 else 0)


def _line(error: BaseException | str) -> str:
    """Return the class and the first line of an error, of bounded length."""
    return said(error).partition("\n")[0][:_LONGEST_ERROR]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _usual(values: Sequence[Any], usual: Any) -> bool:
    return values[0] == usual and values.count(usual) == len(values)


def _interned(values: Sequence[Any]) -> Any:
    """Return a value that all have, or the different values and the index of each."""
    index: dict[Any, int] = {}
    places = [index.setdefault(value, len(index)) for value in values]
    return values[0] if len(index) == 1 else [list(index), places]
