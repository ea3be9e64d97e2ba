"""The delivery that a handler is working on, so that tasks it publishes are linked to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:

    class Origin(Protocol):
        """The origin of a published task: a delivery."""

        @property
        def id(self) -> str: ...
        @property
        def correlation_id(self) -> str: ...
        @property
        def traceparent(self) -> str | None: ...
        @property
        def trail(self) -> Sequence[Any] | None: ...


# The delivery that the current thread or coroutine is handling.
current: ContextVar[Origin | None] = ContextVar("agentbus_delivery", default=None)


def is_traceparent(text: object) -> bool:
    """Report whether a text is a `traceparent` as W3C Trace Context, section 3.2, defines it."""
    if not isinstance(text, str):
        return False
    parts = text.split("-")
    if len(parts) < 4 or (parts[0] == "00" and len(parts) != 4):
        return False
    version, trace, span, flags = parts[:4]
    return (
        [len(part) for part in (version, trace, span, flags)] == [2, 32, 16, 2]
        and all(c in "0123456789abcdef" for c in version + trace + span + flags)
        and version != "ff"
        and trace.strip("0") != ""
        and span.strip("0") != ""
    )


def child(traceparent: str) -> str:
    """Return a `traceparent` for a child span of the given one: the same trace, a new span."""
    _, trace, _, flags = traceparent.split("-")[:4]
    return f"00-{trace}-{os.urandom(8).hex()}-{flags}"
