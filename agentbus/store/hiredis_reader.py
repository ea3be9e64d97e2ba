"""Parses replies with hiredis, for long replies and long-lived connections."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes longer to load.
import _socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import hiredis

from agentbus.store.resp import pack as pack_large
from agentbus.store.steps import LinkDown, ServerReply

if TYPE_CHECKING:
    from agentbus.store.steps import Arg


_AT_ONCE = 262_144
# Arguments over _LARGE bytes are packed separately; only commands of fewer than _FEW arguments are
# checked for them.
_LARGE = 8192
_FEW = 64
_TIMEVAL = struct.Struct("ll")


def reader() -> hiredis.Reader:
    """Return a parser that returns error replies as `ServerReply` objects."""
    return hiredis.Reader(protocolError=_not_redis, replyError=ServerReply, notEnoughData=False)


def pack(args: Sequence[Arg]) -> bytes:
    """Return a command as RESP2 bytes."""
    if len(args) < _FEW:
        for arg in args:
            if type(arg) is bytes and len(arg) > _LARGE:
                # hiredis packs a large argument a hundred times more slowly.
                return pack_large(args)
    packed: bytes = hiredis.pack_command(args if type(args) is tuple else tuple(args))  # type: ignore[arg-type]
    return packed


def kernel_limit(link: Any) -> Callable[[float], None]:
    """Return a function that sets a connection's timeout in the kernel.

    Python's own timeouts need two system calls for each send and receive. They remain in use where an
    interval timer interrupts calls, because the kernel's timeout would restart after each signal.
    """
    if _signal.getitimer(_signal.ITIMER_REAL)[1]:
        own: Callable[[float], None] = link._limit
        return own
    sock = link._socket
    sock.settimeout(None)

    def limit(seconds: float) -> None:
        # A timeout of zero would mean no timeout.
        data = _TIMEVAL.pack(*divmod(max(1000, int(seconds * 1_000_000)), 1_000_000))
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, data)
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, data)
        link._allowed = seconds

    return limit


def buffer() -> bytearray:
    """Return a receive buffer for a connection; allocating one for each read costs more than the read."""
    return bytearray(_AT_ONCE)


def receive(link: Any, source: hiredis.Reader, expected: int, until: float) -> list[Any]:
    """Return `expected` replies from a connection; raises `OSError` or `LinkDown`."""
    replies: list[Any] = []
    sock, place = link._socket, link._place
    while True:
        while len(replies) < expected:
            try:
                reply = source.gets()
            except MemoryError:
                # The server announced a list of billions of replies.
                raise _not_redis("too long a list") from None
            if reply is False:
                break
            replies.append(reply)
        if len(replies) == expected:
            return replies
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if not left - 0.25 <= link._allowed <= left + 0.25:
            link._limit(left)
        got = sock.recv_into(place)
        if not got:
            raise LinkDown("the server closed the connection", sent=True)
        source.feed(place, 0, got)


def _not_redis(text: str) -> Exception:
    return ConnectionError(f"the server does not speak Redis's protocol ({text})")
