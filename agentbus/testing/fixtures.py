"""The fixtures of the pytest plugin; the only module that imports pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentbus.testing.memory import MemoryServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentbus.client.aio import AsyncBus
    from agentbus.client.bus import Bus
    from agentbus.testing.clock import FakeClock


@pytest.fixture
def agentbus_server() -> Iterator[MemoryServer]:
    """A server in memory for this test alone; it creates the buses of agents."""
    with MemoryServer() as server:
        yield server


@pytest.fixture
def agentbus_bus(agentbus_server: MemoryServer) -> Bus:
    """A bus on this test's server, for the agent `tester`."""
    return agentbus_server.connect()


@pytest.fixture
def agentbus_async_bus(agentbus_server: MemoryServer) -> AsyncBus:
    """An asynchronous bus on this test's server, for the agent `tester`."""
    return agentbus_server.aconnect()


@pytest.fixture
def agentbus_clock(agentbus_server: MemoryServer) -> FakeClock:
    """The fake clock of this test's server and its buses."""
    return agentbus_server.clock
