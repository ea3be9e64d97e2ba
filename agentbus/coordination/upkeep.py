"""Repeats a call in the background during a block of code, such as the renewal of a hold."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from agentbus.core.errors import AgentBusError, NotHolder


class Upkeep:
    """Calls `renew` every `seconds` until it is stopped, or until `NotHolder`: in a thread, or a task."""

    def __init__(self, renew: Callable[[], Any], seconds: float) -> None:
        self._renew = renew
        self._seconds = seconds
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start a thread."""
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for it."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def astart(self) -> None:
        """Start a task, which awaits `renew`."""
        self._task = asyncio.ensure_future(self._akeep())

    async def astop(self) -> None:
        """Cancel the task, and wait for it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _keep(self) -> None:
        while not self._over.wait(self._seconds):
            try:
                self._renew()
            except NotHolder:
                return
            except AgentBusError:
                # The server may be back before the hold expires.
                continue

    async def _akeep(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self._renew()
            except NotHolder:
                return
            except AgentBusError:
                continue
