"""Browsers without a screen: sessions that read the stream of a page, or hold a connection and do not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Self
from urllib.parse import quote

_SECONDS = 20.0


async def entered(port: int, token: str) -> str:
    """Enter the token as a browser's form does, and return the cookie of the new session."""
    body = f"token={quote(token)}"
    head = (
        f"POST /session HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
        f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n\r\n{body}"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode())
    answer = (await asyncio.wait_for(reader.read(), _SECONDS)).decode()
    writer.close()
    for line in answer.partition("\r\n\r\n")[0].splitlines():
        name, _, value = line.partition(": ")
        if name.lower() == "set-cookie" and value.startswith("agentbus_"):
            return value.partition(";")[0]
    raise AssertionError(f"no session was given: {answer[:300]}")


def request(port: int, path: str, cookie: str) -> bytes:
    """Return a request for a page of a session."""
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n\r\n"
    return head.encode()


class Readers:
    """Sessions that read the stream of a page, in a thread of their own; `events` counts what came."""

    def __init__(self, port: int, token: str, pages: list[str]) -> None:
        self._port, self._token, self._pages = port, token, pages
        self.events = 0
        self.ended = 0
        self._loop = asyncio.new_event_loop()
        self._open = threading.Barrier(2)
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._over = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._open.wait(_SECONDS)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        cookies = [await entered(self._port, self._token) for _ in self._pages]
        pairs = zip(cookies, self._pages, strict=True)
        tasks = [asyncio.create_task(self._read(cookie, page)) for cookie, page in pairs]
        self._open.wait(_SECONDS)
        await self._over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, cookie: str, page: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        try:
            # A browser reads the page first.
            path = f"/live?page={quote(page, safe='')}"
            writer.write(request(self._port, path, cookie))
            while line := await reader.readline():
                self.events += line.startswith(b"event:")
            self.ended += 1
        finally:
            writer.close()


class Idlers:
    """Connections that never read, never finish their request, or never begin one."""

    def __init__(self, port: int, cookie: str, slow: int, half: int, idle: int) -> None:
        self._sockets: list[socket.socket] = []
        for number in range(slow + half + idle):
            one = socket.socket()
            if number < slow:
                # As little as the system allows, so that it is full at once.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            one.connect(("127.0.0.1", port))
            whole = request(port, "/live?page=%2Fqueues", cookie)
            with contextlib.suppress(ConnectionError):
                if number < slow:
                    one.sendall(whole)
                elif number < slow + half:
                    one.sendall(whole[: len(whole) // 2])
            self._sockets.append(one)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for one in self._sockets:
            one.close()
