"""A real proxy in front of a server, which can behave as badly as a network does."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from typing import Self

_CHUNK = 65536


class Listener:
    """Something that listens on TCP, in a thread of its own."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._began = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        """The address at which clients find it."""
        return f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._began.wait()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    def cut(self) -> None:
        """Cut every connection that is open now."""
        done = threading.Event()

        def _cut() -> None:
            for task in self._connections:
                task.cancel()
            done.set()

        self._loop.call_soon_threadsafe(_cut)
        done.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; it is cut when this ends."""
        raise NotImplementedError

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        # A client that refuses a certificate is what some tests are about, and no news.
        self._loop.set_exception_handler(lambda _loop, _context: None)
        self._ending = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        self._began.set()
        await self._ending.wait()
        server.close()
        while self._connections:
            for task in self._connections:
                task.cancel()
            await asyncio.wait(self._connections)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self.serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()


class Proxy(Listener):
    """Passes bytes between its clients and a server; what it does wrong may change at any time."""

    def __init__(
        self, upstream: str | tuple[str, int], *, tls: ssl.SSLContext | None = None
    ) -> None:
        """`upstream` is a unix socket's path or a TCP address; with `tls` it ends TLS itself."""
        super().__init__(tls=tls)
        self._upstream = upstream
        # What it does wrong: all False or 0 is a good proxy.
        self.swallow = False  # Requests reach the server, and no reply comes back.
        self.hang_up = False  # A connection is closed as soon as it is made.
        self.loses_every = 0  # Of so many batches of replies one is lost, with its connection.
        self.delay = 0.0  # Seconds by which each batch of replies is late.
        self.batches = 0
        self.lost = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what comes, both ways, until one side has enough."""
        if self.hang_up:
            return
        if isinstance(self._upstream, tuple):
            from_server, to_server = await asyncio.open_connection(*self._upstream)
        else:
            from_server, to_server = await asyncio.open_unix_connection(self._upstream)
        ways = (
            asyncio.ensure_future(_pass(reader, to_server)),
            asyncio.ensure_future(self._reply(from_server, writer)),
        )
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            to_server.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _reply(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while chunk := await server.read(_CHUNK):
            self.batches += 1
            if self.loses_every and self.batches % self.loses_every == 0:
                self.lost += 1
                return
            if self.delay:
                await asyncio.sleep(self.delay)
            if not self.swallow:
                client.write(chunk)
                await client.drain()


class Impostor(Listener):
    """No Redis at all: it answers whatever comes with the same bytes."""

    def __init__(self, answer: bytes, *, then_closes: bool = False) -> None:
        super().__init__()
        self._answer = answer
        self._then_closes = then_closes

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer each request, and close if that is its way."""
        while await reader.read(_CHUNK):
            writer.write(self._answer)
            await writer.drain()
            if self._then_closes:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
                return


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while chunk := await source.read(_CHUNK):
        sink.write(chunk)
        await sink.drain()
