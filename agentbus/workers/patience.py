"""A worker's requests: once the server was there, it is waited for."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

from agentbus.store.driver import run
from agentbus.store.operation import attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.client.bus import Verbs
    from agentbus.store.steps import Link, Op


class Patience:
    """Runs operations for a worker, from any of its threads."""

    def __init__(self, bus: Verbs, link: Link) -> None:
        self._bus = bus
        self._link = link
        self._met = False
        self._until = math.inf

    def __call__(self, op: Op[Any]) -> Any:
        """Run an operation; raises `BackendUnavailable` if the server was never there."""
        found = self._run(op, self._patience)
        self._met = True
        return found

    def briefly(self, op: Op[Any]) -> Any:
        """Run an operation that is not worth waiting for a server that is away."""
        return self._run(op, None)

    def _run(self, op: Op[Any], patience: Callable[[], float] | None) -> Any:
        return run(
            self._link,
            attempt(
                op,
                where=self._bus.backend.name,
                deadline=self._bus.settings.deadline,
                patience=patience,
                answered=self._met,
                advice=self._bus.backend.advice,
                monotonic=self._bus.scope.monotonic,
            ),
        )

    async def later(self, op: Op[Any]) -> Any:
        """Run an operation without blocking the loop that asks for it."""
        return await asyncio.to_thread(self, op)

    def hurry(self) -> None:
        """Wait for a server that is away no longer than the deadline, from now on."""
        self._until = min(self._until, time.monotonic() + self._bus.settings.deadline)

    def _patience(self) -> float:
        return max(0.0, self._until - time.monotonic())
