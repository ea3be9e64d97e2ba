"""Tests for programs that use AgentBus: a bus in memory, a fake clock, and draining a queue.

The fixtures are a pytest plugin, which pytest finds by its entry point. A `conftest.py` needs a line only
where it does not look for them (`PYTEST_DISABLE_PLUGIN_AUTOLOAD`):

    pytest_plugins = ["agentbus.testing"]

Nothing is loaded before it is used, because pytest loads the plugin in every environment with AgentBus,
also for programs that do not use it. Only the fixtures import pytest.

PYTEST_DONT_REWRITE: pytest has loaded this module before it reads the line above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core.lazy import lazily

if TYPE_CHECKING:
    from agentbus.testing.clock import FakeClock as FakeClock
    from agentbus.testing.draining import (
        Buried as Buried,
        Drained as Drained,
        adrain as adrain,
        drain as drain,
    )
    from agentbus.testing.looking import (
        Published as Published,
        published as published,
        spoken as spoken,
    )
    from agentbus.testing.memory import MemoryServer as MemoryServer

pytest_plugins = ["agentbus.testing.fixtures"]

_HOMES = {
    "FakeClock": "clock",
    **dict.fromkeys(("Buried", "Drained", "adrain", "drain"), "draining"),
    **dict.fromkeys(("Published", "published", "spoken"), "looking"),
    "MemoryServer": "memory",
}
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
__getattr__ = lazily(__name__, _HOMES)
