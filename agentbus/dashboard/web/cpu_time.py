"""The CPU time that one coroutine takes, apart from that of the others between its steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

T = TypeVar("T")


class Timed(Generic[T]):
    """Runs a coroutine where it is awaited; `spent` are the seconds of CPU time that it has taken."""

    def __init__(self, runs: Coroutine[Any, Any, T]) -> None:
        self._runs = runs
        self.spent = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        """Run it step by step; what it raises, and what it is cancelled by, passes through."""
        go: Any = self._runs.send
        given: Any = None
        while True:
            began = time.thread_time()
            try:
                waits_for = go(given)
            except StopIteration as end:
                found: T = end.value
                return found
            finally:
                self.spent += time.thread_time() - began
            try:
                given, go = (yield waits_for), self._runs.send
            except BaseException as error:  # noqa: BLE001 (also that it is cancelled)
                given, go = error, self._runs.throw
