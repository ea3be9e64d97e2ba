"""Batches the commands of several health checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.workers.registry import in_batches

if TYPE_CHECKING:
    from agentbus.store.steps import Arg, Op


class Requests:
    """Commands to send in one batch, and their replies."""

    def __init__(self) -> None:
        self._commands: list[tuple[Arg, ...]] = []
        self._replies: list[Any] = []

    def put(self, *command: Arg) -> int:
        """Add a command, and return the index of its reply."""
        self._commands.append(command)
        return len(self._commands) - 1

    def run(self) -> Op[None]:
        """Send all commands, and keep the replies."""
        self._replies = yield from in_batches(self._commands)

    def number(self, at: int) -> int:
        """Return an integer reply, 0 if it is missing."""
        reply = self._replies[at]
        return reply if isinstance(reply, int) else 0

    def rows(self, at: int) -> list[Any]:
        """Return a list reply, empty if it is missing."""
        reply = self._replies[at]
        return reply if isinstance(reply, list) else []
