"""Detects crash loops by two rolling windows, and sets the pauses between restarts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from agentbus.core.errors import ConfigError
from agentbus.queues.retry import Backoff

# Seconds of running after which earlier crashes no longer count.
HEALTHY = 60.0
BACKOFF = Backoff(first=0.5, longest=30.0)
_FEW, _FEW_WITHIN = 5, 60.0
_MANY, _MANY_WITHIN = 10, 1800.0


@dataclass(frozen=True, slots=True)
class CrashWindow:
    """A crash loop is defined by a number of crashes within a time in seconds."""

    crashes: int
    seconds: float


# Public name of the class.
Window = CrashWindow


def windows(
    healthy: float = HEALTHY, silence: float = 0.0, longest: float = 30.0
) -> list[CrashWindow]:
    """Return the two windows: 5 crashes within 60 s, and 10 within 30 min or longer.

    The time between two crashes is at most a run just short of `healthy` seconds, plus `silence` until a
    process without heartbeats is killed, plus the `longest` pause. The second window has room for 10 of
    these, since otherwise a process could crash forever.
    """
    at_most = (healthy + silence + longest) * _MANY
    return [CrashWindow(_FEW, _FEW_WITHIN), CrashWindow(_MANY, max(_MANY_WITHIN, at_most))]


class CrashHistory:
    """The crashes of one process and its replacements, by the caller's monotonic clock."""

    def __init__(
        self,
        within: Sequence[CrashWindow],
        *,
        healthy: float = HEALTHY,
        backoff: Backoff = BACKOFF,
    ) -> None:
        if not within or any(window.crashes < 1 or window.seconds <= 0 for window in within):
            raise ConfigError(
                f"the windows of crashes are {within!r}",
                hint="give at least one crash, and seconds",
            )
        self._within = tuple(within)
        self._healthy = healthy
        self._backoff = backoff
        self._at: deque[float] = deque(maxlen=max(window.crashes for window in within))

    @property
    def count(self) -> int:
        """The number of crashes in this series, up to the number that the windows need."""
        return len(self._at)

    def add(self, now: float, lived: float) -> CrashWindow | None:
        """Record a crash after a run of `lived` seconds; returns the window that is full."""
        if lived >= self._healthy:
            self._at.clear()
        self._at.append(now)
        for window in self._within:
            if self.count >= window.crashes and now - self._at[-window.crashes] <= window.seconds:
                return window
        return None

    def pause(self) -> float:
        """Return the seconds to wait before the next start."""
        return self._backoff.after(max(1, self.count))

    def clear(self) -> None:
        self._at.clear()
