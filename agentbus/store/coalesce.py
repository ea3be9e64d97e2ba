"""Joins what coroutines of one event loop publish at the same time into one request."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Coroutine
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from agentbus.store.operation import MISREAD
from agentbus.store.steps import LinkDown, Push, ServerReply, one_step

if TYPE_CHECKING:
    from agentbus.store.steps import Op, Script, Step

    _Member = tuple[Push, asyncio.Future[bytes | None]]

# Maximum payloads per request, and bytes after which a request accepts no more.
_AT_ONCE, _BYTES = 500, 1 << 18


class Coalescer:
    """Joins the payloads that several callers append to a stream while requests are in flight.

    A lone caller's payload is sent at once; while other requests are in flight, the payloads of one
    iteration of the event loop share a request. Each caller gets its own id, or the request's error. If not
    all payloads fit, each is sent alone.
    """

    def __init__(
        self, link: object, retrying: Callable[[Op[Any], float], Coroutine[Any, Any, Any]]
    ) -> None:
        self._start = getattr(link, "start", _never)
        self._is_open = getattr(link, "is_open", _never)
        self._retrying = retrying
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        # Payloads that wait, grouped by the properties that their steps share.
        self.waiting: dict[object, list[_Member]] = {}
        self._bytes = 0
        # Number of unanswered requests with payloads.
        self.in_flight = 0
        # True if the last request served several callers, which are likely to append again soon.
        self._several = False
        # An event loop keeps only weak references to its tasks.
        self._tasks: set[asyncio.Task[Any]] = set()

    def append(self, step: Push) -> asyncio.Future[bytes | None] | None:
        """Join a payload with others; the future holds its id, or None if the queue is full.

        Returns None for a lone caller, and if no connection is open: the caller then sends the payload, and
        counts it in `in_flight`.
        """
        loop = self._loop
        # A thread runs one event loop at a time. In some Python versions, get_running_loop() makes
        # a system call.
        if loop is None or get_ident() != self._thread or not loop.is_running():
            loop = self._enter_loop()
        waiting = self.waiting
        if not waiting and (not (self.in_flight or self._several) or not self._is_open()):
            return None
        future: asyncio.Future[bytes | None] = loop.create_future()
        if not waiting:
            self._bytes = 0
            loop.call_soon(self.flush)
        group = waiting.get(step.kind)
        if group is None:
            group = waiting[step.kind] = []
        group.append((step, future))
        self._bytes += len(step.payload)
        if len(group) == _AT_ONCE or self._bytes > _BYTES:
            self.flush()
        return future

    def _enter_loop(self) -> asyncio.AbstractEventLoop:
        # Requests of an earlier loop will never be answered.
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self.waiting, self.in_flight = {}, 0
        return self._loop

    def flush(self) -> None:
        """Send all waiting payloads, so that later requests follow them."""
        waiting, self.waiting = self.waiting, {}
        for group in waiting.values():
            self._send(group)

    def _send(self, group: list[_Member]) -> None:
        # Skip members whose callers were cancelled.
        group = [member for member in group if not member[1].done()]
        if not group:
            return
        first = group[0][0]
        step = first if len(group) == 1 else first.joined([step for step, _ in group])
        self._several = len(group) > 1
        step.within, step.sendings = first.within, 1
        self.in_flight += 1
        answer = self._start(step)
        if answer is None:
            step.sendings = 0
            self._retry(group, step, 0.0)
        else:
            answer.add_done_callback(partial(self._answered, group, step, time.monotonic()))

    def _retry(self, group: list[_Member], step: Script, elapsed: float) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._retrying(one_step(step), elapsed))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, group, step))

    def _answered(
        self, group: list[_Member], step: Script, asked: float, answer: asyncio.Future[list[Any]]
    ) -> None:
        if answer.cancelled():
            self._fail(group, asyncio.CancelledError())
            return
        failure = answer.exception()
        reply = None if failure is not None else answer.result()[0]
        if failure is None and not isinstance(reply, ServerReply):
            self._give(group, step, reply)
        elif failure is None or isinstance(failure, (LinkDown, ServerReply)):
            if not (isinstance(failure, LinkDown) and failure.sent):
                # The request was not sent, or the server refused to execute it.
                step.sendings = 0
            self._retry(group, step, time.monotonic() - asked)
        else:
            self._fail(group, failure)

    def _ended(self, group: list[_Member], step: Script, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._fail(group, asyncio.CancelledError())
        elif (failure := task.exception()) is not None:
            self._fail(group, failure)
        else:
            self._give(group, step, task.result())

    def _give(self, group: list[_Member], step: Script, reply: Any) -> None:
        """Answer each caller."""
        self.in_flight -= 1
        if len(group) == 1:
            _resolve(group[0][1], reply)
        else:
            # The request used the first member's slot for all members.
            group[0][0].sendings = step.sendings
            try:
                replies = group[0][0].shared(reply, len(group))
            except MISREAD as error:
                _reject(group, error)
                return
            if replies is None:
                # The queue may have room for some of the payloads.
                for member in group:
                    self._send([member])
                return
            for (_, future), own in zip(group, replies, strict=True):
                # Inline `_resolve` here for speed.
                if not future.done():
                    future.set_result(own)

    def _fail(self, group: list[_Member], failure: BaseException) -> None:
        self.in_flight -= 1
        _reject(group, failure)


def _never(*_step: Step) -> None:
    """Replace the methods of a link whose callers do not share a connection."""


def _resolve(future: asyncio.Future[Any], reply: Any) -> None:
    # The caller may have been cancelled.
    if not future.done():
        future.set_result(reply)


def _reject(group: list[_Member], failure: BaseException) -> None:
    for _, future in group:
        if future.done():
            continue
        if isinstance(failure, asyncio.CancelledError):
            future.cancel()
            continue
        # Each caller gets a copy of the error, to which its traceback is added.
        own = copy.copy(failure)
        own.__cause__ = failure.__cause__
        future.set_exception(own)
