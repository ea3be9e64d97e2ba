"""One blocked read of a stream, shared by all coroutines that wait for new entries."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from typing import Any

from agentbus.core.errors import AgentBusError
from agentbus.core.stream import position, text
from agentbus.store.operation import MISREAD
from agentbus.store.resp import NO_REDIS
from agentbus.store.steps import Command, LinkDown, ServerReply, Step, Wait

# Seconds that a tail reads on after its last reader has left: followers often return at once.
_LINGERS = 5.0
_BLOCK = 5.0
_READ_AT_ONCE = 1000
_REMEMBERED = 2000

Exchange = Callable[[Step], Awaitable[Any]]
Serve = Callable[["asyncio.Queue[Wait]", Callable[[Any], None]], Awaitable[None]]


class Tails:
    """The streams that coroutines of one loop wait on."""

    def __init__(self, exchange: Exchange, serve: Serve) -> None:
        """`exchange` sends a step at once; `serve` runs blocking reads until it is cancelled."""
        self._exchange = exchange
        self._serve = serve
        self._tails: dict[str, _Tail] = {}

    async def wait(self, step: Wait) -> list[Any]:
        """Return entries after `step.after`, waiting for them if necessary; [] after the timeout."""
        tail = self._tails.get(step.stream)
        if tail is not None and tail.failed:
            # The server may have changed: make the reader check its position before it reads on.
            del self._tails[step.stream]
            raise LinkDown("the shared read of the stream ended", sent=False)
        if tail is None or tail.ended:
            tail = self._tails[step.stream] = _Tail(step.stream, step.after, self._serve)
        after = position(step.after)
        entries = tail.past(after, step.count)
        if not entries and after < tail.began:
            # The reader's position lies before the first entry of this tail.
            entries = await self._exchange(_range(step)) or tail.past(after, step.count)
            if not entries and self._tails.get(step.stream) is tail:
                # The stream has lost entries, perhaps on another server: end this tail, so that its
                # readers check.
                tail.end()
                tail = self._tails[step.stream] = _Tail(step.stream, step.after, self._serve)
        if entries:
            return entries
        if tail.ended:
            raise LinkDown("the shared read of the stream ended", sent=False)
        return await tail.grown(after, step.count, step.seconds)

    async def aclose(self) -> None:
        """Stop reading."""
        for tail in self._tails.values():
            await tail.aclose()


def _range(step: Wait) -> Command:
    past = Command("XRANGE", step.stream, f"({step.after}", "+", "COUNT", step.count)
    past.within = step.within
    return past


class _Tail:
    """Reads the end of a stream and caches its latest entries."""

    def __init__(self, stream: str, after: str, serve: Serve) -> None:
        self.began = position(after)
        self._stream = stream
        self._last = after
        self._ids: list[tuple[int, int]] = []
        self._entries: list[Any] = []
        self._waiters: dict[asyncio.Future[None], tuple[int, int]] = {}
        self._steps: asyncio.Queue[Wait] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._left_alone = self._loop.time()
        self.failed = False
        self._task = asyncio.ensure_future(self._read(serve))

    @property
    def ended(self) -> bool:
        """True if this tail has stopped reading."""
        return self._task.done()

    def past(self, after: tuple[int, int], count: int) -> list[Any]:
        """Return the cached entries after an id."""
        if after < self.began:
            return []
        at = bisect_right(self._ids, after)
        return self._entries[at : at + count]

    async def grown(self, after: tuple[int, int], count: int, seconds: float) -> list[Any]:
        """Wait for an entry after an id, for at most `seconds`."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiters[future] = after
        timer = self._loop.call_later(seconds, _wake, future)
        try:
            await future
        finally:
            timer.cancel()
            del self._waiters[future]
            self._left_alone = self._loop.time()
        return self.past(after, count)

    def end(self) -> None:
        """Stop reading; pending waits fail."""
        self._task.cancel()

    async def aclose(self) -> None:
        """Stop reading, and wait until it has stopped; pending waits fail."""
        self.end()
        await asyncio.wait([self._task])

    async def _read(self, serve: Serve) -> None:
        self._next()
        error: Exception = LinkDown("the shared read of the stream ended", sent=False)
        try:
            await serve(self._steps, self._take)
        except (LinkDown, ServerReply, AgentBusError) as failure:
            error, self.failed = failure, True
        except MISREAD as failure:
            error, self.failed = LinkDown(f"{NO_REDIS} ({failure})", sent=True), True
        finally:
            for future in self._waiters:
                if not future.done():
                    future.set_exception(error)

    def _next(self) -> None:
        self._steps.put_nowait(Wait(self._stream, self._last, _BLOCK, _READ_AT_ONCE))

    def _take(self, entries: list[Any]) -> None:
        for entry in entries:
            self._ids.append(position(text(entry[0])))
            self._entries.append(entry)
        if entries:
            self._last = text(entries[-1][0])
        surplus = len(self._ids) - _REMEMBERED
        if surplus > 0:
            self.began = self._ids[surplus - 1]
            del self._ids[:surplus], self._entries[:surplus]
        for future, after in self._waiters.items():
            if self._ids and self._ids[-1] > after:
                _wake(future)
        if not self._waiters and self._loop.time() - self._left_alone > _LINGERS:
            self._task.cancel()
        else:
            self._next()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
