"""What of the CPU time counts for one coroutine."""

from __future__ import annotations

import asyncio
import time

import pytest

from agentbus.dashboard.web.cpu_time import Timed


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_the_time_of_others_between_its_steps_does_not_count():
    async def page() -> str:
        burn(0.01)
        await other
        burn(0.01)
        return "done"

    other = asyncio.ensure_future(asyncio.to_thread(burn, 0.0))
    loop = asyncio.get_running_loop()
    loop.call_soon(burn, 0.3)
    timed = Timed(page())

    assert await timed == "done"
    assert 0.02 <= timed.spent < 0.3


async def test_what_it_raises_passes_through():
    async def page() -> None:
        await asyncio.sleep(0)
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await Timed(page())


async def test_it_is_cancelled_where_it_waits():
    ended = []

    async def page() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def awaited() -> None:
        await Timed(page())

    task = asyncio.ensure_future(awaited())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
