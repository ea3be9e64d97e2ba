"""Caches lists longer the longer they take to read, so that a view costs little in any project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.store.steps import Op

K = TypeVar("K")
T = TypeVar("T")

# Maximum number of cached lists of single objects, the most recently used ones.
_REMEMBERED = 64

# A list is cached for this multiple of the time that its reading took; `SELDOM` is for a list that
# is also updated from the project's streams.
OFTEN, SELDOM = 40.0, 400.0
# The minimum of this multiple for a long list, which is cached for more than these seconds.
_BUSY, _SHORT = 8.0, 0.1


class Part(Generic[T]):
    """A cached list that is read again after `rest` times the duration of its last reading.

    With `seconds`, a function of the list, it is cached for that time, and longer on a busy machine
    if the list is long.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        read: Callable[[], Op[T]],
        rest: float = OFTEN,
        *,
        seconds: Callable[[T], float] | None = None,
    ) -> None:
        self._rest = rest
        self._seconds = seconds
        self._monotonic = monotonic
        self._read = read
        self._value: T | None = None
        self._took = 0.0
        self._next = float("-inf")
        self._at = float("-inf")

    def get(self) -> Op[T]:
        """Return the list, after reading it again if that is due."""
        began = self._monotonic()
        if self._value is None or began >= self._next:
            self._value = yield from self._read()
            self._at = self._monotonic()
            self._took = self._at - began
            rest = self._rest * self._took
            if self._seconds is not None:
                seconds = self._seconds(self._value)
                rest = seconds if seconds < _SHORT else max(seconds, _BUSY * self._took)
            self._next = self._at + rest
        return self._value

    def forget(self) -> None:
        """Make the next use read the list again."""
        self._next = float("-inf")

    def hasten(self, rest: float) -> None:
        """Shorten the current rest to another multiple of the reading's duration."""
        self._next = min(self._next, self._at + rest * self._took)

    @property
    def age(self) -> float:
        """The seconds since the list was read."""
        return max(0.0, self._monotonic() - self._at)


class Parts(Generic[K, T]):
    """One list for each of several objects, such as an agent's messages; the last 64 are cached."""

    def __init__(self, monotonic: Callable[[], float], read: Callable[[K], Op[T]]) -> None:
        self._monotonic = monotonic
        self._read = read
        self._parts: dict[K, Part[T]] = {}

    def get(self, of: K) -> Op[T]:
        """Return an object's list, after reading it again if that is due."""
        part = self._parts.pop(of, None)
        if part is None:
            part = Part(self._monotonic, lambda: self._read(of))
        self._parts[of] = part
        while len(self._parts) > _REMEMBERED:
            del self._parts[next(iter(self._parts))]
        return (yield from part.get())

    def forget(self) -> None:
        """Make the next use read every list again."""
        self._parts.clear()
