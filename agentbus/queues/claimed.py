"""A task as it was taken from its stream, and the text of its failure."""

from __future__ import annotations

import traceback
from typing import Any

from agentbus.core.envelope import WORK_ITEM

_TRACEBACK_KEPT = 8_000


class Taken:
    """A task as it was taken: where it lies, its payload, and the rest of its envelope."""

    __slots__ = ("attempt", "entry_id", "error", "meta", "payload", "priority", "uncounted")

    def __init__(
        self,
        entry_id: bytes,
        priority: str,
        payload: Any,
        meta: dict[str, Any],
        attempt: int,
        error: str | None = None,
    ) -> None:
        self.entry_id = entry_id
        self.priority = priority
        self.payload = payload
        self.meta = meta
        self.attempt = attempt
        self.error = error
        # How many attempts there may have been that nobody counted; None for a first delivery.
        self.uncounted = None if attempt else 1

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before, so that its attempts are counted."""
        return self.uncounted is not None

    @property
    def alone(self) -> bool:
        """Whether it needs more than an acknowledgement, so that it is settled by itself."""
        return self.redelivered or self.asked_first or self.asks

    @property
    def asks(self) -> bool:
        """Whether its end is reported to somebody, or kept."""
        # One that was delayed has an id that says nothing of where it lay: its end is kept under it.
        meta = self.meta
        return "reply_to" in meta or "webhook" in meta or "id" in meta

    @property
    def asked_first(self) -> bool:
        """Whether the server must admit it: it has an ordering key, or names its work."""
        return self.ordered or self.claims

    @property
    def claims(self) -> bool:
        """Whether another program published it with the id of its piece of work."""
        return WORK_ITEM in self.meta

    @property
    def ordered(self) -> bool:
        """Whether it has an ordering key."""
        return isinstance(self.meta.get("ordering_key"), str)


def told(error: BaseException | str) -> tuple[str, str]:
    """Return the text of an error for a dead letter, and its traceback, both of bounded length."""
    if isinstance(error, str):
        return _sendable(error)[:2000], ""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 (an error's own text may fail)
        said = "(it has no text)"
    trace = "".join(traceback.format_exception(error))
    return _sendable(f"{type(error).__name__}: {said}")[:2000], _sendable(trace[-_TRACEBACK_KEPT:])


def _sendable(said: str) -> str:
    # File names that are not text come as lone surrogates, which no server takes.
    return said.encode("utf-8", "backslashreplace").decode()
