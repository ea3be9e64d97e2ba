"""Retries: the backoff, and the exceptions by which a handler retries or dead-letters its task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import random
from typing import Any

from agentbus.core.errors import UsageError
from agentbus.core.validate import is_seconds

ATTEMPTS = 4
_LONGEST = 300.0
_FAR = 400 * 86_400.0


def pause(seconds: float) -> float:
    """Check a pause before the next attempt, in seconds, and return it."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise UsageError(f"the pause is a {type(seconds).__name__}", hint="give seconds")
    if not 0 <= seconds <= _FAR:
        raise UsageError(f"the pause is {seconds!r} s", hint="give seconds, at most 400 days")
    return seconds


class Retry(Exception):
    """A handler raises this to retry its task, after `after` seconds or the backoff."""

    def __init__(self, message: str = "", *, after: float | None = None) -> None:
        super().__init__(message)
        self.after = None if after is None else pause(after)


class Snooze(Exception):
    """A handler raises this to run its task again after `after` seconds, without counting this attempt."""

    def __init__(self, after: float) -> None:
        self.after = pause(after)
        super().__init__(f"snoozed for {after:g} s")


class Bury(Exception):
    """A handler raises this to move its task to the dead letters at once."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with jitter: `first` seconds, doubled for each attempt, at most `longest`."""

    first: float = 1.0
    longest: float = _LONGEST

    def after(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt; half of them are random."""
        span = min(self.longest, self.first * 2.0 ** min(attempt - 1, 60), _FAR)
        return span * (0.5 + random() / 2)  # noqa: S311 (no secret)


def backoffs(
    given: Backoff | Mapping[str, Backoff] | None, policy: Backoff
) -> tuple[Backoff, Mapping[str, Backoff]]:
    """Return a worker's backoff, and the backoffs of typed tasks by name. Raises `UsageError`."""
    named = hasattr(given, "items")
    by_task: Any = given if named else {}
    common: Any = given if given is not None and not named else policy
    for backoff in (common, *by_task.values()):
        if not callable(getattr(backoff, "after", None)):
            raise UsageError(f"the backoff is {backoff!r}", hint="give a Backoff")
        if isinstance(backoff, Backoff):
            for what in ("first", "longest"):
                _check(what, getattr(backoff, what))
    return common, by_task


def _check(what: str, seconds: object) -> None:
    # An infinite `longest` is allowed: the backoff has an upper limit anyway.
    most = _FAR if what == "first" else math.inf
    if not is_seconds(seconds) or not 0 <= seconds <= most:
        raise UsageError(f"'{what}' of the backoff is {seconds!r:.60}", hint="give seconds")
