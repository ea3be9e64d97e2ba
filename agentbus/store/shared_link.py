"""One asynchronous link in a separate thread, for followers in any thread and any event loop."""

from __future__ import annotations

import asyncio
import copy
import threading
from typing import TYPE_CHECKING, Any

from agentbus.store.schemes import async_link

if TYPE_CHECKING:
    from agentbus.store.async_driver import AsyncLink
    from agentbus.store.connection import Backend
    from agentbus.store.steps import Step

# Name of the shared connections, which serve several agents.
_NAME = "agentbus"


class SharedLink:
    """A link in a separate event loop, for any number of waiting readers."""

    def __init__(self, backend: Backend) -> None:
        backend = copy.copy(backend)
        backend.client = _NAME
        self._link = async_link(backend)
        self._loop = asyncio.new_event_loop()
        self.blocking = _Blocking(self._link, self._loop)
        self.awaiting = _Awaiting(self._link, self._loop)
        threading.Thread(target=self._run, name="agentbus-followers", daemon=True).start()

    def close(self) -> None:
        """Close the connections and end the thread, without waiting for it."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._link.aclose())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


class _Blocking:
    """The shared link for threads."""

    def __init__(self, link: AsyncLink, loop: asyncio.AbstractEventLoop) -> None:
        self.name = link.name
        self._link = link
        self._loop = loop

    def execute(self, step: Step) -> Any:
        """Exchange one step with the server."""
        asked = asyncio.run_coroutine_threadsafe(self._link.execute(step), self._loop)
        try:
            return asked.result()
        except BaseException:
            # The waiting thread may have been interrupted: cancel the request that nobody awaits.
            asked.cancel()
            raise

    def close(self) -> None:
        """Do nothing: the connections belong to the other followers."""


class _Awaiting:
    """The shared link for coroutines."""

    def __init__(self, link: AsyncLink, loop: asyncio.AbstractEventLoop) -> None:
        self.name = link.name
        self._link = link
        self._loop = loop

    async def execute(self, step: Step) -> Any:
        """Exchange one step with the server."""
        asked = asyncio.run_coroutine_threadsafe(self._link.execute(step), self._loop)
        return await asyncio.wrap_future(asked)

    async def aclose(self) -> None:
        """Do nothing: the connections belong to the other followers."""
