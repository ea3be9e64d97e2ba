"""A fake clock, which advances only by `advance`."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from agentbus.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

# A server keeps a key during the millisecond in which it expires. The server's time is therefore
# slightly ahead, by more with each advance: a TTL of 60 s is over after `advance(60)`. The limit
# keeps the sum below a millisecond.
_FIRST_HAIR, _HAIR, _MOST_HAIRS = 5e-5, 5e-7, 1_800


class FakeClock:
    """The time of a server in memory and of its buses; only `advance` moves it; thread-safe.

    The timeout of a waiting verb also elapses with the machine's clock, so that the verb ends
    without `advance`.
    """

    def __init__(self) -> None:
        """Start at the machine's current time."""
        self._guard = threading.Lock()
        self._milliseconds = self._began = int(time.time() * 1000)
        self._advances = 0
        self._listeners: list[Callable[[], None]] = []

    @staticmethod
    def of(now: Callable[[], float]) -> FakeClock | None:
        """Return the clock whose method `time` this function is, or None."""
        clock = getattr(now, "__self__", None)
        return clock if isinstance(clock, FakeClock) else None

    def __repr__(self) -> str:
        return f"FakeClock(now={self.now!r})"

    @property
    def now(self) -> float:
        """The unix time."""
        return self._milliseconds / 1000

    def advance(self, seconds: float) -> float:
        """Advance by a number of seconds, wake the waiting verbs, and return the new time."""
        if not 0 <= seconds < float("inf"):
            raise UsageError(f"the clock cannot advance by {seconds!r} s", hint="give 0 or more")
        with self._guard:
            self._milliseconds += round(seconds * 1000)
            self._advances += 1
        for listener in list(self._listeners):
            listener()
        return self.now

    def advance_to(self, when: float) -> float:
        """Advance to a unix time, unless it is in the past, and return the new time."""
        return self.advance(max(0.0, when - self.now))

    def time(self) -> float:
        """Return the unix time, as `time.time` does."""
        return self.now

    def monotonic(self) -> float:
        """Return `time.monotonic()` plus the seconds by which this clock was advanced."""
        return time.monotonic() + (self._milliseconds - self._began) / 1000

    def server_time(self) -> float:
        """Return the unix time of the server."""
        return self.now + _FIRST_HAIR + _HAIR * min(self._advances, _MOST_HAIRS)

    def on_advance(self, listener: Callable[[], None]) -> None:
        """Call a function after each advance."""
        self._listeners.append(listener)
