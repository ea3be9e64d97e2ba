"""How relays and consumers ask the server: over a connection of their own, again where trouble passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core.errors import EpochMismatch
from agentbus.queues.runner import Runner
from agentbus.store.steps import Batch, Command, ServerReply, one_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.events.ledger import Ledger
    from agentbus.store.steps import Op, Step


# In the relay's hash: which ledger the events of the stream lie in, too.
LEDGER = "ledger"


def foreign(stream: str, ledger: Ledger) -> EpochMismatch:
    """Return the error of one that met events of another ledger: it cannot know which were handled."""
    return EpochMismatch(
        f"the events of the stream {stream!r} on the server are of another ledger than the one in"
        f" {ledger.place}",
        hint="use the database that they were sent from, or another project, or remove them with"
        " bus.clear()",
        shell_hint="use the database that they were sent from, or another project, or remove them with"
        " 'agentbus clear --force'",
    )


class RedisClient(Runner):
    """The server of a bus, over a connection of its own, for one thread."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner.settings, runner)
        self.keys = self.scope.keys

    def ask(self, step: Step, *, deadline: float | None = None) -> Any:
        """Exchange one step, within the bus's deadline or another.

        Raises `BackendUnavailable`, `OutcomeUnknown`.
        """
        return self.run(one_step(step), deadline=deadline)

    def batch(self, commands: Sequence[tuple[str | bytes | int, ...]]) -> list[Any]:
        """Exchange commands that read, in one write; an error is a reply only where it is no trouble."""
        found: list[Any] = self.run(_many(commands))
        return found


def _many(commands: Sequence[tuple[str | bytes | int, ...]]) -> Op[list[Any]]:
    replies = yield Batch(commands)
    found = []
    for command, reply in zip(commands, replies, strict=True):
        if isinstance(reply, ServerReply) and reply.code != "ERR":
            # It is loading, or fails over: as a step of its own that is understood, and waited out.
            reply = yield Command(*command)
        found.append(reply)
    return found


def info(flat: Any) -> dict[str, Any]:
    """Return what XINFO STREAM told by name; nothing where there is no such stream."""
    if not isinstance(flat, list):
        return {}
    return {flat[i].decode(): flat[i + 1] for i in range(0, len(flat) - 1, 2)}
