"""What tests of programs that use AgentBus need: a bus in memory, a fake clock, and a way to drain.

It is a pytest plugin for those who ask for it, by a line in the `conftest.py` at the root of their tests:

    pytest_plugins = ["agentbus.testing"]

It is no entry point, by which pytest would load it unasked: agents have AgentBus installed beside
programs that do not use it, and pytest would load it there in every run, and rewrite the assertions of
the whole package. The functions serve without pytest, too, which is imported with the fixtures alone.

PYTEST_DONT_REWRITE: a `conftest.py` may import from here before pytest has seen the line above.
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
