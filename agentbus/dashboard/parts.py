"""Reads lists less often the longer that takes, so that a view costs little whatever the project holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.store.steps import Op

K = TypeVar("K")
T = TypeVar("T")

# Lists of single objects that are remembered: of those looked at last.
_REMEMBERED = 64

# A list rests for this multiple of the time that its reading took; the second is for one that is followed
# in between, by what the project's streams say.
OFTEN, SELDOM = 40.0, 400.0
# The least such multiple for a list that is long: that rests for more than these seconds.
_BUSY, _SHORT = 8.0, 0.1


class Part(Generic[T]):
    """A list that is read again after a `rest` of a multiple of the time that its reading took.

    With `seconds`, which returns them for a list, it rests that long, and longer on a busy machine if the
    list is long.
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
        """Return the list, read again if that is due."""
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
        """Read the list again when it is needed next."""
        self._next = float("-inf")

    def hasten(self, rest: float) -> None:
        """Shorten the rest that it has now to another multiple."""
        self._next = min(self._next, self._at + rest * self._took)

    @property
    def age(self) -> float:
        """The seconds since it was read."""
        return max(0.0, self._monotonic() - self._at)


class Parts(Generic[K, T]):
    """A list for each of several objects, such as the messages of an agent; the last 64 are remembered."""

    def __init__(self, monotonic: Callable[[], float], read: Callable[[K], Op[T]]) -> None:
        self._monotonic = monotonic
        self._read = read
        self._parts: dict[K, Part[T]] = {}

    def get(self, of: K) -> Op[T]:
        """Return an object's list, read again if that is due."""
        part = self._parts.pop(of, None)
        if part is None:
            part = Part(self._monotonic, lambda: self._read(of))
        self._parts[of] = part
        while len(self._parts) > _REMEMBERED:
            del self._parts[next(iter(self._parts))]
        return (yield from part.get())

    def forget(self) -> None:
        """Read every list again when it is needed next."""
        self._parts.clear()
