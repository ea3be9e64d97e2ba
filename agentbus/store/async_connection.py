"""Asynchronous connections: one write for the commands of many callers, one shared blocked read."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from agentbus.core.errors import BackendUnavailable
from agentbus.store import sandbox
from agentbus.store.connection import Backend, Target, check_peer, greeting
from agentbus.store.durable import Confirmations
from agentbus.store.failures import mistake, revive, unconnected
from agentbus.store.hiredis_reader import buffer, reader
from agentbus.store.resp import NO_REDIS, forgotten, moved, pack, settle, turned_away
from agentbus.store.steps import Denied, LinkDown, ServerReply, Step, Wait
from agentbus.store.tail import Tails

if TYPE_CHECKING:
    from agentbus.store.steps import Arg

_GRACE = 1.0


class AsyncPlainLink:
    """One connection for commands, and one for each stream that coroutines wait on."""

    def __init__(self, backend: Backend) -> None:
        self.name = backend.name
        self._backend = backend
        self._commands = backend.encoder()
        self._connection: _AsyncConnection | None = None
        self._dialing: asyncio.Task[_AsyncConnection] | None = None
        self._tails: Tails | None = None
        self._confirmations: Confirmations | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def execute(self, step: Step) -> Any:
        """Exchange one step with the server."""
        if self._closed:
            raise BackendUnavailable("the bus was closed", hint="open another one")
        self._enter_loop()
        if step.meanwhile is not None:
            step.meanwhile()
        if isinstance(step, Wait) and self._tails is not None:
            return await self._tails.wait(step)
        if step.confirms:
            return await self._confirmed(step)
        return await self.exchange(step)

    async def _confirmed(self, step: Any) -> Any:
        if self._confirmations is None:
            self._confirmations = Confirmations(self.dial, self._commands, self.name)
        return await self._confirmations.execute(step)

    async def exchange(self, step: Step) -> Any:
        """Send a step's commands on the shared connection and return its reply."""
        connection = self._connection
        if connection is None or connection.closed:
            connection = await self._shared(step.within)
        replies = await connection.request(self._commands(step), step.within)
        if forgotten(replies):
            replies[:1] = await connection.request(
                self._commands(step, whole=True)[:1], step.within
            )
        if moved(replies):
            connection.close("another server is in charge")
        return settle(step, replies)

    def is_open(self) -> bool:
        """Report whether the running event loop has an open connection."""
        connection = self._connection
        if connection is None or connection.closed or self._closed:
            return False
        return asyncio.get_running_loop() is self._loop

    def start(self, step: Step) -> asyncio.Future[list[Any]] | None:
        """Send a step's commands if a connection is open, and return the future of their replies."""
        if not self.is_open():
            return None
        assert self._connection is not None
        return self._connection.start(self._commands(step), step.within)

    async def dial(self, within: float) -> _AsyncConnection:
        """Open a connection."""
        if denied := sandbox.without_wakeups():
            raise Denied(denied)
        target = await asyncio.to_thread(self._backend.find, within)
        try:
            return await _open(target, within, self._backend.client)
        except LinkDown as failure:
            if self._backend.revive is None or isinstance(failure, Denied):
                raise
        await asyncio.to_thread(revive, self._backend.revive, within)
        return await _open(target, within, self._backend.client)

    async def aclose(self) -> None:
        """Close the connections; pending requests fail."""
        self._closed = True
        if self._confirmations is not None:
            self._confirmations.close("the bus was closed")
        if self._tails is not None:
            await self._tails.aclose()
        if self._connection is not None:
            self._connection.close("the bus was closed")

    async def _shared(self, within: float) -> _AsyncConnection:
        """Return the connection for commands; callers that need a new one share the attempt."""
        if self._dialing is None:
            self._dialing = asyncio.ensure_future(self.dial(within))
            self._dialing.add_done_callback(self._dialled)
        try:
            async with asyncio.timeout(within):
                return await asyncio.shield(self._dialing)
        except TimeoutError:
            raise LinkDown("no connection in time", sent=False) from None

    def _dialled(self, task: asyncio.Task[_AsyncConnection]) -> None:
        wanted = self._dialing is task and not self._closed
        if self._dialing is task:
            self._dialing = None
        # Retrieve the exception, so that asyncio does not warn of a failure that nobody awaits.
        if task.cancelled() or task.exception() is not None:
            return
        if wanted:
            self._connection = task.result()
        else:
            # The bus was closed during the attempt, and would never close this connection.
            task.result().close("the bus was closed")

    def _enter_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # A connection belongs to the loop that opened it.
            self._loop = loop
            self._connection = None
            self._dialing = None
            self._confirmations = None
            self._tails = Tails(self.exchange, self._block_on_own)

    async def _block_on_own(self, steps: asyncio.Queue[Wait], give: Callable[[Any], None]) -> None:
        """Serve blocking reads, one after the other, on a separate connection."""
        connection = await self.dial(5.0)
        try:
            while True:
                step = await steps.get()
                replies = await connection.request(
                    self._commands(step), step.seconds + _GRACE + step.within
                )
                give(settle(step, replies))
        finally:
            connection.close("no reader is left")


