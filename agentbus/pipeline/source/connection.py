"""A connection to the Redis server, for the driver and for Spark's tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.queues.runner import Runner
from agentbus.queues.shards import unsharded
from agentbus.store.driver import run

if TYPE_CHECKING:
    from typing import TypeVar

    from agentbus.core.settings import Settings
    from agentbus.store.steps import Op

    T = TypeVar("T")


class ServerConnection(Runner):
    """A connection to the server that the settings name; transient failures are retried."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._answered = False

    def run(
        self,
        op: Op[T],
        *,
        verb: str | None = None,
        patience: float | None = None,
        deadline: float | None = None,
    ) -> T:
        """Run an operation within the deadline of the settings.

        Once the server has replied to any operation, a longer `patience`, in seconds, replaces the
        deadline.
        """
        if self.backend.wraps and not self._answered:
            run(self.link, self.attempt(unsharded(self.scope, "the pipeline"), patience, deadline))
        found = run(self.link, self.attempt(op, patience, deadline, answered=self._answered))
        self._answered = True
        return found
