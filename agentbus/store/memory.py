"""A server inside this process, for tests, built on fakeredis without persistence."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import fakeredis
from fakeredis import FakeRedisConnection
from fakeredis.aioredis import FakeAsyncRedisConnection
from redis.exceptions import ConnectionError as RedisConnectionError, ResponseError

from agentbus.core.errors import BackendUnavailable
from agentbus.store.resp import commands, settle, source
from agentbus.store.steps import Both, LinkDown, Script, ServerReply, Step, Take, Wait
from agentbus.store.tail import Tails

if TYPE_CHECKING:
    from agentbus.store.steps import Arg

_servers: dict[str, fakeredis.FakeServer] = {}
_guard = threading.Lock()
# Seconds until a blocking read is repeated: fakeredis goes on waiting at a stream that was deleted,
# where a real server answers at once.
_ONE_READ = 0.25
_OPTIONS: dict[str, Any] = {
    "protocol": 2,
    "socket_timeout": None,
    "client_class": fakeredis.FakeRedis,
}


def server(name: str) -> fakeredis.FakeServer:
    """Return the in-process server of this name, created on first use."""
    with _guard:
        if name not in _servers:
            fake_server = _servers[name] = fakeredis.FakeServer(version=(7, 0), server_type="redis")
            # Create the database now: two threads that create it at first use would each get their
            # own.
            _ = fake_server.dbs[0]
        return _servers[name]


def forget(name: str) -> None:
    """Drop the server of this name with all its data."""
    with _guard:
        _servers.pop(name, None)


class MemoryLink:
    """An in-process server's blocking connections; a blocked read blocks its own thread only."""

    def __init__(self, name: str) -> None:
        self.name = f"memory://{name}"
        self._server = server(name)
        self._idle: list[FakeRedisConnection] = []

    def execute(self, step: Step) -> Any:
        """Exchange one step with the server."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = FakeRedisConnection(server=self._server, **_OPTIONS)
        replies = _replies(connection, step)
        self._idle.append(connection)
        if step.meanwhile is not None:
            step.meanwhile()
        return settle(step, replies)

    def close(self) -> None:
        """Drop the idle connections; the server keeps its data until the process ends."""
        self._idle.clear()


class AsyncMemoryLink:
    """Asynchronous access to an in-process server; one blocked read serves all coroutines."""

    def __init__(self, name: str) -> None:
        self.name = f"memory://{name}"
        self._server = server(name)
        self._connection: FakeRedisConnection | None = None
        self._tails: Tails | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def execute(self, step: Step) -> Any:
        """Exchange one step with the server."""
        if self._closed:
            raise BackendUnavailable("the bus was closed", hint="open another one")
        loop = asyncio.get_running_loop()
        if self._tails is None or loop is not self._loop:
            self._loop, self._tails = loop, Tails(self._exchange, self._block)
        if step.meanwhile is not None:
            step.meanwhile()
        if isinstance(step, Wait):
            return await self._tails.wait(step)
        return await self._exchange(step)

    async def aclose(self) -> None:
        """Stop the blocked reads; pending waits fail."""
        self._closed = True
        if self._tails is not None:
            await self._tails.aclose()

    async def _exchange(self, step: Step) -> Any:
        if self._connection is None:
            self._connection = FakeRedisConnection(server=self._server, **_OPTIONS)
        connection = self._connection
        replies = [_ask(connection, args) for args in _requests(step)]
        return settle(step, replies)

    async def _block(self, steps: asyncio.Queue[Wait], give: Callable[[Any], None]) -> None:
        connection = FakeAsyncRedisConnection(server=self._server, **_OPTIONS)
        try:
            while True:
                step = await steps.get()
                (args,) = _requests(step)
                await connection.send_command(*args)
                reply = await connection.read_response(disable_decoding=True)
                give(settle(step, [reply]))
        finally:
            await connection.disconnect()


def _requests(step: Step) -> list[tuple[Arg, ...]]:
    if isinstance(step, Script):
        # fakeredis caches scripts by text, and does not support the flags in their first line.
        body = source(step.script).partition(b"\n")[2]
        return [("EVAL", body, len(step.keys), *step.keys, *step.argv)]
    if isinstance(step, Take) and step.first is not None:
        return [*_requests(step.first), *(tuple(args) for args in commands(step)[-2:])]
    if isinstance(step, Both):
        return [*_requests(step.first), *_requests(step.second)]
    return [tuple(args) for args in commands(step)]


def _replies(connection: FakeRedisConnection, step: Step) -> list[Any]:
    if not (isinstance(step, Take) and step.seconds > _ONE_READ):
        return [_ask(connection, args) for args in _requests(step)]
    *first, _, last = _requests(step)
    replies = [_ask(connection, args) for args in first]
    part = Take(step.streams, step.group, step.consumer, step.count, _ONE_READ, step.watched)
    until, reply = time.monotonic() + step.seconds, None
    while not reply and (left := until - time.monotonic()) > 0:
        part.seconds = min(left, _ONE_READ)
        reply = _ask(connection, tuple(commands(part)[0]))
    return [*replies, reply, _ask(connection, last)]


def _ask(connection: FakeRedisConnection, args: tuple[Arg, ...]) -> Any:
    try:
        connection.send_command(*args)  # type: ignore[no-untyped-call]
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        # redis-py removes the code ERR from the message, but keeps all other codes.
        said = str(error)
        return ServerReply(said if said.partition(" ")[0].isupper() else f"ERR {said}")
    except RedisConnectionError as error:
        raise LinkDown(str(error), sent=False) from None
