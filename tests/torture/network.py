"""A proxy in front of a server that can fail as a network does."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

_CHUNK = 65536


class Listener:
    """A TCP server in its own thread."""

    def __init__(self) -> None:
        self._began = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.port = 0

    @property
    def url(self) -> str:
        """Its URL for clients."""
        return f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._began.wait()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    def cut(self, *, reset: bool = False) -> int:
        """Cut all open connections, with `reset` by a RST; returns how many."""

        def _cut() -> None:
            for task, writer in self._connections.items():
                if reset:
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                task.cancel()

        found = len(self._connections)
        self._inside(_cut)
        return found

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which is cut when this returns."""
        raise NotImplementedError

    async def listen(self) -> asyncio.Server:
        """Listen on a free port of this machine."""
        return await asyncio.start_server(self.connected, "127.0.0.1", 0)

    def _inside(self, act: Callable[[], None]) -> None:
        """Run `act` in the loop's thread, and wait for it."""

        async def _act() -> None:
            act()

        asyncio.run_coroutine_threadsafe(_act(), self._loop).result()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        # A client that refuses a certificate is not an error here.
        self._loop.set_exception_handler(lambda _loop, _context: None)
        self._ending = asyncio.Event()
        server = await self.listen()
        self.port = server.sockets[0].getsockname()[1]
        self._began.set()
        await self._ending.wait()
        server.close()
        while self._connections:
            for task in self._connections:
                task.cancel()
            await asyncio.wait(self._connections)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection, and cut it at the end."""
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            await self.serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()


class Proxy(Listener):
    """Passes bytes between its clients and a server; its faults can be changed at any time."""

    def __init__(self, upstream: str | tuple[str, int]) -> None:
        """`upstream` is a unix socket's path or a TCP address."""
        super().__init__()
        # Where new connections lead.
        self.upstream = upstream
        # Its faults: a good proxy has none.
        # The reply to the next request that contains this is lost, with its connection.
        self.loses = b""
        self.delay = 0.0  # Seconds by which each batch of replies is late.
        # The next batch of replies or of requests is lost, with its connection.
        self.loses_reply = self.loses_request = False
        self.lost = 0
        # The next request that contains this, or the reply to it, is kept back until its connection ends.
        self.keeps = b""
        self.keeps_reply = False
        # How many were kept back.
        self.kept = 0
        self.keeps_back = threading.Event()
        self._lines: set[ProxyLine] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on, both ways, until one side closes."""
        if isinstance(self.upstream, tuple):
            from_server, to_server = await asyncio.open_connection(*self.upstream)
        else:
            from_server, to_server = await asyncio.open_unix_connection(self.upstream)
        line = ProxyLine()
        self._lines.add(line)
        over = asyncio.ensure_future(line.over.wait())
        ways = (
            over,
            asyncio.ensure_future(self._request(reader, to_server, line)),
            asyncio.ensure_future(self._reply(from_server, writer, line)),
        )
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if line.half_open:
                # Neither side learns that the other is gone.
                await over
        finally:
            self._lines.discard(line)
            to_server.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    def half_open(self, *, deaf: bool, mute: bool) -> int:
        """Lose all that is sent over the open connections from now on; returns how many these are.

        A `deaf` one passes no requests on, a `mute` one no replies. New connections are sound.
        """

        def _spoil() -> None:
            for line in self._lines:
                line.half_open, line.deaf, line.mute = True, deaf, mute

        found = len(self._lines)
        self._inside(_spoil)
        return found

    def forget(self) -> None:
        """Close the half-open connections, on both sides."""

        def _end() -> None:
            for line in self._lines:
                if line.half_open:
                    line.over.set()

        self._inside(_end)

    async def _request(
        self, client: asyncio.StreamReader, server: asyncio.StreamWriter, line: ProxyLine
    ) -> None:
        while chunk := await client.read(_CHUNK):
            if self.loses and self.loses in chunk:
                self.loses, line.loses = b"", True
            if self.loses_request:
                self.loses_request = False
                self.lost += 1
                return
            if self.keeps and self.keeps in chunk:
                self.keeps = b""
                if not self.keeps_reply:
                    await self._keep_back()
                line.keeps_reply = True
            if not line.deaf:
                server.write(chunk)
                await server.drain()

    async def _reply(
        self, server: asyncio.StreamReader, client: asyncio.StreamWriter, line: ProxyLine
    ) -> None:
        while chunk := await server.read(_CHUNK):
            if self.loses_batch(line):
                self.lost += 1
                return
            if line.keeps_reply:
                await self._keep_back()
            if self.delay:
                await asyncio.sleep(self.delay)
            if not line.mute:
                client.write(chunk)
                await client.drain()

    async def _keep_back(self) -> None:
        self.kept += 1
        self.keeps_back.set()
        await asyncio.Event().wait()

    def loses_batch(self, line: ProxyLine) -> bool:
        """Decide whether a batch of replies is lost, with its connection."""
        found = line.loses or self.loses_reply
        self.loses_reply = False
        return found


class ProxyLine:
    """The faults of one connection."""

    def __init__(self) -> None:
        self.half_open = self.deaf = self.mute = self.loses = self.keeps_reply = False
        self.over = asyncio.Event()
