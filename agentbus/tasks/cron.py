"""Due times of a schedule, by an interval or by a cron expression in a time zone.

Times are unix milliseconds. The package cronsim does the calendar arithmetic of cron expressions; this
module applies it to time zones whose clocks change.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from agentbus.core.errors import UsageError

if TYPE_CHECKING:

    class Timing(Protocol):
        """Computes the due times of a schedule."""

        def after(self, when: int) -> int | None:
            """Return the first due time after `when`; None if there is none within 50 years."""

        def latest(self, first: int, until: int, most: int) -> list[int]:
            """Return the latest due times from `first` to `until`, at most `most`, in order."""


# Minimum and maximum period of a schedule in seconds.
SHORTEST, LONGEST = 0.01, 400 * 86_400.0
# Maximum characters of an expression; longer ones take long to evaluate.
_LONGEST_EXPRESSION = 256
_DAY = 86_400
# Last possible time in ms: the calendar ends with the year 9999.
_LATEST = 250_000_000_000_000
_FIELDS = ("minute", "hour", "day of the month", "month", "day of the week")
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_SHELL_HINT = (
    "give five fields, such as '0 6 * * mon-fri': minute, hour, day, month, day of the week"
)


class Every:
    """Due at whole multiples of a period since an anchor, so that delays do not accumulate."""

    def __init__(self, seconds: float, anchor: int) -> None:
        self.period = period(seconds)
        self.anchor = anchor

    def after(self, when: int) -> int | None:
        """Return the first due time after `when`."""
        return self.anchor + ((when - self.anchor) // self.period + 1) * self.period

    def latest(self, first: int, until: int, most: int) -> list[int]:
        """Return the latest due times from `first` to `until`, at most `most`, in order."""
        last = self.anchor + (until - self.anchor) // self.period * self.period
        return [
            last - n * self.period for n in reversed(range(most)) if last - n * self.period >= first
        ]


class Cron:
    """Due when the clocks of a time zone match a cron expression.

    As in Debian's cron, if neither the minute nor the hour begins with `*`, each time is due once a day: a
    time that the clocks skip is due right after the gap, and a time that they repeat is due the first time.
    If either begins with `*`, it is due in every matching minute, however often the clocks show it. Raises
    `UsageError` for an invalid expression or zone.
    """

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        self.zone = zone(timezone)
        self._fields = checked(expression)
        minute, hour, *_ = self._fields.split()
        self._daily = not (minute.startswith("*") or hour.startswith("*"))

    def after(self, when: int) -> int | None:
        """Return the first due time after `when`; None if there is none within 50 years."""
        if when > _LATEST:
            return None
        return (self._once_a_day if self._daily else self._each_minute)(when // 1000)

    def latest(self, first: int, until: int, most: int) -> list[int]:
        """Return the latest due times from `first` to `until`, at most `most`, in order."""
        width = 60_000 * most
        while True:
            start = max(first, until - width)
            times: deque[int] = deque(maxlen=most)
            due = self.after(start - 1)
            while due is not None and due <= until:
                times.append(due)
                due = self.after(due)
            if len(times) == most or start == first:
                return list(times)
            width *= 4

    def _once_a_day(self, when: int) -> int | None:
        local = datetime.fromtimestamp(when, UTC).astimezone(self.zone)
        for moment in CronSim(self._fields, local):
            # In an hour that the clocks repeat, CronSim may return a time that has already passed.
            if (due := int(moment.timestamp())) > when:
                return due * 1000
        return None

    def _each_minute(self, when: int) -> int | None:
        # The offset is constant between two clock changes, so compute each part separately.
        start, offset = when, self._offset(when)
        while True:
            shown = datetime.fromtimestamp(start + offset, UTC).replace(tzinfo=None)
            moment = next(CronSim(self._fields, shown), None)
            if moment is None:
                return None
            due = timegm(moment.timetuple()) - offset
            change = self._change(start, due, offset)
            if change is None:
                return due * 1000
            start, offset = change - 1, self._offset(change)

    def _change(self, start: int, end: int, offset: int) -> int | None:
        """Return the first second after `start + 1`, up to `end`, with a different offset."""
        same = start + 1
        while same < end:
            other = min(same + _DAY, end)
            if self._offset(other) != offset:
                while other - same > 1:
                    middle = (same + other) // 2
                    if self._offset(middle) == offset:
                        same = middle
                    else:
                        other = middle
                return other
            same = other
        return None

    def _offset(self, when: int) -> int:
        offset = datetime.fromtimestamp(when, self.zone).utcoffset()
        assert offset is not None
        return round(offset.total_seconds())


def period(seconds: float) -> int:
    """Return a period in ms. Raises `UsageError` unless it is from 10 ms to 400 days."""
    if type(seconds) not in (int, float) or not SHORTEST <= seconds <= LONGEST:
        raise UsageError(
            f"the period is {seconds!r}", hint="give seconds, from 0.01 to those of 400 days"
        )
    return round(seconds * 1000)


@lru_cache(100)
def zone(name: str) -> ZoneInfo:
    """Return a time zone of the IANA database. Raises `UsageError`."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        # ZoneInfo looks for a file of this name, so the name of a directory raises OSError.
        raise UsageError(
            f"{name!a} is not a time zone", hint="give its IANA name, such as Europe/Berlin"
        ) from None


@lru_cache(1000)
def checked(expression: str) -> str:
    """Return a cron expression as five fields. Raises `UsageError`, which names the invalid field."""
    if not isinstance(expression, str) or len(expression) > _LONGEST_EXPRESSION:
        raise UsageError("the cron expression is not a short text", hint=_SHELL_HINT)
    text = _NAMED.get(expression.strip().lower(), expression)
    fields = list(re.finditer(r"\S+", text))
    if len(fields) != len(_FIELDS):
        number = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
        raise UsageError(f"the cron expression {expression!a} has {number}", hint=_SHELL_HINT)
    for n, field in enumerate(fields):
        others = ["*"] * len(fields)
        others[n] = field[0]
        if not _is_valid(" ".join(others)):
            raise UsageError(
                f"in the cron expression {expression!a}, {field[0]!a} at character"
                f" {field.start() + 1} is not valid as the {_FIELDS[n]}",
                hint=_SHELL_HINT,
            )
    normal = " ".join(field[0] for field in fields)
    if not _is_valid(normal, lambda cron: next(cron, None) is not None):
        raise UsageError(
            f"the cron expression {expression!a} never matches",
            hint="no month has such a day",
        )
    return normal


def _is_valid(fields: str, test: Callable[[CronSim], bool] = lambda _cron: True) -> bool:
    try:
        return test(CronSim(fields, datetime(2024, 1, 1)))  # noqa: DTZ001 (any time will do)
    except (CronSimError, ValueError, AssertionError):
        return False
