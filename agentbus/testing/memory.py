"""An in-process server for one test, and its buses."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Self, TypeVar

from agentbus.client import aio, bus
from agentbus.store.schemes import backend
from agentbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from agentbus.client.aio import AsyncBus
    from agentbus.client.bus import Bus, Verbs
    from agentbus.store.memory_clock import ServerTime

    AnyBus = TypeVar("AnyBus", bound=Verbs)


class MemoryServer:
    """An empty server in memory with a project, and the buses created through it.

    The end of a `with` block, or `close`, closes the buses and deletes the data. Two servers share nothing.
    """

    def __init__(self, project: str = "test") -> None:
        """Create the server. Raises `ConfigError` without the extra `memory`."""
        self.project = project
        self._name = uuid.uuid4().hex
        self.url = f"memory://{self._name}"
        self._clock: FakeClock | None = None
        self._time: ServerTime | None = None
        self._buses: list[Bus] = []
        self._async_buses: list[AsyncBus] = []
        # Create the server now, so that a missing library raises here.
        backend(self.url, project).link()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def clock(self) -> FakeClock:
        """The fake clock of this server and its buses; the first access switches them to it."""
        if self._clock is None:
            from agentbus.store.memory_clock import ServerTime  # needs the extra `memory`

            clock = FakeClock()
            self._time = ServerTime(self._name, clock.server_time)
            clock.on_advance(self._time.wake)
            self._clock = clock
            for opened in (*self._buses, *self._async_buses):
                self._set(opened)
        return self._clock

    @property
    def variables(self) -> dict[str, str]:
        """The environment with which `agentbus.connect()` without arguments uses this server."""
        return {"AGENTBUS_URL": self.url, "AGENTBUS_PROJECT": self.project}

    def connect(self, agent: str = "tester", **settings: Any) -> Bus:
        """Return a bus for an agent; `settings` are those of `agentbus.connect`."""
        opened = bus.connect(self.url, agent=agent, **{"project": self.project, **settings})
        self._buses.append(opened)
        return self._set(opened)

    def aconnect(self, agent: str = "tester", **settings: Any) -> AsyncBus:
        """Return an asynchronous bus for an agent, for the coroutines of one event loop."""
        opened = aio.connect(self.url, agent=agent, **{"project": self.project, **settings})
        self._async_buses.append(opened)
        return self._set(opened)

    def close(self) -> None:
        """Close the buses and delete the server's data. Idempotent."""
        for opened in self._buses:
            opened.close()
        for waiting in self._async_buses:
            _close(waiting)
        self._buses, self._async_buses = [], []
        if self._time is not None:
            self._time.close()
        from agentbus.store import memory  # needs the extra `memory`

        memory.forget(self._name)

    def _set(self, opened: AnyBus) -> AnyBus:
        if self._clock is not None:
            opened.scope.now = self._clock.time
            opened.scope.monotonic = self._clock.monotonic
        return opened


def _close(opened: AsyncBus) -> None:
    """Close an asynchronous bus from outside its event loop, unless the loop is closed."""
    loop = getattr(opened.runner.link, "_loop", None)
    if loop is None or loop.is_closed():
        return
    if loop.is_running():
        # The task need not be awaited: closing only cancels reads.
        loop.create_task(opened.aclose())
    else:
        loop.run_until_complete(opened.aclose())


@contextlib.contextmanager
def blocking(opened: Verbs) -> Iterator[Bus]:
    """Yield a bus itself, or a blocking one with the same agent, project, server and clock."""
    if isinstance(opened, bus.Bus):
        yield opened
        return
    with bus.Bus(opened.settings) as found:
        found.scope.now = opened.scope.now
        found.scope.monotonic = opened.scope.monotonic
        yield found
