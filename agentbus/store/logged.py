"""Links that log each exchange with the server at level `debug`: the step, its time, and its outcome."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from agentbus.core.loggers import emit
from agentbus.store.steps import LinkDown, ServerReply, Take, Wait

if TYPE_CHECKING:
    from agentbus.store.async_driver import AsyncLink
    from agentbus.store.steps import Link, Step


class LoggedLink:
    """A blocking link that logs."""

    def __init__(self, link: Link) -> None:
        self.name = link.name
        self._link = link
        self.close = link.close
        self.trim = getattr(link, "trim", None)

    def execute(self, step: Step) -> Any:
        """Exchange one step with the server."""
        began = time.monotonic()
        try:
            reply = self._link.execute(step)
        except (LinkDown, ServerReply) as failure:
            _log(step, began, failure)
            raise
        _log(step, began)
        return reply


class LoggedAsyncLink:
    """An asynchronous link that logs."""

    def __init__(self, link: AsyncLink) -> None:
        self.name = link.name
        self._link = link
        self.aclose = link.aclose

    async def execute(self, step: Step) -> Any:
        """Exchange one step with the server."""
        began = time.monotonic()
        try:
            reply = await self._link.execute(step)
        except (LinkDown, ServerReply) as failure:
            _log(step, began, failure)
            raise
        _log(step, began)
        return reply


def _log(step: Step, began: float, failure: LinkDown | ServerReply | None = None) -> None:
    """Log an exchange without its contents, which include payloads and perhaps a password."""
    outcome = "ok" if failure is None else str(failure)
    if isinstance(failure, ServerReply):
        outcome = failure.code
    fields: dict[str, object] = {
        "step": step.label,
        # A number above 1 means that the step was resent after a failure.
        "sending": max(1, step.sendings),
        "duration_ms": round((time.monotonic() - began) * 1000, 3),
        "outcome": outcome,
    }
    if isinstance(step, (Wait, Take)):
        fields["waits_s"] = round(step.seconds, 3)
    emit("debug", fields, f"{step.label} {outcome}")
