"""A clock that stands still until it is told to go on."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from agentbus.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

# A server lets a key live through the very moment at which it ends. So its time is ahead by a hair, which
# grows with each advance: what lasts 60 s is over after `advance(60)`. More hairs than these would make a
# millisecond, of which ids are made.
_FIRST_HAIR, _HAIR, _MOST_HAIRS = 5e-5, 5e-7, 1_800


class FakeClock:
    """The time of a server in memory, and of the buses on it: it stands still but for `advance`.

    Only how long a verb waits goes on by the machine's clock as well, so that a timeout ends a wait even
    where nobody advances. Threads may share a clock.
    """

    def __init__(self) -> None:
        """It starts at the machine's time."""
        self._guard = threading.Lock()
        self._milliseconds = self._began = int(time.time() * 1000)
        self._advances = 0
        self._listeners: list[Callable[[], None]] = []

    @staticmethod
    def of(now: Callable[[], float]) -> FakeClock | None:
        """Return the clock whose `time` this function is, if it is one's."""
        clock = getattr(now, "__self__", None)
        return clock if isinstance(clock, FakeClock) else None

    def __repr__(self) -> str:
        return f"FakeClock(now={self.now!r})"

    @property
    def now(self) -> float:
        """The unix time."""
        return self._milliseconds / 1000

    def advance(self, seconds: float) -> float:
        """Move on by so many seconds, and return the new time; what waits for it wakes up."""
        if not 0 <= seconds < float("inf"):
            raise UsageError(f"the clock cannot advance by {seconds!r} s", hint="give 0 or more")
        with self._guard:
            self._milliseconds += round(seconds * 1000)
            self._advances += 1
        for listener in list(self._listeners):
            listener()
        return self.now

    def advance_to(self, when: float) -> float:
        """Move on to a unix time, unless it is over, and return the new time."""
        return self.advance(max(0.0, when - self.now))

    def time(self) -> float:
        """Return the unix time, as `time.time` does."""
        return self.now

    def monotonic(self) -> float:
        """Return what `time.monotonic` returns, and by how much this clock was advanced."""
        return time.monotonic() + (self._milliseconds - self._began) / 1000

    def server_time(self) -> float:
        """Return the unix time by which a server goes."""
        return self.now + _FIRST_HAIR + _HAIR * min(self._advances, _MOST_HAIRS)

    def on_advance(self, listener: Callable[[], None]) -> None:
        """Have a function called after each advance."""
        self._listeners.append(listener)
