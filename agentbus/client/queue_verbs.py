"""What a bus does with work: its queues, and questions."""

from __future__ import annotations

from agentbus.client.verb import Patient, verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbus.client.queue import Queue
    from agentbus.core.settings import Settings
    from agentbus.queues.janitor import Tidied
    from agentbus.queues.policy import Policies, Policy
    from agentbus.queues.runner import AsyncRunner, Runner
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_FOR_EVER = float("inf")


class Labour:
    """The part of a bus that has to do with queues."""

    scope: Scope
    settings: Settings
    if TYPE_CHECKING:
        runner: Runner | AsyncRunner

    def queue(self, name: str, *, bound: int | None = None) -> Queue:
        """Return a queue of this project; nothing is made before its first task."""
        from agentbus.client.queue import Queue

        return Queue(self, name, bound=bound)

    def policy(self, queue: str) -> Policy:
        """Return what the config says of a queue, with the defaults; nothing is asked of the server.

        Raises `ConfigError` if there is a mistake in any policy of the config.
        """
        return self.runner.policy(queue)

    def _policies(self) -> Policies:
        return self.runner.policies

    @verb
    def ask(
        self, /, queue: str, payload: object, timeout: float | None = 30, **envelope: Any
    ) -> Patient[Any]:
        """Publish a task and block until it is done; returns what its handler returned.

        `timeout` is in seconds, 0 or None for no limit; `envelope` is as for `Queue.publish`, without a
        key. Raises `TaskFailed` if the task was buried, `TimedOut`, `QueueFull`.
        """
        from agentbus.queues import ask

        found = self.policy(queue)
        op = ask.ask(self.scope, queue, payload, timeout, envelope, found)
        return Patient(ask.result_of(op), timeout or _FOR_EVER)

    @verb
    def tidy(self, queue: str | None = None, *, dry_run: bool = False) -> Op[list[Tidied]]:
        """Tidy a queue, or all: trim what is done and old, delete dead consumers, forget leftovers.

        Returns what was removed of each queue, or with `dry_run` would be. Workers do this by
        themselves, now and then. Raises `NotFound`.
        """
        from agentbus.queues import janitor

        found = self._policies()
        return janitor.tidy(
            self.scope,
            queue,
            dry_run=dry_run,
            retention=found.retention_of,
            letters_of=found.letters_of,
        )
