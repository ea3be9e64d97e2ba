"""Blocking connections over plain sockets, and what goes over them: RESP2.

Small replies are parsed here, since loading hiredis costs more than it saves on one of them.
"""

from __future__ import annotations

import _socket
import os
import time

from agentbus.store import Batch, Command, LinkDown, Run, ServerReply, Step, Take, Wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from agentbus.store import Arg


_HERE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "lua")
_sources: dict[str, bytes] = {}
# Script: the SHA1 by which a server knows it, so that a shell verb need not read its text.
# Written by scripts/link-scripts; a test holds it.
DIGESTS = {
    "ack": "53f93f5d6abeda0a447987c91549bf018d618401",
    "advance": "24d45ec759c3f1462253004a521c4e85a159d682",
    "again": "0966f8ee5967c151992afc17642ed92428d0eeaf",
    "announce": "99f860929d04ef83534a1c03358a457a0a0dc1b4",
    "begin": "9c2d7501b41488fa007871551f4547c8bf07ccd4",
    "bury": "1d8c5a5bed753d1faf6efded48423b873c1a1c19",
    "collect": "b2881381fb26b303ad257540c4798d543f74fb30",
    "fetch": "302b1f2bf0ae88c21a3452426f1381a5586d5c3b",
    "finish": "8fd6fd5c310457c32d93ba508da3e3afb1bc44e7",
    "forget": "3d5d46966b909733666b07bab1dc9cfba16e8282",
    "heartbeat": "647758b8c2379f129af1e51d162b9f3c3655235e",
    "jot": "8908e507f5875baf48a08d96d4d25082dc44da6e",
    "look": "a849f41aaffaad32d64c31aa426679de747fc0ad",
    "overhear": "bdbca041d1ca597d38c03d737bbe63bf292aef02",
    "promote": "3b0a6cf685f7075f372957e9d931b96b20b7fff3",
    "publish": "a3d6d5f1d7b1f6c432fc071b9c81685f10d87971",
    "purge": "4d3eeeb977812819a2df872afcb23f4e6563a5d7",
    "recall": "a1e17b094a2bfd08671d30b93d6e3c8657103710",
    "reclaim": "13a8c773f40e928eba7163361563db382bd941d3",
    "renew": "2d3f175fec8aef07fad09a0748f6ed8b6ff6a5e0",
    "replay": "0b09d5d1721b6d3a9ce2bb21e0eaf3a581088b44",
    "retry": "f81352e472da583ebe054e5c0f30b4a053842d45",
    "rewind": "653dfb42203bd7b262a01b171ea1400ee98847af",
    "satisfy": "eb3f233ab6104725670981bafaafeb3851586358",
    "schedule": "ff640ca3f75d34fe0804260e9cb094654c2950ad",
    "speak": "1061529f17aba879692426445cfb1d236605eaa4",
    "tagged": "5073d1d04265b13e42a4291aace37e8af55fb2e8",
}
_NO_SIGPIPE = getattr(_socket, "MSG_NOSIGNAL", 0)
_NO_REDIS = "the server does not speak Redis's protocol"
_SMALL = 8192
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
        how = ("EVAL", source(step.script)) if whole else ("EVALSHA", DIGESTS[step.script])
        return [(*how, len(step.keys), *step.keys, *step.argv)]
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
        return [(*head, "STREAMS", *step.streams, *(">" for _ in step.streams))]
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
    if isinstance(step, Wait):
        return reply[0][1] if reply else []
    if isinstance(step, Take):
        return reply or []
    return reply


def moved(replies: Sequence[Any]) -> bool:
    """Tell whether the server said that another one is, or will be, in charge."""
    return any(isinstance(reply, ServerReply) and reply.code in _ELSEWHERE for reply in replies)


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
    raise LinkDown(
        f"the server does not speak Redis's protocol ({data[at : at + 20]!r})", sent=True
    )


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
    with open(os.path.join(_HERE, path), "rb") as file:
        return file.read()


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
        # Called once, between a request and its reply: time that would be spent waiting.
        self.meanwhile: Callable[[], None] | None = None

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
        target = self._find(within)
        try:
            return _Connection(target, until)
        except LinkDown:
            if self._revive is None:
                raise
        from agentbus.errors import BackendUnavailable

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
                from agentbus.store import reader

                source = self._reader = self._reader or reader.reader()
                source.feed(data)
                return reader.receive(self._socket, source, expected, until)
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


def _why(error: OSError, lacking: str) -> str:
    if isinstance(error, TimeoutError):
        return f"no {lacking} in time"
    return error.strerror or str(error) or type(error).__name__
