"""Claimed tasks, and the text of their failures."""

from __future__ import annotations

import traceback
from typing import Any

from agentbus.core.envelope import WORK_ITEM

_TRACEBACK_KEPT = 8_000


class Taken:
    """A claimed task: its entry, its payload, and the rest of its envelope."""

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
        # The possible number of uncounted attempts; None for a first delivery.
        self.uncounted = None if attempt else 1

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before; then its attempts are counted."""
        return self.uncounted is not None

    @property
    def alone(self) -> bool:
        """Whether it is settled by itself, because it needs more than an acknowledgement."""
        return self.redelivered or self.asked_first or self.asks

    @property
    def asks(self) -> bool:
        """Whether its outcome is sent or stored."""
        # The id of a delayed task does not name its entry, so its outcome is stored under that id.
        meta = self.meta
        return "reply_to" in meta or "webhook" in meta or "id" in meta

    @property
    def asked_first(self) -> bool:
        """Whether the server must admit it: it has an ordering key or a work item."""
        return self.ordered or self.claims

    @property
    def claims(self) -> bool:
        """Whether another program published it with the id of a work item."""
        return WORK_ITEM in self.meta

    @property
    def ordered(self) -> bool:
        """Whether it has an ordering key."""
        return isinstance(self.meta.get("ordering_key"), str)


def error_text(error: BaseException | str) -> tuple[str, str]:
    """Return the text and the traceback of an error for a dead letter, both of bounded length."""
    if isinstance(error, str):
        return _sendable(error)[:2000], ""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 (`__str__` may fail)
        message = "(no text)"
    trace = "".join(traceback.format_exception(error))
    return _sendable(f"{type(error).__name__}: {message}")[:2000], _sendable(
        trace[-_TRACEBACK_KEPT:]
    )


def _sendable(text: str) -> str:
    # File names that are not UTF-8 contain lone surrogates, which cannot be sent.
    return text.encode("utf-8", "backslashreplace").decode()
