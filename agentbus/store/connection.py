"""Blocking connections over plain sockets, and what goes over them: RESP2.

Small replies are parsed here, since loading hiredis costs more than it saves on one of them.
"""

from __future__ import annotations

import _socket
import os
import time

from agentbus.store.operation import Batch, Command, LinkDown, Run, ServerReply, Step, Take, Wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from agentbus.store.operation import Arg


_HERE = os.path.join(os.path.dirname(__file__), "lua")
_sources: dict[str, bytes] = {}
_digests: dict[str, str] = {}
_NO_SIGPIPE = getattr(_socket, "MSG_NOSIGNAL", 0)
_NO_REDIS = "the server does not speak Redis's protocol"
_SMALL = 8192
# From this exchange on a connection is one that lasts.
_LASTS = 16
_GRACE = 1.0
_ELSEWHERE = frozenset(("MOVED", "ASK", "READONLY", "MASTERDOWN", "CLUSTERDOWN"))


class Incomplete(Exception):
    """The buffer ends before the reply does."""


class Target:
    """Where a connection goes, and how it introduces itself; `tls` is an `ssl.SSLContext`."""

    __slots__ = ("database", "host", "password", "path", "port", "tls", "username")

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
    ) -> None:
        self.path = path
        self.host = host
        self.port = port
        self.username = username
        self.password = password
        self.database = database
        self.tls = tls

    def greeting(self) -> list[tuple[Arg, ...]]:
        """Return the commands that open a connection; they travel with the first request."""
        commands: list[tuple[Arg, ...]] = []
        if self.password is not None:
            user = () if self.username is None else (self.username,)
            commands.append(("AUTH", *user, self.password))
        if self.database:
            commands.append(("SELECT", self.database))
        return commands


def pack(args: Sequence[Arg]) -> bytes:
    """Return a command as RESP2 bytes."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        if isinstance(arg, str):
            arg = arg.encode()
        elif isinstance(arg, int):
            arg = b"%d" % arg
        parts.append(b"$%d\r\n%b\r\n" % (len(arg), arg))
    return b"".join(parts)


def commands(step: Step, *, whole: bool = False) -> list[Sequence[Arg]]:
    """Return the commands that a step consists of; scripts by their digest, or with their `whole` text."""
    if isinstance(step, Run):
        keys = step.keys
        if whole:
            return [("EVAL", source(step.script), len(keys), *keys, *step.argv)]
        return [("EVALSHA", digest(step.script), len(keys), *keys, *step.argv)]
    if isinstance(step, Command):
        return [step.args]
    if isinstance(step, Batch):
        return list(step.commands)
    if isinstance(step, Wait):
        block = max(1, round(step.seconds * 1000))
        return [("XREAD", "COUNT", step.count, "BLOCK", block, "STREAMS", step.stream, step.after)]
    if isinstance(step, Take):
        wait: tuple[Arg, ...] = ()
        if step.seconds:
            wait = ("BLOCK", max(1, round(step.seconds * 1000)))
        head = ("XREADGROUP", "GROUP", step.group, step.consumer, "COUNT", step.count, *wait)
        before = [] if step.first is None else commands(step.first, whole=whole)
        return [*before, (*head, "STREAMS", *step.streams, *(">" for _ in step.streams))]
    raise TypeError(f"{step!r} is not for a server")


def forgotten(replies: Sequence[Any]) -> bool:
    """Tell whether the server does not know a script; it did nothing, and needs the text."""
    return isinstance(replies[0], ServerReply) and replies[0].code == "NOSCRIPT"


def settle(step: Step, replies: list[Any]) -> Any:
    """Return a step's reply from those of its commands, or raise the error among them."""
    if isinstance(step, Batch):
        return replies
    reply = replies[0]
    if isinstance(reply, ServerReply):
        raise reply
    if len(replies) > 1:
        return replies
    if isinstance(step, Wait):
        return reply[0][1] if reply else []
    if isinstance(step, Take):
        return reply or []
    return reply


def moved(replies: Sequence[Any]) -> bool:
    """Tell whether the server said that another one is, or will be, in charge."""
    for reply in replies:  # noqa: SIM110 (a generator costs more than the loop)
        if isinstance(reply, ServerReply) and reply.code in _ELSEWHERE:
            return True
    return False


def _size(line: bytes) -> int:
    size = int(line)
    if size < -1:
        raise ValueError(line)
    return size


def parse(data: bytes, at: int) -> tuple[Any, int]:
    """Read one reply from `data` at `at`; returns it and where the next one starts.

    Raises `Incomplete`, and `ValueError` for what is no reply.
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    kind, line, after = data[at], data[at + 1 : end], end + 2
    if kind == 36:  # $
        size = _size(line)
        if size < 0:
            return None, after
        if len(data) < after + size + 2:
            raise Incomplete
        return data[after : after + size], after + size + 2
    if kind == 58:  # :
        return int(line), after
    if kind == 42:  # *
        size = _size(line)
        if size < 0:
            return None, after
        items = []
        for _ in range(size):
            item, after = parse(data, after)
            items.append(item)
        return items, after
    if kind == 43:  # +
        return line, after
    if kind == 45:  # -
        return ServerReply(line.decode("utf-8", "replace")), after
    raise LinkDown(f"{_NO_REDIS} ({data[at : at + 20]!r})", sent=True)


def digest(name: str) -> str:
    """Return the SHA1 by which a server knows a script, so that a shell verb need not read its text."""
    if not _digests:
        # Written by scripts/link-scripts; a test holds it.
        words = _read("digests.txt").decode().split()
        _digests.update(zip(words[::2], words[1::2], strict=True))
    return _digests[name]


def source(name: str) -> bytes:
    """Return the script's text, every `--@include` replaced by that file of `lua/lib/`."""
    text = _sources.get(name)
    if text is None:
        lines = []
        for line in _read(f"{name}.lua").splitlines(keepends=True):
            if line.startswith(b"--@include "):
                lines.append(_read(f"lib/{line.split()[1].decode()}.lua"))
            elif lines or not line.startswith(b"-- "):
                lines.append(line)
        text = _sources[name] = b"".join(lines)
    return text


