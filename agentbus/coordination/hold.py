"""Holds a flag or leases during a block of code, renewing them in the background.

A request whose caller was interrupted before the reply arrived is undone.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

from agentbus.coordination import announce, flags, leases
from agentbus.core.errors import AgentBusError, NotHolder, UsageError
from agentbus.store.steps import LinkDown, Script, ServerReply
from agentbus.store.verb import Awaiting, Blocking, BusT_co, OnBus, Patient, verb

if TYPE_CHECKING:
    from agentbus.coordination.flags import Hold
    from agentbus.coordination.leases import Lease, Leased
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Once, Op


# Actions on the flag if the block raises.
ON_FAILURE = ("fail", "release")
_LONGEST_NOTE = 500
# Maximum seconds that an interrupted caller spends on undoing; the rest ends with its TTL.
SHORTLY = 1.0


class BlockFailed(Exception):
    """A block that holds a flag raises this to fail the flag, with the exception's text as the note."""


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
            # Undo the hold: after an interrupt, nobody would end it before its TTL expires.
            self._bus.runner.run(self._undoing(once), deadline=SHORTLY)
            raise
        return self.hold

    def __exit__(
        self: Holding[Blocking],
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._upkeep is not None and not self._upkeep.stop():
            return
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
        # The exception of the block takes precedence.
        error.add_note(f"and the hold of {self._flag!r} did not end: {failure}")

    def _renew(self) -> Any:
        return self.hold.renew(self._ttl)


def _note(error: BaseException) -> str:
    said = str(error)
    if not isinstance(error, BlockFailed):
        said = f"{type(error).__name__}: {said}".removesuffix(": ")
    return said.replace("\0", " ").encode("utf-8", "replace").decode()[:_LONGEST_NOTE]


class Upkeep:
    """Calls `renew` every `seconds` until stopped, or until `NotHolder`, in a thread or an asyncio task."""

    def __init__(self, renew: Callable[[], Any], seconds: float) -> None:
        self._renew = renew
        self._seconds = seconds
        self._over = threading.Event()
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start a thread that calls `renew`."""
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def stop(self) -> bool:
        """Stop the thread, and wait for it; return False in a forked child, which holds nothing."""
        if self._process != os.getpid():
            return False
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        return True

    def astart(self) -> None:
        """Start an asyncio task that awaits `renew`."""
        self._task = asyncio.ensure_future(self._akeep())

    async def astop(self) -> None:
        """Cancel the task, and wait for it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _keep(self) -> None:
        while not self._over.wait(self._seconds):
            try:
                self._renew()
            except NotHolder:
                return
            except AgentBusError:
                # Try again: the server may be back before the hold expires.
                continue

    async def _akeep(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self._renew()
            except NotHolder:
                return
            except AgentBusError:
                continue


def undo(scope: Scope, once: Once, ended: Callable[[list[Any]], Op[object] | None]) -> Op[None]:
    """Undo a request if the server has executed it; otherwise make the server ignore a late arrival.

    `ended` returns the operation that undoes the request, given its reply. Failures are ignored.
    """
    step = Script("resolve_interrupted", (once.key,), (once.token,), writes=True, optional=True)
    try:
        reply = yield step
        op = ended(reply) if reply else None
        if op is not None:
            yield from op
    except (LinkDown, ServerReply, AgentBusError):
        return


class Leasing(OnBus[BusT_co]):
    """The leases that one call took or renewed, for `with` on a `Bus` or `async with` on an `AsyncBus`.

    A `Bus` has already taken the leases when it returns this object; on an `AsyncBus`, `await` or `async
    with` takes them. During a block, they are renewed every third of their TTL. At its end they are
    dropped, which raises `NotHolder` if a lease was lost. Without a block, they last until they expire. In
    annotations, `Leasing` comes from a `Bus` and `Leasing[AsyncBus]` from an `AsyncBus`.
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
            # Undo the leases: after an interrupt, the caller has nothing with which to drop them.
            self._undo()
            raise

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases, in the order of the given paths."""
        assert self._taken is not None, "await it first"
        return self._taken.leases

    @property
    def renewed(self) -> tuple[bool, ...]:
        """For each lease, True if this agent had already held it."""
        assert self._taken is not None, "await it first"
        return self._taken.renewed

    @property
    def displaced(self) -> tuple[Lease, ...]:
        """The leases of other agents that `force` ended."""
        assert self._taken is not None, "await it first"
        return self._taken.displaced

    @property
    def pattern(self) -> str:
        """The pattern of the first lease."""
        return self.leases[0].pattern

    @property
    def token(self) -> int:
        """The highest fencing token of the leases."""
        return max(lease.token for lease in self.leases)

    @property
    def until(self) -> float:
        """The server's unix time at which the first lease ends."""
        return min(lease.until for lease in self.leases)

    @verb
    def renew(self, ttl: float | None = None) -> Op[None]:
        """Extend the leases to `ttl` seconds from now, by default their own TTL. Raises `NotHolder`."""
        return self._renew(self._ttl if ttl is None else ttl)

    @verb
    def drop(self) -> Op[None]:
        """End the leases; leases that have already ended are ignored."""
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
        if self._upkeep is not None and not self._upkeep.stop():
            return
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
        renewed = yield from leases.renew(self._bus.scope, self.leases, ttl)
        self._taken = leases.Leased(renewed, self.renewed, self.displaced)

    def _drop(self, *, strictly: bool = False) -> Op[None]:
        gone = yield from leases.end(self._bus.scope, self.leases)
        if gone and strictly:
            raise leases.lost(gone)

    def _run(self, name: str, op: Op[Any]) -> Any:
        return self._bus._run(name, op)


def _failed(failure: AgentBusError, error: BaseException | None) -> None:
    if error is None:
        raise failure
    # The exception of the block takes precedence.
    error.add_note(f"and the leases did not end: {failure}")
