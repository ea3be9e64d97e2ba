"""The time limit of an attempt: a coroutine is cancelled, and a thread is asked to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.queues.delivery import AnyDelivery


def begin(task: Taken, delivery: AnyDelivery) -> float | None:
    """Return the time limit of an attempt in seconds, and let its delivery say when that is over."""
    seconds = task.time_limit
    if seconds is not None:
        delivery.over_at = time.monotonic() + seconds
    return seconds


def within(
    seconds: float, handler: Callable[[Any], Awaitable[object]]
) -> Callable[[Any], Awaitable[object]]:
    """Return a coroutine function that cancels the handler, and raises `TimeoutError`, after `seconds`.

    A handler that ends without an error nevertheless has done its task.
    """

    async def handle(delivery: Any) -> object:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await handler(delivery)
        except TimeoutError:
            if not limit.expired():
                raise
        raise TimeoutError(f"the attempt took longer than {seconds:g} s")

    return handle
