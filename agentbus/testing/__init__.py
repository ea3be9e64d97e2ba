"""Tests of programs that use AgentBus: a bus in memory, a fake clock, and draining a queue.

The module is a pytest plugin, enabled by a line in the `conftest.py` at the root of the tests:

    pytest_plugins = ["agentbus.testing"]

It is not an entry point: pytest would load it and rewrite the assertions of the whole package in every
environment with AgentBus, also for programs that do not use it. Only the fixtures import pytest.

PYTEST_DONT_REWRITE: a `conftest.py` may import this module before pytest has read the line above.
"""

from __future__ import annotations

from agentbus.testing.clock import FakeClock
from agentbus.testing.draining import Buried, Drained, adrain, drain
from agentbus.testing.looking import Published, published, spoken
from agentbus.testing.memory import MemoryServer

pytest_plugins = ["agentbus.testing.fixtures"]

__all__ = [
    "Buried",
    "Drained",
    "FakeClock",
    "MemoryServer",
    "Published",
    "adrain",
    "drain",
    "published",
    "spoken",
]
