"""A hold that lasts as long as a block of code, renewed while it runs."""

from __future__ import annotations

import threading

from agentbus.core.errors import AgentBusError, NotHolder

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from types import TracebackType
    from typing import Any

    from agentbus.coordination.flags import Hold


class Holding:
    """Holds a flag inside `with` on a `Bus`, inside `async with` on an `AsyncBus`."""

    def __init__(self, bus: Any, flag: str, *, ttl: float, wait: float | None) -> None:
        self._bus = bus
        self._flag = flag
        self._ttl = ttl
        self._wait = wait
        self._hold: Hold | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self.lost: NotHolder | None = None

    @property
    def hold(self) -> Hold:
        """The hold as it was taken."""
        assert self._hold is not None
        return self._hold

    def __enter__(self) -> Hold:
        self._hold = self._bus.announce(self._flag, ttl=self._ttl, wait=self._wait)
        self._over.clear()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()
        return self.hold

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if error is None:
            self._bus.satisfy(self._flag, token=self.hold.token)
            return
        try:
            self._bus.release(self._flag, token=self.hold.token)
        except AgentBusError as failure:
            # The block's own error matters more; this one is told beside it.
            error.add_note(f"and the flag {self._flag!r} was not released: {failure}")

    async def __aenter__(self) -> Hold:
        # Loaded here: a shell verb that holds has no use for it.
        import asyncio

        self._hold = await self._bus.announce(self._flag, ttl=self._ttl, wait=self._wait)
        self._task = asyncio.ensure_future(self._akeep())
        return self.hold

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        import asyncio

        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if error is None:
            await self._bus.satisfy(self._flag, token=self.hold.token)
            return
        try:
            await self._bus.release(self._flag, token=self.hold.token)
        except AgentBusError as failure:
            error.add_note(f"and the flag {self._flag!r} was not released: {failure}")

    def _keep(self) -> None:
        while not self._over.wait(self._ttl / 3):
            try:
                self._bus._renew(self.hold, self._ttl)
            except NotHolder as lost:
                self.lost = lost
                return
            except AgentBusError:
                # The server may be back before the hold ends; the next turn tells.
                continue

    async def _akeep(self) -> None:
        import asyncio

        while True:
            await asyncio.sleep(self._ttl / 3)
            try:
                await self._bus._renew(self.hold, self._ttl)
            except NotHolder as lost:
                self.lost = lost
                return
            except AgentBusError:
                continue
