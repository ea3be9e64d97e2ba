"""The Redis connection of a relay or consumer, which retries safe commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core.errors import ForeignLedger
from agentbus.queues.runner import Runner
from agentbus.store.failures import refused
from agentbus.store.steps import Batch, Command, ServerReply, one_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.events.ledger import Ledger
    from agentbus.store.steps import Op, Step


# The field of the relay's hash that identifies the ledger of the stream's events.
LEDGER = "ledger"


def foreign(stream: str, ledger: Ledger) -> ForeignLedger:
    """Return the error for another ledger's events, whose handling this ledger does not record."""
    return ForeignLedger(
        f"the events of the stream {stream!r} on the server come from another ledger than the one in"
        f" {ledger.place}",
        hint="use the database that they were sent from, or another project",
    )


class RedisClient(Runner):
    """A connection to the server of a bus, for one thread; closed at the end of a `with` block."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner.settings, runner)
        self.keys = self.scope.keys

    def ask(self, step: Step, *, deadline: float | None = None) -> Any:
        """Run one step, by default within the bus's deadline.

        Raises `BackendUnavailable`, `OutcomeUnknown`.
        """
        return self.run(one_step(step), deadline=deadline)

    def batch(self, commands: Sequence[tuple[str | bytes | int, ...]]) -> list[Any]:
        """Run reading commands in one batch; a command's permanent error is its reply."""
        replies: list[Any] = self.run(_many(commands))
        return replies


def _many(commands: Sequence[tuple[str | bytes | int, ...]]) -> Op[list[Any]]:
    replies = yield Batch(commands)
    checked_replies = []
    for command, reply in zip(commands, replies, strict=True):
        if isinstance(reply, ServerReply) and reply.code != "ERR":
            # The server is loading or failing over: a single command is retried until the server is
            # ready.
            reply = yield Command(*command)
        checked_replies.append(reply)
    return checked_replies


def check(reply: Any) -> None:
    """Raise the error in a reply of `RedisClient.batch` to XRANGE or HGET, if any."""
    if isinstance(reply, ServerReply):
        raise refused(reply, Command("XRANGE"), "the server")


def info(flat: Any) -> dict[str, Any]:
    """Return the reply of XINFO STREAM as a dict; empty if the stream does not exist."""
    if not isinstance(flat, list):
        return {}
    return {flat[i].decode(): flat[i + 1] for i in range(0, len(flat) - 1, 2)}
