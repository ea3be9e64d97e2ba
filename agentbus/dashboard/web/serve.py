"""Serves the pages with uvicorn, so that slow, silent and idle clients do not block others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentbus.dashboard.web.sessions import network

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp, Receive, Scope, Send

# Connections; above it, one that waits for its client is closed for a new one.
_MOST = 512
# Connections that are accepted at a time: until they are served or closed, each is an open file more.
_ACCEPTED = 64
# Seconds to receive a request's head, for a client to accept part of a reply, and to send the rest
# of a reply after the connection was closed.
_HEAD, _STUCK, _CLOSING = 10.0, 30.0, 5.0
_KEPT_ALIVE = 5
# Seconds to finish replies when the server stops.
_LAST = 2


class _Places:
    """The connections of each network, those first that have been idle the longest."""

    def __init__(self) -> None:
        self._networks: dict[str, dict[_WebConnection, None]] = {}

    def add(self, connection: _WebConnection) -> None:
        """Add a connection, or make it the last one of its network."""
        known = self._networks.setdefault(connection.network, {})
        known.pop(connection, None)
        known[connection] = None

    def remove(self, connection: _WebConnection) -> None:
        """Remove a connection."""
        known = self._networks.get(connection.network, {})
        known.pop(connection, None)
        if not known:
            self._networks.pop(connection.network, None)

    def make_room(self) -> bool:
        """Tell whether there is room, after a connection has been closed if need be.

        It is one of the network that has the most, so that a client that opens many displaces itself.
        """
        if sum(map(len, self._networks.values())) < _MOST:
            return True
        for connections in sorted(self._networks.values(), key=len, reverse=True):
            for connection in connections:
                if connection.waits:
                    self.remove(connection)
                    connection.transport.abort()
                    return True
        return False


class _WebConnection(H11Protocol):
    """A connection with the times since when it waits for a request, or for its client to read."""

    since = 0.0
    stuck: float | None = None
    network = ""

    def __init__(self, places: _Places, **options: Any) -> None:
        super().__init__(**options)
        self._places = places

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, or close the connection if there is none."""
        if not self._places.make_room():
            transport.abort()
            return
        super().connection_made(transport)
        self.since = self.loop.time()
        self.network = network(self.client[0] if self.client else "")
        self._places.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place up."""
        if self.transport is not None:
            self._places.remove(self)
            super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Tell whether the connection waits for a request."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def waits(self) -> bool:
        """Tell whether it waits for a request, or for the rest of one."""
        return self.idle or self.cycle.more_body

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self.since = self.loop.time()
        self._places.add(self)
        super().on_response_complete()

    def sweep(self, now: float) -> None:
        """Close the connection if it has waited too long."""
        closing = self.transport.is_closing()
        if not (closing or self.flow.write_paused):
            self.stuck = None
        elif self.stuck is None:
            self.stuck = now
        stuck = self.stuck is not None and now - self.stuck > (_CLOSING if closing else _STUCK)
        if stuck or (self.idle and now - self.since > _HEAD):
            self.transport.abort()


class _Quiet(Server):
    """A server that leaves signals to its caller, and sweeps its connections once a second."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not handle signals."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Sweep the connections at intervals."""
        if counter % 10 == 0:
            now = asyncio.get_running_loop().time()
            for one in [*self.server_state.connections]:
                if isinstance(one, _WebConnection):
                    one.sweep(now)
        return await super().on_tick(counter)


class _Prefixed:
    """Serves an application below a path, whether or not a proxy in front removes the path."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its full path."""
        if scope["type"] == "http":
            prefix, path = self._prefix, scope["path"]
            whole = path == prefix or path.startswith(prefix + "/")
            scope = {**scope, "root_path": prefix, "path": path if whole else prefix + path}
        await self._app(scope, receive, send)


class _Said(logging.Handler):
    """Reports an unexpectedly failed request in one line, without content that may be secret."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Report the class of the error."""
        error = record.exc_info[1] if record.exc_info else None
        # A record without an error is about an unfinished reply, which its client did not accept. At the
        # end, requests that have not come are cancelled.
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self._say(f"a request failed unexpectedly ({type(error).__name__})")


async def serve(
    app: Any,
    listening: socket.socket,
    *,
    ended: asyncio.Event,
    prefix: str = "",
    say: Callable[[str], None],
) -> None:
    """Serve the application of `agentbus.dashboard.app` on a listening socket, until `ended` is set.

    `prefix` is the path below which a proxy serves it. `say` is called with sentences about
    failures.
    """
    logger, handler = logging.getLogger("uvicorn.error"), _Said(say)
    logger.addHandler(handler)
    logger.propagate = False
    server = _Quiet(
        Config(
            _Prefixed(app, prefix) if prefix else app,
            http=partial(_WebConnection, _Places()),  # type: ignore[arg-type]
            ws="none",
            loop="asyncio",
            # Do not log addresses: they contain the one-time code.
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEPT_ALIVE,
            timeout_graceful_shutdown=_LAST,
            backlog=_ACCEPTED,
        )
    )
    serving = asyncio.create_task(server.serve([listening]))
    ending = asyncio.create_task(ended.wait())
    try:
        await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
        await app.state.aclose()
        server.should_exit = True
        await serving
    finally:
        for task in (serving, ending):
            task.cancel()
        await asyncio.gather(serving, ending, return_exceptions=True)
        logger.removeHandler(handler)
