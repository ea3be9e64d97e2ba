"""Backends: servers, their addresses, and blocking connections to them."""

from __future__ import annotations

import _socket
import os
import sys
import time

from agentbus.store.resp import (
    NO_REDIS,
    Incomplete,
    commands,
    forgotten,
    moved,
    pack,
    parse,
    raise_first,
    settle,
    turned_away,
)
from agentbus.store.steps import Denied, LinkDown, Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from agentbus.store.async_driver import AsyncLink
    from agentbus.store.steps import Advice, Arg, Link

_NO_SIGPIPE = getattr(_socket, "MSG_NOSIGNAL", 0)
_LASTS = 16  # A connection with this many exchanges is long-lived.
_SMALL, _GRACE = 8192, 1.0
_PEERCRED = getattr(_socket, "SO_PEERCRED", None)  # Only Linux has SO_PEERCRED.


class Backend:
    """A server, under a name for messages that contains no secrets.

    `find` locates the server, and `revive`, if given, starts it; each takes a limit in seconds. With
    `wraps`, a project's keys share one hash tag and so one shard. If it `confirms`, its links send steps
    that replicas confirm. `advice` is a hint for a server that does not answer, or a function that turns
    the reason into a better reason and a hint.
    """

    wraps = False
    advice: Advice | None = None
    client = "agentbus"  # Connection name in CLIENT LIST.
    confirms = True
    # `debug` logs each exchange; `functions` calls server-side functions instead of scripts.
    debug = False
    functions = False

    def __init__(
        self,
        name: str,
        find: Callable[[float], Target],
        *,
        revive: Callable[[float], None] | None = None,
    ) -> None:
        self.name = name
        self.find = find
        self.revive = revive

    def encoder(self) -> Callable[..., list[Sequence[Arg]]]:
        """Return the function that encodes a step's commands, which run scripts or call functions."""
        if not self.functions:
            return commands
        from agentbus.store import functions

        return functions.commands

    def link(self) -> Link:
        """Return a blocking link, which connects on first use."""
        return self.logged(PlainLink(self))

    def logged(self, link: Link) -> Link:
        """Return a link that logs each exchange if `debug` is set; otherwise the link itself."""
        if not self.debug:
            return link
        from agentbus.store.logged import LoggedLink

        return LoggedLink(link)

    def shard(self, prefix: str) -> Callable[[float], Target]:
        """Return a function like `find` for a shard of the project; only a cluster has several."""
        return self.find

    def async_link(self) -> AsyncLink | None:
        """Return a link for event loops, which connects on first use; None for a plain connection."""
        return None


class Target:
    """A server's address and login; `own`: only this user or root may serve it; `tls`: an `SSLContext`."""

    __slots__ = ("database", "host", "own", "password", "path", "port", "tls", "username")

    def __init__(
        self,
        *,
        path: str | None = None,
        host: str = "localhost",
        port: int = 6379,
        username: str | None = None,
        password: str | None = None,
        database: int = 0,
        tls: Any = None,
        own: bool = False,
    ) -> None:
        self.path = path
        self.own = own
        self.host = host
        self.port = port
        self.username = username
        self.password = password
        self.database = database
        self.tls = tls


def greeting(target: Target, client: str) -> list[tuple[Arg, ...]]:
    """Return the commands that precede the first request on a connection.

    The last command names the connection, which an ACL may forbid.
    """
    commands: list[tuple[Arg, ...]] = []
    if target.password is not None:
        user = () if target.username is None else (target.username,)
        commands.append(("AUTH", *user, target.password))
    if target.database:
        commands.append(("SELECT", target.database))
    commands.append(("CLIENT", "SETNAME", client))
    return commands


