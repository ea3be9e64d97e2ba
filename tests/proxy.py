"""A proxy that behaves badly, and something that is no Redis at all."""

from __future__ import annotations

import asyncio
import contextlib

from agentbus.torture.network import Listener, Proxy

__all__ = ["Impostor", "Proxy"]

_CHUNK = 65536


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
