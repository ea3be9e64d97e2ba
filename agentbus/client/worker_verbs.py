"""What a bus can do about its workers: see them, pause them, let them go on, have them leave."""

from __future__ import annotations

from agentbus.client.verb import Patient, verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.admin.agents import Attendee
    from agentbus.admin.pause import Dismissal, Order
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.registry import Registered


class Oversight:
    """The verbs about workers, which every bus has."""

    scope: Scope
    _policies: Callable[[], Policies]

    @verb
    def workers(self) -> Op[list[Registered]]:
        """Return the registered workers, those that fell silent within the last hour among them."""
        from agentbus.workers import registry

        return registry.workers(self.scope)

    @verb
    def who(self, *, all: bool = False) -> Op[list[Attendee]]:
        """Return who is there, by name: agents with their workers, and those that only talk.

        Those that were last seen more than an hour ago are left out, unless `all` is asked for or they
        hold a flag.
        """
        from agentbus.admin import agents

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
        """Have nothing new taken from a queue, or by an agent or a worker, until `resume`.

        What runs goes on. Waits at most `wait` seconds until every live worker concerned stands still:
        once all are `confirmed`, no task that is published later runs. The order stands in any case,
        and holds for workers that start later. Raises `NotFound`.
        """
        from agentbus.admin import pause

        kind, name = pause.subject(queue, agent, worker)
        return Patient(pause.pause(self.scope, kind, name, why, wait=wait), wait)

    @verb
    def halt(self, *, why: str | None = None, wait: float = 5.0) -> Patient[Order]:
        """Have no worker of the project take a new task, and nobody fetch one, until `resume()`.

        What runs goes on and is acknowledged; what was taken and not begun is given back. Waits at most
        `wait` seconds until every live worker stands still, as `pause` does: once all are `confirmed`,
        no task begins. The order stands in any case, and holds for workers that start later.
        """
        from agentbus.admin import pause

        return Patient(pause.pause(self.scope, pause.PROJECT, None, why, wait=wait), wait)

    @verb
    def resume(
        self, *, queue: str | None = None, agent: str | None = None, worker: str | None = None
    ) -> Op[bool]:
        """Take an order to pause back, or without a name that to halt; tells whether there was one.

        Each order stands by itself: what is paused by another stays so. Raises `NotFound`.
        """
        from agentbus.admin import pause

        return pause.resume(self.scope, *pause.resumed(queue, agent, worker))

    @verb
    def paused(self) -> Op[list[Order]]:
        """Return the orders to pause that are in force."""
        from agentbus.admin import pause

        return pause.orders(self.scope)

    @verb
    def delete(
        self, *, agent: str | None = None, worker: str | None = None, wait: float = 30.0
    ) -> Patient[Dismissal]:
        """Have a worker, or all of an agent, finish what runs and leave; waits so many seconds.

        What a dead worker holds is handed over to others before it is removed. Raises `NotFound`.
        """
        from agentbus.admin import pause

        kind, name = pause.subject(None, agent, worker)
        letters_of = self._policies().letters_of
        return Patient(
            pause.dismiss(self.scope, kind, name, wait=wait, letters_of=letters_of), wait
        )
