"""A bus that is closed leaves no connection behind."""

from __future__ import annotations

import asyncio

import pytest

import agentbus.aio
from agentbus.errors import BackendUnavailable


async def test_a_bus_that_is_closed_while_it_connects_leaves_no_connection(own_server, project):
    async with agentbus.aio.connect(own_server.tcp_url, project=project, agent="ada") as bus:
        speaking = asyncio.ensure_future(bus.speak("hi"))
        await asyncio.sleep(0)

    with pytest.raises(BackendUnavailable, match="the bus was closed"):
        await speaking
    async with asyncio.timeout(20):
        # The one that asks is by the socket.
        while b"laddr=127.0.0.1" in await asyncio.to_thread(own_server.ask, "CLIENT", "LIST"):
            pass
    assert own_server.ask("DBSIZE") == 0
