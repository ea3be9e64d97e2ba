"""A blocking bus for either kind of bus."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from agentbus.client.bus import Bus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentbus.client.bus import Verbs


@contextlib.contextmanager
def blocking(bus: Verbs) -> Iterator[Bus]:
    """Yield the bus itself, or a blocking one with the same agent, project, server and clock."""
    if isinstance(bus, Bus):
        yield bus
        return
    with Bus(bus.settings) as opened:
        opened.scope.now = bus.scope.now
        opened.scope.monotonic = bus.scope.monotonic
        yield opened
