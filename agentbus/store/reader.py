"""The C parser, for replies that are longer than a line."""

from __future__ import annotations

import hiredis

from agentbus.store import ServerReply


def reader() -> hiredis.Reader:
    """Return a parser that gives error replies back as `ServerReply` objects."""
    return hiredis.Reader(protocolError=_not_redis, replyError=ServerReply, notEnoughData=False)


def _not_redis(text: str) -> Exception:
    return ConnectionError(f"the server does not speak Redis's protocol ({text})")
