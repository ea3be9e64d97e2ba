"""A host with several addresses, of which the first take no connections, as behind a broken route."""

from __future__ import annotations

import _socket
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import agentbus
import agentbus.aio
from agentbus.errors import BackendUnavailable


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address that takes no connection: those who knock wait."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            knock = opened.enter_context(socket.socket())
            knock.setblocking(False)
            knock.connect_ex(listener.getsockname())
        yield listener.getsockname()


@pytest.fixture
def name(monkeypatch):
    """Give a host's name these addresses, and return a URL of it."""

    def _name(*addresses: tuple[str, int]) -> str:
        def found(*_asked: Any, **_options: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", one) for one in addresses]

        monkeypatch.setattr(socket, "getaddrinfo", found)
        monkeypatch.setattr(_socket, "getaddrinfo", found)
        return "redis://two.example"

    return _name


def test_the_next_address_is_tried_if_one_does_not_answer(own_server, silent, name, project):
    url = name(silent, silent, ("127.0.0.1", own_server.port))

    with agentbus.connect(url, project=project, agent="ada") as bus:
        bus.speak("hi")
        assert [said.text for said in bus.overhear()] == ["hi"]


async def test_coroutines_try_the_next_address_too(own_server, silent, name, project):
    url = name(silent, silent, ("127.0.0.1", own_server.port))

    async with agentbus.aio.connect(url, project=project, agent="ada") as bus:
        await bus.speak("hi")
        assert [said.text async for said in bus.overhear()] == ["hi"]


async def test_a_host_whose_addresses_all_keep_silent_did_nothing(silent, name, project):
    url = name(silent, silent)

    with agentbus.connect(url, project=project, agent="ada", deadline=1) as bus:
        with pytest.raises(BackendUnavailable, match="no connection in time"):
            bus.speak("hi")
    async with agentbus.aio.connect(url, project=project, agent="ada", deadline=1) as abus:
        with pytest.raises(BackendUnavailable, match="no connection in time"):
            await abus.speak("hi")