def _read(path: str) -> bytes:
    # By the loader, since Spark's executors load this package from a zip.
    return __spec__.loader.get_data(os.path.join(_HERE, path))  # type: ignore[no-any-return,union-attr]


class PlainLink:
    """A pool of plain connections; each exchange has one to itself, so threads may share it."""

    def __init__(
        self,
        name: str,
        find: Callable[[float], Target],
        *,
        revive: Callable[[float], None] | None = None,
    ) -> None:
        """`find` says where the server is, `revive` starts it, both within so many seconds."""
        self.name = name
        self._find = find
        self._revive = revive
        self._idle: list[_Connection] = []
        self._process = os.getpid()

    def execute(self, step: Step) -> Any:
        """Exchange one step with the server."""
        if self._process != os.getpid():
            # After a fork both processes would read from the same connections.
            self._idle, self._process = [], os.getpid()
        until = time.monotonic() + step.within
        try:
            connection, fresh = self._idle.pop(), False
        except IndexError:
            connection, fresh = self._dial(step.within), True
        if step.blocks:
            until += step.blocks + _GRACE
        try:
            replies = connection.exchange(commands(step), until, step.meanwhile)
            if forgotten(replies):
                # What follows a script in the same exchange was done.
                replies[:1] = connection.exchange(commands(step, whole=True)[:1], until)
        except BaseException as failure:
            connection.close()
            if isinstance(failure, LinkDown) and not fresh:
                # It may have been closed long ago, with all that were opened beside it.
                self.close()
            raise
        self._idle.append(connection)
        if moved(replies):
            self.close()
        return settle(step, replies)

    def close(self) -> None:
        """Close the idle connections."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _dial(self, within: float) -> _Connection:
        until = time.monotonic() + within
        target = self._find(within)
        try:
            return _Connection(target, until)
        except LinkDown:
            if self._revive is None:
                raise
        from agentbus.core.errors import BackendUnavailable

        try:
            self._revive(within)
        except BackendUnavailable as failure:
            # Another process may be starting it: whoever has the patience tries again.
            raise LinkDown(failure.message, sent=False) from None
        return _Connection(target, until)


class _Connection:
    """One socket, with what it still has to introduce itself by."""

    def __init__(self, target: Target, until: float) -> None:
        self._greeting = target.greeting()
        self._reader: Any = None
        self._place: Any = None
        self._pack = pack
        self._fast: Any = None
        self._exchanges = 0
        # The timeout that the socket has: setting it is a system call.
        self._allowed = -1.0
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
        self._exchanges += 1
        if self._exchanges >= _LASTS and self._fast is None:
            self._quicken()
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
                # The answer is there already: what was done meanwhile is no waiting for it.
                until += time.monotonic() - began
            if self._fast is not None:
                replies: list[Any] = self._fast(self, self._reader, len(everything), until)
            else:
                replies = self._receive(len(everything), until)
        except OSError as error:
            raise LinkDown(_why(error, "answer"), sent=sent) from None
        for reply in replies[: len(greeting)]:
            if isinstance(reply, ServerReply):
                raise reply
        return replies[len(greeting) :] if greeting else replies

    def _quicken(self) -> None:
        # No shell verb asks this often: the C library costs more to load than it saves on a few.
        from agentbus.store import hiredis_reader

        self._reader, self._place = hiredis_reader.reader(), hiredis_reader.buffer()
        self._fast = hiredis_reader.receive
        self._pack = hiredis_reader.pack
        if self._flags:
            self._limit = hiredis_reader.kernel_limit(self)  # type: ignore[method-assign,assignment]
            self._allowed = -1.0

    def _limit(self, seconds: float) -> None:
        """Set for how long a send or a receive may wait."""
        self._socket.settimeout(max(0.001, seconds))
        self._allowed = seconds

    def _receive(self, expected: int, until: float) -> list[Any]:
        data = b""
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._limit(left)
            chunk = self._socket.recv(16384)
            if not chunk:
                raise LinkDown("the server closed the connection", sent=True)
            data += chunk
            if len(data) > _SMALL:
                self._quicken()
                self._reader.feed(data)
                return list(self._fast(self, self._reader, expected, until))
            replies: list[Any] = []
            at = 0
            try:
                while len(replies) < expected:
                    reply, at = parse(data, at)
                    replies.append(reply)
                return replies
            except Incomplete:
                continue
            except (ValueError, RecursionError):
                raise LinkDown(_NO_REDIS, sent=True) from None

    def close(self) -> None:
        self._socket.close()


def _open(target: Target, until: float) -> Any:
    if target.path is None:
        from agentbus.store.tcp import connect

        return connect(target, until)
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.settimeout(max(0.001, until - time.monotonic()))
        sock.connect(target.path)
    except BaseException:
        sock.close()
        raise
    return sock


def _why(*failed: Any) -> str:
    from agentbus.store.failures import why

    return why(*failed)
