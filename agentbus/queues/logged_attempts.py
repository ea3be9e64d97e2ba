"""Unpacks entries of the log of attempts."""

from __future__ import annotations

import re
import sys
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agentbus.core.stream import id_time
from agentbus.queues.ids import PRIORITIES, split, suffix

if TYPE_CHECKING:
    from collections.abc import Mapping

_IDS = re.compile(r"\d{1,15}-\d{1,20}( \d{1,15}-\d{1,20})*")
# Below that, a score is an order, not a time.
_FIRST_DUE = 1000


class LoggedAttempts(NamedTuple):
    """The attempts of one entry: what all have, and a list for each column.

    `began` is in unix seconds; `waited`, from when it was due until it began, and `took` are in seconds.
    None is unknown. An attempt that was not made has no beginning, and one that was cut off may not have
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
    """Return the attempts of an entry. Raises `ValueError` if another program has written it."""
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
        f"{one}{suffix(queue, priority)}" if first is None else first
        for one, priority, first in zip(ids, priorities, firsts, strict=True)
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
    found = array("f", data)
    if sys.byteorder == "big":
        found.byteswap()
    if len(found) != number:
        raise ValueError("there is not a time for each attempt")
    # NaN, which differs from itself, is unknown.
    return [one if one == one else None for one in found.tolist()]  # noqa: PLR0124


def _column(packed: Any, number: int, kind: type) -> list[Any]:
    """Return a value for each attempt, from one for all, or from different ones and an index for each."""
    if isinstance(packed, list):
        values, places = packed
        found = [values[place] for place in places]
    else:
        found = [packed] * number
    if len(found) != number or not all(
        one is None or isinstance(one, kind if kind is not float else (int, float)) for one in found
    ):
        raise ValueError("a column of the attempts is malformed")
    return found


def _priority(stream: str, task: str) -> str:
    """Return the priority of a task: one that was cut off names the stream of retries."""
    return stream if stream in PRIORITIES else split(task)[2]


def _waited(began: float | None, entry: str, due: float | None) -> float | None:
    if began is None or (due is not None and due < _FIRST_DUE):
        return None
    # By two clocks.
    return max(0.0, began - (id_time(entry) if due is None else due / 1000))
