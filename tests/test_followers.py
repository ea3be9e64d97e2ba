"""Followers of a server that comes back without what it had: they report it, whatever its clock says."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import pytest

import agentbus
import agentbus.aio
from agentbus import EpochMismatch
from tests.servers import Server

OPTIONS: list[dict[str, Any]] = [{}, {"start": "newest"}, {"since": "0"}, {"peek": True}]


def come_back_empty(server: Server, stream: str, *fields: str) -> None:
    """Restart a server without its data, with an entry as its clock, which is far behind, would make."""
    server.kill()
    shutil.rmtree(server.place / "appendonlydir")
    server.start()
    server.ask("XADD", stream, "5-1", *fields)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_follower_reports_a_server_that_came_back_empty(options, own_server, project):
    with agentbus.connect(own_server.url, project=project, agent="ada") as bus:
        bus.speak("before")
        messages = bus.overhear(follow=True, **options)
        assert next(messages).text == "before"

        come_back_empty(own_server, f"{project}:ch:main", "agent_id", "bob", "message", "after")

        with pytest.raises(EpochMismatch, match="went back in time"):
            next(messages)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_an_asynchronous_follower_does_so_too(options, own_server, project):
    async with agentbus.aio.connect(own_server.url, project=project, agent="ada") as bus:
        await bus.speak("before")
        messages = bus.overhear(follow=True, **options)
        assert (await anext(messages)).text == "before"
        following = asyncio.ensure_future(anext(messages))
        while b"blocked_clients:0" in own_server.ask("INFO", "clients"):
            await asyncio.sleep(0.005)

        come_back_empty(own_server, f"{project}:ch:main", "agent_id", "bob", "message", "after")

        with pytest.raises(EpochMismatch, match="went back in time"):
            await following


def test_a_follower_of_metrics_reports_it(own_server, project):
    with agentbus.connect(own_server.url, project=project, agent="ada") as bus:
        bus.queue("mail").publish("x")
        bus.subscribe("mail")(lambda _task: None)
        bus.work(drain=True)
        samples = bus.samples(follow=True)
        next(samples)

        come_back_empty(own_server, f"{project}:metrics", "x", "y")

        with pytest.raises(EpochMismatch, match="went back in time"):
            next(samples)
