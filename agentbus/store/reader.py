"""The C parser, for replies that are longer than a line, and for connections that last."""

from __future__ import annotations

import time
from typing import Any

import hiredis

from agentbus.store import LinkDown, ServerReply


def reader() -> hiredis.Reader:
    """Return a parser that gives error replies back as `ServerReply` objects."""
    return hiredis.Reader(protocolError=_not_redis, replyError=ServerReply, notEnoughData=False)


def receive(sock: Any, source: hiredis.Reader, expected: int, until: float) -> list[Any]:
    """Return that many replies from a socket; raises `OSError` or `LinkDown`."""
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
        sock.settimeout(left)
        chunk = sock.recv(262144)
        if not chunk:
            raise LinkDown("the server closed the connection", sent=True)
        source.feed(chunk)


def _not_redis(text: str) -> Exception:
    return ConnectionError(f"the server does not speak Redis's protocol ({text})")
