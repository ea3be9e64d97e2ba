"""Reads lists less often the longer that takes, so that a view costs little whatever the project holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.store.steps import Op

T = TypeVar("T")

# A list rests for this multiple of the time that its reading took.
_REST = 40.0


class Part(Generic[T]):
    """A list that is read again after a `rest` of a multiple of the time that its reading took."""

    def __init__(
        self, monotonic: Callable[[], float], read: Callable[[], Op[T]], rest: float = _REST
    ) -> None:
        self._rest = rest
        self._monotonic = monotonic
        self._read = read
        self._value: T | None = None
        self._next = float("-inf")
        self._at = float("-inf")

    def get(self) -> Op[T]:
        """Return the list, read again if that is due."""
        began = self._monotonic()
        if self._value is None or began >= self._next:
            self._value = yield from self._read()
            self._at = self._monotonic()
            self._next = self._at + self._rest * (self._at - began)
        return self._value

    @property
    def age(self) -> float:
        """The seconds since it was read."""
        return max(0.0, self._monotonic() - self._at)