class PlainLink:
    """A pool of plain connections, one per exchange, so that threads can share it."""

    def __init__(self, backend: Backend) -> None:
        self.name = backend.name
        # Read-only commands to send with the next non-blocking request, and their replies.
        self.beside: Sequence[Sequence[Arg]] = ()
        self.read_beside: list[Any] = []
        self._backend = backend
        self._commands = backend.encoder()
        self._idle: list[_Connection] = []
        self._process, self._closed = os.getpid(), False

    def execute(self, step: Step) -> Any:
        """Exchange one step with the server."""
        if self._process != os.getpid():
            # After a fork, both processes would read from the same connections.
            self._idle, self._process = [], os.getpid()
        until = time.monotonic() + step.within
        try:
            connection, fresh = self._idle.pop(), False
        except IndexError:
            connection, fresh = self._dial(step.within), True
            if self._backend.revive is not None:
                # The start of the server may have used up most of the time.
                until = time.monotonic() + step.within
        if step.posted and not fresh:
            connection.post(self._commands(step))
            self._keep(connection)
            return None
        if step.confirms:
            from agentbus.store.durable import confirm_step

            return confirm_step(connection, step, until, self._commands, self.name, self._keep)
        until += step.blocks + _GRACE if step.blocks else 0.0
        requests, beside = self._commands(step), () if step.blocks else self.beside
        requests += beside
        try:
            replies = connection.exchange(requests, until, step.meanwhile)
            if beside:
                self.beside, self.read_beside = (), replies[-len(beside) :]
                del replies[-len(beside) :]
            if forgotten(replies):
                # Resend only the script: the commands after it were executed.
                replies[:1] = connection.exchange(self._commands(step, whole=True)[:1], until)
        except BaseException as failure:
            connection.close()
            if isinstance(failure, LinkDown) and not fresh:
                # The server may have closed all idle connections.
                _close(self._idle)
            raise
        self._keep(connection)
        if moved(replies):
            _close(self._idle)
        return settle(step, replies)

    def trim(self) -> None:
        """Close all idle connections except the last used one."""
        _close(self._idle, 1)

    def close(self) -> None:
        """Close the idle connections; connections in use are closed after their exchange."""
        self._closed = True
        _close(self._idle)

    def _keep(self, connection: _Connection) -> None:
        self._idle.append(connection)
        if self._closed:
            # Another thread closed the pool during the exchange, and will not close this
            # connection.
            _close(self._idle)

    def _dial(self, within: float) -> _Connection:
        until = time.monotonic() + within
        target = self._backend.find(within)
        try:
            return _Connection(target, until, self._backend.client)
        except LinkDown as failure:
            if self._backend.revive is None or isinstance(failure, Denied):
                raise
        from agentbus.store.failures import revive

        revive(self._backend.revive, within)
        # A restarted server may have another address.
        return _Connection(self._backend.find(within), until, self._backend.client)


