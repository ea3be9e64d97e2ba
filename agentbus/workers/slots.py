"""Slots in which the handlers of several workers run, first come, first served."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from agentbus.workers.executors import is_async


class Slots:
    """A number of slots; thread-safe, for threads and coroutines."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: deque[Future[None]] = deque()
        self._guard = threading.Lock()

    def around(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap a handler so that it waits for a slot before each call."""
        if is_async(handler):

            @functools.wraps(handler)
            async def awaited(delivery: Any) -> Any:
                await self._awaited()
                try:
                    return await handler(delivery)
                finally:
                    self._leave()

            return awaited

        @functools.wraps(handler)
        def blocking(delivery: Any) -> Any:
            self._wait()
            try:
                return handler(delivery)
            finally:
                self._leave()

        return blocking

    def _enter(self) -> Future[None] | None:
        """Take a slot and return None, or return a future that completes when a slot is passed on."""
        with self._guard:
            if self._free:
                self._free -= 1
                return None
            turn: Future[None] = Future()
            self._waiting.append(turn)
            return turn

    def _leave(self) -> None:
        # Pass the slot directly to a waiting thread: if it were freed, this thread could take it
        # again first.
        with self._guard:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._free += 1

    def _wait(self) -> None:
        turn = self._enter()
        if turn is None:
            return
        try:
            turn.result()
        except BaseException:
            self._give_up(turn)
            raise

    async def _awaited(self) -> None:
        turn = self._enter()
        if turn is None:
            return
        try:
            await asyncio.wrap_future(turn)
        except BaseException:
            self._give_up(turn)
            raise

    def _give_up(self, turn: Future[None]) -> None:
        """Leave the waiting list; a slot that was already passed on goes to the next in line."""
        if not turn.cancel() and not turn.cancelled():
            self._leave()
