"""The leases of one call: they are renewed during a block of code, and dropped at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from agentbus.coordination import leases
from agentbus.coordination.undo import SHORTLY, undo
from agentbus.coordination.upkeep import Upkeep
from agentbus.core.errors import AgentBusError
from agentbus.store.verb import Awaiting, Blocking, BusT_co, OnBus, Patient, verb

if TYPE_CHECKING:
    from agentbus.coordination.leases import Lease, Leased
    from agentbus.store.steps import Once, Op


class Leasing(OnBus[BusT_co]):
    """The leases that one call took or renewed, for `with` on a `Bus`, or `async with` on an `AsyncBus`.

    A `Bus` has taken them when it returns this; on an `AsyncBus`, `await` takes them, too. During a block
    they are renewed every third of their TTL, and at its end they are dropped: then it raises `NotHolder`
    if one was lost. Without a block they last until their end. In annotations, `Leasing` comes from a
    `Bus` and `Leasing[AsyncBus]` from an `AsyncBus`.
    """

    def __init__(
        self, bus: Any, op: Op[Leased], once: Once, *, ttl: float, wait: float | None
    ) -> None:
        self._bus = bus
        self._once = once
        self._ttl = ttl
        self._taken: Leased | None = None
        self._upkeep: Upkeep | None = None
        try:
            self._taking = bus._run("lease", Patient(self._take(op), wait or 0.0))
        except AgentBusError:
            raise
        except BaseException:
            # Interrupted: the caller gets nothing by which to drop the leases.
            self._undo()
            raise

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases, in the order of the paths."""
        assert self._taken is not None, "await it first"
        return self._taken.leases

    @property
    def renewed(self) -> tuple[bool, ...]:
        """Whether this agent held each of the leases before."""
        assert self._taken is not None, "await it first"
        return self._taken.renewed

    @property
    def displaced(self) -> tuple[Lease, ...]:
        """The leases of other agents that `force` has ended."""
        assert self._taken is not None, "await it first"
        return self._taken.displaced

    @property
    def pattern(self) -> str:
        """The pattern of the first lease."""
        return self.leases[0].pattern

    @property
    def token(self) -> int:
        """The highest of the fencing tokens."""
        return max(one.token for one in self.leases)

    @property
    def until(self) -> float:
        """When the first of them ends, as a unix time of the server."""
        return min(one.until for one in self.leases)

    @verb
    def renew(self, ttl: float | None = None) -> Op[None]:
        """Extend the leases to `ttl` seconds from now, by default their own TTL. Raises `NotHolder`."""
        return self._renew(self._ttl if ttl is None else ttl)

    @verb
    def drop(self) -> Op[None]:
        """End the leases; those that have ended before do not matter."""
        return self._drop()

    def __enter__(self: Leasing[Blocking]) -> Leasing:
        self._upkeep = Upkeep(self.renew, self._ttl / 3)
        self._upkeep.start()
        return self

    def __exit__(
        self: Leasing[Blocking],
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._upkeep is not None:
            self._upkeep.stop()
        try:
            self._run("drop", self._drop(strictly=True))
        except AgentBusError as failure:
            _failed(failure, error)

    def __await__(self: Leasing[Awaiting]) -> Generator[Any, Any, Leasing[Awaiting]]:
        if self._taken is None:
            try:
                yield from self._taking.__await__()
            except asyncio.CancelledError:
                yield from self._undo().__await__()
                raise
        return self

    async def __aenter__(self: Leasing[Awaiting]) -> Leasing[Awaiting]:
        await self
        self._upkeep = Upkeep(self.renew, self._ttl / 3)
        self._upkeep.astart()
        return self

    async def __aexit__(
        self: Leasing[Awaiting],
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._upkeep is not None:
            await self._upkeep.astop()
        try:
            await self._run("drop", self._drop(strictly=True))
        except AgentBusError as failure:
            _failed(failure, error)

    def _take(self, op: Op[Leased]) -> Op[Self]:
        self._taken = yield from op
        return self

    def _undo(self) -> Any:
        scope = self._bus.scope
        op = undo(scope, self._once, lambda reply: leases.untake(scope, reply))
        return self._bus.runner.run(op, deadline=SHORTLY)

    def _renew(self, ttl: float) -> Op[None]:
        found = yield from leases.renew(self._bus.scope, self.leases, ttl)
        self._taken = leases.Leased(found, self.renewed, self.displaced)

    def _drop(self, *, strictly: bool = False) -> Op[None]:
        gone = yield from leases.end(self._bus.scope, self.leases)
        if gone and strictly:
            raise leases.lost(gone)

    def _run(self, name: str, op: Op[Any]) -> Any:
        return self._bus._run(name, op)


def _failed(failure: AgentBusError, error: BaseException | None) -> None:
    if error is None:
        raise failure
    # The error of the block takes precedence.
    error.add_note(f"and the leases did not end: {failure}")
