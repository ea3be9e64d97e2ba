"""Holds a flag during a block of code, and renews the hold in the background."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from agentbus.coordination import announce, flags
from agentbus.coordination.undo import SHORTLY, undo
from agentbus.coordination.upkeep import Upkeep
from agentbus.core.errors import AgentBusError, UsageError
from agentbus.store.verb import Awaiting, Blocking, BusT_co, Patient

if TYPE_CHECKING:
    from agentbus.coordination.flags import Hold
    from agentbus.store.steps import Once, Op

# What happens to the flag if the block raises.
ON_FAILURE = ("fail", "release")
_LONGEST_NOTE = 500


class BlockFailed(Exception):
    """Raised in a block that holds a flag, to fail the flag with this exception's text as the note."""


class Holding(Generic[BusT_co]):
    """Holds a flag inside `with` on a `Bus`, or inside `async with` on an `AsyncBus`."""

    def __init__(
        self, bus: Any, flag: str, *, ttl: float, wait: float | None, on_failure: str = "fail"
    ) -> None:
        if on_failure not in ON_FAILURE:
            raise UsageError(
                f"on_failure is {on_failure!r}", hint=f"use one of {', '.join(ON_FAILURE)}"
            )
        self._bus = bus
        self._flag = flag
        self._ttl = ttl
        self._wait = wait
        self._on_failure = on_failure
        self._hold: Hold[Any] | None = None
        self._upkeep: Upkeep | None = None

    @property
    def hold(self) -> Hold[BusT_co]:
        """The hold as it was acquired."""
        assert self._hold is not None
        return self._hold

    def __enter__(self: Holding[Blocking]) -> Hold:
        once = self._bus.scope.once()
        try:
            self._hold = self._bus._run("announce", self._taking(once))
            self._upkeep = Upkeep(self._renew, self._ttl / 3)
            self._upkeep.start()
        except AgentBusError:
            raise
        except BaseException:
            # Interrupted: nobody would end the hold before its TTL.
            self._bus.runner.run(self._undoing(once), deadline=SHORTLY)
            raise
        return self.hold

    def __exit__(
        self: Holding[Blocking],
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._upkeep is not None:
            self._upkeep.stop()
        try:
            self._end(error)
        except AgentBusError as failure:
            self._failed(failure, error)

    async def __aenter__(self: Holding[Awaiting]) -> Hold[Awaiting]:
        once = self._bus.scope.once()
        try:
            self._hold = await self._bus._run("announce", self._taking(once))
        except asyncio.CancelledError:
            await self._bus.runner.run(self._undoing(once), deadline=SHORTLY)
            raise
        self._upkeep = Upkeep(self._renew, self._ttl / 3)
        self._upkeep.astart()
        return self.hold

    async def __aexit__(
        self: Holding[Awaiting],
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._upkeep is not None:
            await self._upkeep.astop()
        try:
            await self._end(error)
        except AgentBusError as failure:
            self._failed(failure, error)

    def _taking(self, once: Once) -> Patient[Hold[Any]]:
        op = flags.announce(
            self._bus.scope,
            self._flag,
            ttl=self._ttl,
            wait=self._wait,
            renew=False,
            bus=self._bus,
            once=once,
        )
        return Patient(op, self._wait or 0.0)

    def _undoing(self, once: Once) -> Op[None]:
        scope = self._bus.scope

        def release(reply: list[bytes]) -> Op[object]:
            return announce.end(scope, self._flag, "released", token=int(reply[2]))

        return undo(scope, once, release)

    def _end(self, error: BaseException | None) -> Any:
        token = self.hold.token
        if error is None:
            return self._bus.satisfy(self._flag, token=token)
        if self._on_failure == "release":
            return self._bus.release(self._flag, token=token)
        return self._bus.fail(self._flag, token=token, note=_note(error))

    def _failed(self, failure: AgentBusError, error: BaseException | None) -> None:
        if error is None:
            raise failure
        # The error of the block takes precedence.
        error.add_note(f"and the hold of {self._flag!r} did not end: {failure}")

    def _renew(self) -> Any:
        return self.hold.renew(self._ttl)


def _note(error: BaseException) -> str:
    said = str(error)
    if not isinstance(error, BlockFailed):
        said = f"{type(error).__name__}: {said}".removesuffix(": ")
    return said.replace("\0", " ").encode("utf-8", "replace").decode()[:_LONGEST_NOTE]
