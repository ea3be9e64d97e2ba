"""Blocking connections over plain sockets: the fast way to a server on TCP or a unix socket."""

from __future__ import annotations

import _socket
import os
import time

from agentbus.store import LinkDown, ServerReply, Step, Wait
from agentbus.store.wire import Incomplete, Target, commands, forgotten, moved, pack, parse, settle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from agentbus.store import Arg

_NO_SIGPIPE = getattr(_socket, "MSG_NOSIGNAL", 0)
_SMALL = 8192
_GRACE = 1.0


class PlainLink:
    """A pool of plain connections; each exchange has one to itself, so threads may share it."""

    def __init__(
        self,
        name: str,
        find: Callable[[], Target],
        *,
        revive: Callable[[float], None] | None = None,
    ) -> None:
        """`find` says where the server is now; `revive` starts it, within so many seconds."""
        self.name = name
        self._find = find
        self._revive = revive
        self._idle: list[_Connection] = []
        self._process = os.getpid()
        # Called once, between a request and its reply: time that would be spent waiting.
        self.meanwhile: Callable[[], None] | None = None

    def execute(self, step: Step) -> Any:
        """Exchange one step with the server."""
        if self._process != os.getpid():
            # After a fork both processes would read from the same connections.
            self._idle, self._process = [], os.getpid()
        until = time.monotonic() + step.within
        fresh = not self._idle
        connection = self._dial(step.within) if fresh else self._idle.pop()
        if isinstance(step, Wait):
            until += step.seconds + _GRACE
        try:
            replies = connection.exchange(commands(step), until, self._take_meanwhile())
            if forgotten(replies):
                replies = connection.exchange(commands(step, whole=True), until)
        except LinkDown:
            connection.close()
            if not fresh:
                # It may have been closed long ago, with all that were opened beside it.
                self.close()
            raise
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        if moved(replies):
            self.close()
        return settle(step, replies)

    def _take_meanwhile(self) -> Callable[[], None] | None:
        taken, self.meanwhile = self.meanwhile, None
        return taken

    def close(self) -> None:
        """Close the idle connections."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _dial(self, within: float) -> _Connection:
        until = time.monotonic() + within
        target = self._find()
        try:
            return _Connection(target, until)
        except LinkDown:
            if self._revive is None:
                raise
        self._revive(within)
        return _Connection(target, until)


class _Connection:
    """One socket, with what it still has to introduce itself by."""

    def __init__(self, target: Target, until: float) -> None:
        self._greeting = target.greeting()
        self._reader: Any = None
        # A TLS socket takes no flags, and its library never raises the signal.
        self._flags = 0 if target.tls else _NO_SIGPIPE
        try:
            self._socket = _open(target, until)
        except OSError as error:
            raise LinkDown(_why(error, "connection"), sent=False) from None

    def exchange(
        self,
        requests: Sequence[Sequence[Arg]],
        until: float,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Any]:
        """Send commands and return their replies; `meanwhile` is called between the two."""
        greeting, self._greeting = self._greeting, []
        data = b"".join([pack(request) for request in [*greeting, *requests]])
        sent = False
        try:
            view = memoryview(data)
            while view:
                self._socket.settimeout(max(0.001, until - time.monotonic()))
                done = self._socket.send(view, self._flags)
                sent = True
                view = view[done:]
            if meanwhile is not None:
                meanwhile()
            replies = self._receive(len(greeting) + len(requests), until)
        except OSError as error:
            raise LinkDown(_why(error, "answer"), sent=sent) from None
        for reply in replies[: len(greeting)]:
            if isinstance(reply, ServerReply):
                raise reply
        return replies[len(greeting) :]

    def _receive(self, expected: int, until: float) -> list[Any]:
        data = b""
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            chunk = self._socket.recv(65536)
            if not chunk:
                raise LinkDown("the server closed the connection", sent=True)
            data += chunk
            if len(data) > _SMALL:
                return self._receive_many(data, expected, until)
            replies: list[Any] = []
            at = 0
            try:
                while len(replies) < expected:
                    reply, at = parse(data, at)
                    replies.append(reply)
                return replies
            except Incomplete:
                continue

    def _receive_many(self, data: bytes, expected: int, until: float) -> list[Any]:
        from agentbus.store.reader import reader

        if self._reader is None:
            self._reader = reader()
        source = self._reader
        source.feed(data)
        replies: list[Any] = []
        while True:
            while len(replies) < expected:
                reply = source.gets()
                if reply is False:
                    break
                replies.append(reply)
            if len(replies) == expected:
                return replies
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            chunk = self._socket.recv(262144)
            if not chunk:
                raise LinkDown("the server closed the connection", sent=True)
            source.feed(chunk)

    def close(self) -> None:
        self._socket.close()


def _open(target: Target, until: float) -> Any:
    if target.path is not None:
        return _connect(_socket.AF_UNIX, target.path, until)
    last: OSError | None = None
    found = _socket.getaddrinfo(target.host, target.port, 0, _socket.SOCK_STREAM)
    for family, _kind, _protocol, _name, address in found:
        try:
            sock = _connect(family, address, until)
            return _secured(sock, target, until) if target.tls else sock
        except OSError as error:
            last = error
    raise last or OSError("the host has no address")


def _connect(family: int, address: Any, until: float) -> _socket.socket:
    sock = _socket.socket(family, _socket.SOCK_STREAM)
    try:
        sock.settimeout(max(0.001, until - time.monotonic()))
        sock.connect(address)
        if family != _socket.AF_UNIX:
            sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def _secured(plain: _socket.socket, target: Target, until: float) -> Any:
    import socket

    sock = socket.socket(fileno=plain.detach())
    try:
        sock.settimeout(max(0.001, until - time.monotonic()))
        return target.tls.wrap_socket(sock, server_hostname=target.host)
    except BaseException:
        sock.close()
        raise


def _why(error: OSError, lacking: str) -> str:
    if isinstance(error, TimeoutError):
        return f"no {lacking} in time"
    return error.strerror or str(error) or type(error).__name__
