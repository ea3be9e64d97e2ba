"""Measures the CPU time of one coroutine, excluding others that run between its steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

T = TypeVar("T")


class Timed(Generic[T]):
    """Runs a coroutine when awaited; `spent` is the CPU time in seconds that it has taken."""

    def __init__(self, runs: Coroutine[Any, Any, T]) -> None:
        self._runs = runs
        self.spent = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        """Run the coroutine step by step; exceptions and cancellation pass through."""
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
