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


def foreign(stream: str, ledger: Ledger) -> ForeignLedger:
    """Return the error for a ledger as which another database publishes, such as its copy."""
    return ForeignLedger(
        f"another database publishes to the stream {stream!r} as the ledger in {ledger.place}: one is a"
        " copy of the other, or was restored from a backup",
        hint="give the copy another identity: Ledger.renew_identity()",
        shell_hint="give the copy another identity: 'agentbus outbox init --new-identity'",
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