class _Connection:
    """A socket, and the greeting to send on it first."""

    def __init__(self, target: Target, until: float, client: str) -> None:
        self._host = target.host
        self._greeting = greeting(target, client)
        self._reader: Any = None
        self._place: Any = None
        self._pack = pack
        self._fast: Any = None
        self._exchanges = 0
        # Number of pending replies that no caller waits for.
        self._unread = 0
        # Current timeout of the socket, remembered because setting it takes a system call.
        self._allowed = -1.0
        # TLS sockets accept no flags, and OpenSSL never raises SIGPIPE.
        self._flags = 0 if target.tls else _NO_SIGPIPE
        try:
            self._socket = _open(target, until)
        except OSError as error:
            from agentbus.store.failures import unconnected

            raise unconnected(error, target.host, target.path) from None

    def exchange(
        self,
        requests: Sequence[Sequence[Arg]],
        until: float,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Any]:
        """Send commands and return their replies; `meanwhile` is called between the two."""
        greeting, self._greeting, self._exchanges = self._greeting, [], self._exchanges + 1
        if self._exchanges >= _LASTS and self._fast is None:
            self._quicken()
        unread, self._unread = self._unread, 0
        everything = [*greeting, *requests] if greeting else requests
        pack = self._pack
        data = pack(everything[0]) if len(everything) == 1 else b"".join(map(pack, everything))
        sent = False
        try:
            left = until - time.monotonic()
            if abs(left - self._allowed) > _GRACE / 4:
                self._limit(left)
            done = self._socket.send(data, self._flags)
            sent = True
            while done < len(data):
                self._limit(until - time.monotonic())
                done += self._socket.send(memoryview(data)[done:], self._flags)
            if meanwhile is not None:
                began = time.monotonic()
                meanwhile()
                # Do not count the time of `meanwhile` as waiting: the reply has usually arrived by
                # now.
                until += time.monotonic() - began
            if self._fast is not None:
                expected = len(everything) + unread
                replies: list[Any] = self._fast(self, self._reader, expected, until)
            else:
                replies = self._receive(len(everything) + unread, until, len(greeting))
        except OSError as error:
            raise _down(error, "answer", self._host, sent=sent, sock=self._socket) from None
        if not greeting:
            return replies[unread:] if unread else replies
        raise_first(replies[: len(greeting) - 1])
        return replies[len(greeting) :]

    def post(self, requests: Sequence[Sequence[Arg]]) -> None:
        """Send commands; the next exchange discards their replies. Raises `LinkDown`."""
        data = b"".join(map(self._pack, requests))
        try:
            self._limit(_GRACE)
            done = self._socket.send(data, self._flags)
        except OSError as error:
            self.close()
            raise _down(error, "connection", self._host, sent=False) from None
        if done < len(data):
            # After a partly sent command, the connection is unusable.
            self.close()
            raise LinkDown("the server does not read", sent=True)
        self._unread += len(requests)

    def _quicken(self) -> None:
        # hiredis is worth loading only after many exchanges, more than a shell command makes.
        from agentbus.store import hiredis_reader

        self._reader, self._place = hiredis_reader.reader(), hiredis_reader.buffer()
        self._fast = hiredis_reader.receive
        self._pack = hiredis_reader.pack
        if self._flags:
            self._limit = hiredis_reader.kernel_limit(self)  # type: ignore[method-assign,assignment]
            self._allowed = -1.0

    def _limit(self, seconds: float) -> None:
        """Set the timeout of a send or a receive."""
        self._socket.settimeout(max(0.001, seconds))
        self._allowed = seconds

    def _receive(self, expected: int, until: float, greeting: int) -> list[Any]:
        data = b""
        replies: list[Any] = []
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._limit(left)
            chunk = self._socket.recv(16384)
            if not chunk:
                if greeting:
                    # After a refused login, the server answers the first request and then closes
                    # the connection.
                    raise_first(replies[: greeting - 1] + replies[greeting : greeting + 1])
                raise LinkDown("the server closed the connection", sent=True)
            data += chunk
            if len(data) > _SMALL:
                self._quicken()
                self._reader.feed(data)
                return list(self._fast(self, self._reader, expected, until))
            replies, at = [], 0
            try:
                while len(replies) < expected:
                    reply, at = parse(data, at)
                    replies.append(reply)
                return replies
            except Incomplete:
                if greeting and replies and (refusal := turned_away(replies[0])) is not None:
                    raise refusal from None
                continue
            except (ValueError, RecursionError):
                raise LinkDown(NO_REDIS, sent=True) from None

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):  # The caller did not close the bus.
            self._socket.close()


def _close(idle: list[_Connection], left: int = 0) -> None:
    while len(idle) > left:
        try:
            idle.pop(0).close()
        except IndexError:
            # Another thread took the last connection.
            return


def _open(target: Target, until: float) -> Any:
    if target.path is None:
        from agentbus.store.tcp import connect

        return connect(target.host, target.port, target.tls, until)
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.settimeout(max(0.001, until - time.monotonic()))
        sock.connect(target.path)
        if target.own:
            check_peer(sock, target.path)
    except BaseException:
        sock.close()
        raise
    return sock


def check_peer(sock: Any, path: str) -> None:
    """Raise `ConfigError` if another user serves a socket, or owns its directory."""
    if _PEERCRED is None:
        from agentbus.store.peer import uid

        owner = uid(sock)
    else:
        # The reply is a struct ucred: process, user and group.
        said = sock.getsockopt(_socket.SOL_SOCKET, _PEERCRED, 12)
        owner = int.from_bytes(said[4:8], sys.byteorder)
    ours = (0, os.getuid())
    if owner not in ours or os.lstat(os.path.dirname(path)).st_uid not in ours:
        from agentbus.store.peer import stranger

        raise stranger(path, owner)


def _down(error: OSError, lacking: str, host: str, *, sent: bool, sock: Any = None) -> Exception:
    from agentbus.store.failures import down

    return down(error, lacking, host, sent=sent, sock=sock)
