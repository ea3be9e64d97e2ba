"""A proxy that behaves badly, and something that is no Redis at all."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import threading

from tests.torture import network
from tests.torture.network import Listener, ProxyLine

_CHUNK = 65536


class Proxy(network.Proxy):
    """A proxy with more faults; with `tls` its clients speak TLS."""

    def __init__(
        self, upstream: str | tuple[str, int], *, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(upstream)
        self.tls = tls
        self.swallow = False  # Requests reach the server, and no reply comes back.
        self.hang_up = False  # A connection is closed as soon as it is made.
        self.loses_every = 0  # Every n-th batch of replies is lost, with its connection.
        self.batches = 0

    @property
    def url(self) -> str:
        """Its URL for clients."""
        return super().url if self.tls is None else super().url.replace("redis", "rediss")

    async def listen(self) -> asyncio.Server:
        """Listen, by TLS if that was wanted."""
        return await asyncio.start_server(self.connected, "127.0.0.1", 0, ssl=self.tls)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on unless it hangs up."""
        if not self.hang_up:
            await super().serve(reader, writer)

    def loses_batch(self, line: ProxyLine) -> bool:
        """Count the batches, and lose every n-th."""
        self.batches += 1
        line.mute = line.mute or self.swallow
        due = self.loses_every and self.batches % self.loses_every == 0
        return super().loses_batch(line) or bool(due)


# How each command begins; a client sends several at once.
_COMMAND = re.compile(rb"^\*\d+\r$", re.MULTILINE)


def commands_in(request: bytes) -> int:
    """Return how many commands a request has: at least one."""
    return max(1, len(_COMMAND.findall(request)))


class Impostor(Listener):
    """No Redis at all: it answers whatever comes with the same bytes, once for each command."""

    def __init__(self, answer: bytes, *, then_closes: bool = False) -> None:
        super().__init__()
        self._answer = answer
        self._then_closes = then_closes
        self.asked = threading.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer each request, and close if that is its way."""
        while request := await reader.read(_CHUNK):
            self.asked.set()
            writer.write(self._answer * commands_in(request))
            await writer.drain()
            if self._then_closes:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
                return
