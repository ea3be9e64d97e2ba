"""Slow, silent and idle clients of `agentbus web`: they are closed, and stop nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator

import pytest

from agentbus.dashboard import app
from agentbus.dashboard.web import live, serve, viewers

PATIENCE = 20.0
GET = b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
# A login whose form does not come.
LOGIN = (
    b"POST /session HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 40\r\n\r\n"
)


class Pages:
    """The pages on a real port."""

    def __init__(self, port: int, feed: live.LiveFeed) -> None:
        self.port = port
        self.feed = feed
        self.opened: list[asyncio.StreamWriter] = []

    async def connect(
        self, said: bytes = b"", address: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection from an address of this machine and say something."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(address, 0)
        )
        self.opened.append(writer)
        writer.write(said)
        await writer.drain()
        return reader, writer

    async def get(self, path: str = "/") -> bytes:
        """Return the first line of the answer to an honest client."""
        async with asyncio.timeout(PATIENCE):
            reader, _ = await self.connect(GET % path.encode())
            return await reader.readline()


@pytest.fixture
async def pages(abus) -> AsyncIterator[Pages]:
    """The pages, served as the verb serves them."""
    said: list[str] = []
    ended = asyncio.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    made = app(abus)
    found = Pages(listening.getsockname()[1], made.state.site.feed)
    serving = asyncio.create_task(serve.serve(made, listening, ended=ended, say=said.append))
    try:
        yield found
    finally:
        ended.set()
        async with asyncio.timeout(PATIENCE):
            await serving
        for writer in found.opened:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    assert said == []


async def closed(reader: asyncio.StreamReader) -> bool:
    """Wait until the server closes a connection."""
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionError):
            while await reader.read(65_536):
                continue
    return True


OK = b"HTTP/1.1 200 OK\r\n"


async def test_idle_clients_beyond_the_bound_give_way_to_new_ones(pages, monkeypatch):
    monkeypatch.setattr(serve, "_MOST", 20)
    first, _ = await pages.connect()
    idle = [await pages.connect() for _ in range(60)]

    for _ in range(10):
        assert await pages.get() == OK

    assert await closed(first)
    assert len(idle) == 60


async def test_logins_whose_form_does_not_come_give_way_to_new_clients(pages, monkeypatch):
    monkeypatch.setattr(serve, "_MOST", 20)
    first, _ = await pages.connect(LOGIN)
    for _ in range(60):
        await pages.connect(LOGIN)

    for _ in range(10):
        assert await pages.get() == OK

    assert await closed(first)


@pytest.mark.skipif(sys.platform != "linux", reason="one loopback address elsewhere")
async def test_a_client_that_opens_many_connections_displaces_its_own(pages, monkeypatch):
    monkeypatch.setattr(serve, "_MOST", 20)
    reader, writer = await pages.connect(address="127.0.0.3")
    for _ in range(60):
        await pages.connect(LOGIN, address="127.0.0.2")

    writer.write(GET % b"/")
    async with asyncio.timeout(PATIENCE):
        assert await reader.readline() == OK


async def test_where_no_client_gives_way_a_new_one_is_closed(pages, monkeypatch):
    monkeypatch.setattr(serve, "_MOST", 3)
    for _ in range(3):
        reader, _ = await pages.connect(GET % b"/live?page=/")
        await reader.readuntil(b"event: regions\n")

    for _ in range(3):
        reader, _ = await pages.connect()
        assert await closed(reader)


async def test_a_flood_of_connections_costs_each_of_them_the_same(pages, monkeypatch):
    monkeypatch.setattr(serve, "_MOST", 20)
    looks = []
    waits = serve._WebConnection.waits.fget
    monkeypatch.setattr(
        serve._WebConnection, "waits", property(lambda one: looks.append(one) or waits(one))
    )
    for _ in range(300):
        await pages.connect(LOGIN)

    assert await pages.get() == OK
    assert len(looks) < 600


async def test_an_answer_in_progress_does_not_give_way(pages, monkeypatch):
    monkeypatch.setattr(serve, "_MOST", 20)
    reader, _ = await pages.connect(GET % b"/live?page=/")
    assert await reader.readline() == OK
    for _ in range(60):
        await pages.connect(b"GET / HT")

    async with asyncio.timeout(PATIENCE):
        await reader.readuntil(b"event: regions\n")


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: 127", b"\r\n"])
async def test_a_request_that_does_not_come_is_not_waited_for(pages, monkeypatch, said):
    monkeypatch.setattr(serve, "_HEAD", 0.5)
    reader, _ = await pages.connect(said)

    assert await closed(reader)
    assert await pages.get() == OK


async def test_a_request_that_comes_letter_by_letter_is_not_waited_for(pages, monkeypatch):
    monkeypatch.setattr(serve, "_HEAD", 0.5)
    reader, writer = await pages.connect(b"GET / HTTP/1.1\r\nX: ")

    async def drip() -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())

    assert await closed(reader)
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)


@pytest.mark.parametrize("bound", ["bytes", "seconds"])
async def test_a_browser_that_takes_nothing_is_left(bus, pages, monkeypatch, bound):
    if bound == "bytes":
        monkeypatch.setattr(viewers, "_BEHIND", 100_000)
    else:
        monkeypatch.setattr(serve, "_STUCK", 0.5)
    with socket.create_connection(("127.0.0.1", pages.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.sendall(GET % b"/live?page=/")
        async with asyncio.timeout(PATIENCE):
            while not pages.feed.viewers:
                await asyncio.sleep(0.01)
            # More than the buffers on the way hold.
            while pages.feed.viewers:
                await asyncio.to_thread(bus.speak, "<" * 4_000)
                await asyncio.sleep(0.005)

    assert await pages.get() == OK


async def test_there_are_only_so_many_streams(pages, monkeypatch):
    monkeypatch.setattr("agentbus.dashboard.web.app.MOST_VIEWERS", 2)
    for _ in range(2):
        reader, _ = await pages.connect(GET % b"/live?page=/")
        await reader.readuntil(b"event: regions\n")

    assert await pages.get("/live?page=/") == b"HTTP/1.1 503 Service Unavailable\r\n"
    assert await pages.get("/") == OK


async def test_half_open_clients_do_not_keep_the_program_from_ending(pages):
    for said in (
        b"",
        b"GET / HT",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n",
    ):
        await pages.connect(said)
    reader, _ = await pages.connect(GET % b"/live?page=/")
    await reader.readuntil(b"event: regions\n")


async def test_what_is_no_http_is_answered_and_closed(pages):
    reader, _ = await pages.connect(
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 nonsense\r\n\r\n"
    )

    assert (await reader.readline()).startswith(b"HTTP/1.1 400")
    assert await closed(reader)
