"""The worker verbs of a bus: list, pause, resume, halt and delete workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.admin import agents, pause
from agentbus.store.verb import Patient, verb
from agentbus.workers import registry

if TYPE_CHECKING:
    from agentbus.admin.agents import Attendee
    from agentbus.admin.pause import Dismissal, Order
    from agentbus.queues.runner import AsyncRunner, Runner
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.registry import Registered


class WorkerVerbs:
    """The worker verbs of both kinds of bus."""

    scope: Scope
    if TYPE_CHECKING:
        runner: Runner | AsyncRunner

    @verb
    def workers(self) -> Op[list[Registered]]:
        """Return the running workers, and those whose heartbeat stopped within the last hour."""
        return registry.workers(self.scope)

    @verb
    def who(self, *, all: bool = False) -> Op[list[Attendee]]:
        """Return the agents by name, with their workers, flags and last activity.

        Agents without a worker or a flag that were last seen more than an hour ago are omitted, unless
        `all` is true.
        """
        return agents.who(self.scope, every=all)

    @verb
    def pause(
        self,
        *,
        queue: str | None = None,
        agent: str | None = None,
        worker: str | None = None,
        why: str | None = None,
        wait: float = 5.0,
    ) -> Patient[Order]:
        """Pause a queue, an agent or a worker: no new tasks are taken until `resume`.

        Running tasks continue. Waits up to `wait` seconds for every affected live worker to confirm; once
        all are `confirmed`, no task published later runs. The order stays in force after the wait, and also
        applies to workers that start later. Raises `NotFound`.
        """
        kind, name = pause.subject(queue, agent, worker)
        return Patient(pause.pause(self.scope, kind, name, why, wait=wait), wait)

    @verb
    def halt(self, *, why: str | None = None, wait: float = 5.0) -> Patient[Order]:
        """Pause every worker of the project, and `fetch`, until `resume()`.

        Running tasks continue and are acknowledged; unstarted tasks are returned to their queues. Waits up
        to `wait` seconds for every live worker to confirm; once all are `confirmed`, no task starts. The
        order stays in force after the wait, and also applies to workers that start later.
        """
        return Patient(pause.pause(self.scope, pause.PROJECT, None, why, wait=wait), wait)

    @verb
    def resume(
        self, *, queue: str | None = None, agent: str | None = None, worker: str | None = None
    ) -> Op[bool]:
        """End a pause (without a name, the halt), and return whether there was one.

        Other orders stay in force: a worker takes tasks only if no order applies to it. Raises `NotFound`.
        """
        return pause.resume(self.scope, *pause.resumed(queue, agent, worker))

    @verb
    def paused(self) -> Op[list[Order]]:
        """Return the pause orders in force."""
        return pause.orders(self.scope)

    @verb
    def delete(
        self, *, agent: str | None = None, worker: str | None = None, wait: float = 30.0
    ) -> Patient[Dismissal]:
        """Stop a worker, or all workers of an agent, after their running tasks, and remove them.

        Waits up to `wait` seconds for them to end. The tasks of a dead worker become due at once for other
        workers. Raises `NotFound`.
        """
        kind, name = pause.subject(None, agent, worker)
        policies = self.runner.policies
        return Patient(
            pause.dismiss(
                *(self.scope, kind, name),
                wait=wait,
                letters_of=policies.letters_of,
                recorded_of=policies.recorded_of,
            ),
            wait,
        )
