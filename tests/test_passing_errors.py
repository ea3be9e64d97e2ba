"""A server that cannot answer for a moment: all commands of a request are sent again."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import agentbus
import agentbus.aio
from tests.servers import Server, free_port


def step_aside(server: Server) -> None:
    """Make a server a replica that answers nothing until it has found its primary."""
    server.ask("CONFIG", "SET", "replica-serve-stale-data", "no")
    server.ask("REPLICAOF", "127.0.0.1", free_port())
    server.ask("CONFIG", "RESETSTAT")


def come_back(server: Server) -> None:
    """Make it a primary once it has refused something."""
    while b"errorstat_MASTERDOWN" not in server.ask("INFO", "errorstats"):
        pass
    server.ask("REPLICAOF", "NO", "ONE")


def test_a_request_of_several_commands_is_sent_again(own_server, project):
    with agentbus.connect(own_server.url, project=project, agent="ada", deadline=30) as bus:
        bus.queue("mail").publish("hi")
        worker = bus.subscribe("mail", lambda _delivery: None)
        worker.run_once()
        listed = bus.workers()
        assert listed
        step_aside(own_server)

        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(bus.workers)
            come_back(own_server)

            assert [one.worker for one in asked.result()] == [one.worker for one in listed]
        worker.stop()


async def test_coroutines_send_it_again_too(own_server, project):
    async with agentbus.aio.connect(own_server.url, project=project, deadline=30) as bus:
        await bus.workers()
        await asyncio.to_thread(step_aside, own_server)
        asked = asyncio.ensure_future(bus.workers())
        await asyncio.to_thread(come_back, own_server)

        assert await asked == []