class _AsyncConnection(asyncio.BufferedProtocol):
    """A pipelined connection: it writes all requests of one event loop iteration at once."""

    def __init__(self, target: Target, client: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = reader()
        self._place = buffer()
        # Over TLS, asyncio reads into slices of the buffer; slicing a bytearray would copy it.
        self._view = memoryview(self._place)
        self._waiting: deque[_Request] = deque()
        self._outgoing: list[bytes] = []
        self._flushing = False
        self._watchdog: asyncio.TimerHandle | None = None
        self._lost = ""
        self._host = target.host
        self._greeting: list[tuple[Arg, ...]] = greeting(target, client)

    @property
    def closed(self) -> bool:
        """True if this connection accepts no further request."""
        return bool(self._lost)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Do not check the type: uvloop's transports have the same methods, but do not inherit from
        # these classes.
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.feed(self._place, 0, nbytes)  # type: ignore[arg-type]
        try:
            while self._waiting:
                reply = self._reader.gets()
                if reply is False:
                    return
                request = self._waiting[0]
                request.replies.append(reply)
                if len(request.replies) == request.expected:
                    self._waiting.popleft()
                    request.finish()
                    if request.greets:
                        self._greeted(request.replies)
        except (ConnectionError, MemoryError) as error:
            # For example, the server announced a list of billions of replies.
            self.close(str(error) or NO_REDIS)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(
            str(error) if error else "the server closed the connection",
            None if error is None else mistake(error, self._host),
        )

    async def request(self, requests: Sequence[Sequence[Arg]], within: float) -> list[Any]:
        """Send commands and return their replies, in order."""
        return await self.start(requests, within)

    def start(self, requests: Sequence[Sequence[Arg]], within: float) -> asyncio.Future[list[Any]]:
        """Send commands, and return the future of their replies."""
        if self._lost:
            raise LinkDown(self._lost, sent=False)
        greeting, self._greeting = self._greeting, []
        entry = _Request(self._loop, len(requests), self._loop.time() + within)
        if greeting:
            opening = _Request(self._loop, len(greeting), self._loop.time() + within)
            opening.greets = True
            self._waiting.append(opening)
        self._waiting.append(entry)
        self._outgoing.extend(pack(command) for command in (*greeting, *requests))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        if self._watchdog is None:
            self._watchdog = self._loop.call_at(entry.until, self._watch)
        return entry.future

    def close(self, why: str) -> None:
        """Close the connection; requests without a reply fail."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(why)

    def _flush(self) -> None:
        self._flushing = False
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and not self._lost:
            self._transport.write(b"".join(outgoing))

    def _watch(self) -> None:
        """Close the connection if its oldest request is overdue, since all later ones wait behind it."""
        self._watchdog = None
        if not self._waiting:
            return
        until = self._waiting[0].until
        if until <= self._loop.time():
            self.close("no answer in time")
        else:
            self._watchdog = self._loop.call_at(until, self._watch)

    def _greeted(self, replies: list[Any]) -> None:
        """Fail all pending requests if the server rejected the connection, or the login."""
        if (refusal := turned_away(replies[0])) is not None and self._transport is not None:
            self._transport.abort()
            self._fail(str(refusal), refusal)
        for reply in replies[:-1]:
            if isinstance(reply, ServerReply):
                for request in self._waiting:
                    request.fail(reply)
                self.close(str(reply))

    def _fail(self, why: str, failure: Exception | None = None) -> None:
        if self._lost:
            return
        if failure is None:
            failure = self._refusal()
        self._lost = str(failure or "") or why or "the connection was lost"
        if self._watchdog is not None:
            self._watchdog.cancel()
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            request.fail(failure or LinkDown(self._lost, sent=True))

    def _refusal(self) -> LinkDown | ServerReply | None:
        """Return the error for a connection that the server refused in its first reply."""
        if self._waiting and not self._waiting[0].greets:
            return None
        if self._waiting and self._waiting[0].replies:
            return turned_away(self._waiting[0].replies[0])
        try:
            # The refusal may have arrived before the first request.
            return turned_away(self._reader.gets())
        except (ConnectionError, MemoryError):
            return None


class _Request:
    """Commands in flight, and the replies received so far."""

    __slots__ = ("expected", "future", "greets", "replies", "until")

    def __init__(self, loop: asyncio.AbstractEventLoop, expected: int, until: float) -> None:
        self.future: asyncio.Future[list[Any]] = loop.create_future()
        self.expected = expected
        self.replies: list[Any] = []
        self.until = until
        self.greets = False

    def finish(self) -> None:
        """Return the replies to the caller, if it still waits."""
        if not self.future.done():
            self.future.set_result(self.replies)

    def fail(self, error: Exception) -> None:
        """Raise a failure in the caller, if it still waits; for a greeting, nobody waits."""
        if not self.greets and not self.future.done():
            self.future.set_exception(error)


async def _open(target: Target, within: float, client: str) -> _AsyncConnection:
    loop = asyncio.get_running_loop()

    def protocol() -> _AsyncConnection:
        return _AsyncConnection(target, client)

    try:
        async with asyncio.timeout(within):
            if target.path is not None:
                sock = socket.socket(socket.AF_UNIX)
                try:
                    sock.setblocking(False)
                    await loop.sock_connect(sock, target.path)
                    if target.own:
                        check_peer(sock, target.path)
                    _, connection = await loop.create_unix_connection(protocol, sock=sock)
                except BaseException:
                    sock.close()
                    raise
            else:
                connection = await _to_host(loop, protocol, target, within)
    except TimeoutError:
        raise LinkDown("no connection in time", sent=False) from None
    except OSError as error:
        raise unconnected(error, target.host, target.path) from None
    return connection


async def _to_host(
    loop: asyncio.AbstractEventLoop,
    protocol: Callable[[], _AsyncConnection],
    target: Target,
    within: float,
) -> _AsyncConnection:
    """Connect to the first of a host's addresses that answers; raises `OSError`."""
    until = loop.time() + within
    addresses = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    for left, (family, *_, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        sock = socket.socket(family)
        try:
            sock.setblocking(False)
            # As in `tcp.connect`, divide the time among the addresses: the first may never answer.
            async with asyncio.timeout((until - loop.time()) / left):
                await loop.sock_connect(sock, address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name = None if target.tls is None else target.host
            _, connection = await loop.create_connection(
                protocol, sock=sock, ssl=target.tls, server_hostname=name
            )
        except BaseException as error:
            sock.close()
            if left == 1 or not isinstance(error, OSError):
                raise
        else:
            return connection
    raise OSError("the host has no address")
