"""Holds a flag during a block of code, and renews the hold in the background."""

from __future__ import annotations

import threading

from agentbus.core.errors import AgentBusError, NotHolder
from agentbus.store.verb import Awaiting, Blocking, BusT_co, Generic

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from types import TracebackType
    from typing import Any

    from agentbus.coordination.flags import Hold


class Holding(Generic[BusT_co]):
    """Holds a flag inside `with` on a `Bus`, or inside `async with` on an `AsyncBus`."""

    def __init__(self, bus: Any, flag: str, *, ttl: float, wait: float | None) -> None:
        self._bus = bus
        self._flag = flag
        self._ttl = ttl
        self._wait = wait
        self._hold: Hold[Any] | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def hold(self) -> Hold[BusT_co]:
        """The hold as it was acquired."""
        assert self._hold is not None
        return self._hold

    def __enter__(self: Holding[Blocking]) -> Hold:
        self._hold = self._bus.announce(self._flag, ttl=self._ttl, wait=self._wait)
        self._over.clear()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()
        return self.hold

    def __exit__(
        self: Holding[Blocking],
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self._end(error)
        except AgentBusError as failure:
            self._failed(failure, error)

    async def __aenter__(self: Holding[Awaiting]) -> Hold[Awaiting]:
        # Loaded here, because the blocking half does not need it.
        import asyncio

        self._hold = await self._bus.announce(self._flag, ttl=self._ttl, wait=self._wait)
        self._task = asyncio.ensure_future(self._akeep())
        return self.hold

    async def __aexit__(
        self: Holding[Awaiting],
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        import asyncio

        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        try:
            await self._end(error)
        except AgentBusError as failure:
            self._failed(failure, error)

    def _end(self, error: BaseException | None) -> Any:
        end = self._bus.satisfy if error is None else self._bus.release
        return end(self._flag, token=self.hold.token)

    def _failed(self, failure: AgentBusError, error: BaseException | None) -> None:
        if error is None:
            raise failure
        # The error of the block takes precedence.
        error.add_note(f"and the flag {self._flag!r} was not released: {failure}")

    def _keep(self: Holding[Blocking]) -> None:
        while not self._over.wait(self._ttl / 3):
            try:
                self.hold.renew(self._ttl)
            except NotHolder:
                return
            except AgentBusError:
                # The server may be back before the hold expires.
                continue

    async def _akeep(self: Holding[Awaiting]) -> None:
        import asyncio

        while True:
            await asyncio.sleep(self._ttl / 3)
            try:
                await self.hold.renew(self._ttl)
            except NotHolder:
                return
            except AgentBusError:
                continue
