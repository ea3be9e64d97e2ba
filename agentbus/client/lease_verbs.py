"""The verbs of leases and semaphores, for `Bus` and `AsyncBus`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from agentbus.coordination import hold, leases
from agentbus.coordination.semaphore import Semaphore
from agentbus.store.verb import verb

if TYPE_CHECKING:
    from agentbus.coordination.hold import Leasing
    from agentbus.coordination.leases import Lease
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


class LeaseVerbs:
    """The lease and semaphore verbs of a bus."""

    scope: Scope

    def semaphore(self, name: str, holders: int, *, ttl: float = 60.0) -> Semaphore[Self]:
        """Return a semaphore that at most `holders` holders can hold at once, across all processes.

        `with bus.semaphore("gpu", 2).held(wait=60):` holds a slot during the block. The slot of a process
        that died becomes free `ttl` seconds after its last renewal. Raises `UsageError`.
        """
        return Semaphore(self, name, holders, ttl)

    def lease(
        self,
        *paths: str,
        why: str | None = None,
        ttl: float = 900.0,
        wait: float | None = None,
        force: bool = False,
    ) -> Leasing[Self]:
        """Lease paths or patterns, so that no other agent may edit them, and return the leases.

        All are leased or none. Paths are absolute, or relative to the current directory; a pattern may
        contain `*`, `?` and `**`, and `src/` means `src/**`. An existing lease of this agent is renewed;
        its own leases never conflict. `ttl` is in seconds; `wait` is the number of seconds to wait for
        other agents' leases to end; `force` ends them. With `with bus.lease(...)`, the leases are renewed
        during the block, and dropped at its end. On an `AsyncBus`, `await` it or use `async with`. Raises
        `LeaseHeld`, `LeasesFull` beyond 500 leases in a project, and `UsageError` for a path outside the
        repository.
        """
        once = self.scope.once()
        op = leases.take(self.scope, paths, why=why, ttl=ttl, wait=wait, force=force, once=once)
        return hold.Leasing(self, op, once, ttl=ttl, wait=wait)

    @verb
    def leases(self) -> Op[list[Lease]]:
        """Return the leases in force, by pattern and agent."""
        return leases.leases(self.scope)

    @verb
    def holder_of(self, path: str) -> Op[Lease | None]:
        """Return the lease that overlaps a path or pattern; None if it is free.

        If there are several, it returns another agent's lease rather than this agent's own.
        """
        return leases.holder_of(self.scope, path)

    @verb
    def check_leases(self, *paths: str) -> Op[dict[str, Lease | None]]:
        """Raise `LeaseHeld` if another agent has leased one of the paths; this changes nothing.

        Otherwise, it returns for the pattern of each path this agent's lease that overlaps it, or None.
        """
        return leases.check_paths(self.scope, paths)

    @verb
    def drop_leases(self, *paths: str, force: bool = False) -> Op[list[Lease]]:
        """End this agent's leases of paths or patterns (without arguments, all of them), and return them.

        With `force`, other agents' leases of the same patterns also end. Leases that can be ended are ended
        even if it raises `NotHolder` because another agent holds the rest, or `NotFound` because nobody
        does.
        """
        return leases.drop(self.scope, paths, force=force)
