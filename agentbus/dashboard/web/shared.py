"""A cache for the reads of live pages: many browsers cost the server no more than one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

# A value is cached for this multiple of the time that its reading took, and at most for these
# seconds.
REST, _LONGEST = 10.0, 5.0
_MOST = 256


class SharedReads:
    """The newest value of each key, whose readings several pages share."""

    def __init__(self) -> None:
        self._values: dict[object, tuple[float, Any]] = {}
        self._locks: dict[object, asyncio.Lock] = {}
        self._behind: dict[object, asyncio.Task[Any]] = {}

    async def get(
        self,
        key: object,
        read: Callable[[], Awaitable[T]],
        *,
        rest: float = REST,
        fresh: bool = False,
        behind: bool = False,
        turn: asyncio.Lock | None = None,
    ) -> T:
        """Return a key's value, read again if its rest is over, or with `fresh`.

        The lock `turn` is held during the reading; waiting for the lock does not lengthen the rest.
        With `behind`, the last value is returned while a new one is read; if that reading fails,
        the next caller reads again.
        """
        if fresh:
            return await self._read(key, read, rest, turn)
        if behind and key in self._values:
            until, last = self._values[key]
            if time.monotonic() >= until and key not in self._behind:
                reading = asyncio.create_task(self._read(key, read, rest, turn))
                self._behind[key] = reading
                reading.add_done_callback(partial(self._ended, key))
            known: T = last
            return known
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                until, value = self._values.get(key, (float("-inf"), None))
                if time.monotonic() < until:
                    found: T = value
                    return found
                return await self._read(key, read, rest, turn)
        finally:
            if not lock.locked():
                self._locks.pop(key, None)

    def forget(self) -> None:
        """Read everything again after an action that changed it."""
        self._values.clear()
        for reading in self._behind.values():
            reading.cancel()
        self._behind.clear()

    def _ended(self, key: object, reading: asyncio.Task[Any]) -> None:
        if self._behind.get(key) is reading:
            del self._behind[key]
        if not reading.cancelled() and reading.exception() is not None:
            # The next caller finds no value, reads it and gets the error, if it persists.
            self._values.pop(key, None)

    async def _read(
        self,
        key: object,
        read: Callable[[], Awaitable[T]],
        rest: float,
        turn: asyncio.Lock | None,
    ) -> T:
        async with turn or contextlib.nullcontext():
            began = time.monotonic()
            value = await read()
        now = time.monotonic()
        self._values.pop(key, None)
        self._values[key] = now + min(rest * (now - began), _LONGEST), value
        while len(self._values) > _MOST:
            del self._values[next(iter(self._values))]
        return value
