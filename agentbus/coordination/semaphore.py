"""A semaphore: a limited number of holders, each until it releases its slot or its hold expires."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic

from agentbus.coordination.hold import SHORTLY, Upkeep
from agentbus.core import names, validate
from agentbus.core.errors import AgentBusError, NotHolder, SemaphoreFull, UsageError
from agentbus.core.stream import text
from agentbus.store.steps import LinkDown, Script, ServerReply, Wait
from agentbus.store.verb import Awaiting, Blocking, BusT_co, OnBus, Patient, verb

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

MOST_HOLDERS = 10_000
_LONGEST_TTL = 30 * 86_400.0
# Maximum seconds between two checks if no bell rings.
_GLANCE = 5.0
# Name in place of a queue: the scripts keep semaphores like the limits of a queue.
_QUEUE = "~semaphores"


class Semaphore(OnBus[BusT_co]):
    """A semaphore for at most `holders` holders; `Bus.semaphore` and `AsyncBus.semaphore` return it.

    All users of a name should give the same number: a slot is free for a user whose number exceeds the
    number of holders. Waiters are not served in order: any of them may be next.
    """

    def __init__(self, bus: BusT_co, name: str, holders: int, ttl: float) -> None:
        on: Any = bus
        self._scope: Scope = on.scope
        self._run, self._iterate = on._run, on._iterate
        self._bus = bus
        self.name = names.name("semaphore", name)
        if type(holders) is not int or not 0 < holders <= MOST_HOLDERS:
            raise UsageError(
                f"a semaphore of {holders!r} holders",
                hint=f"give a number from 1 to {MOST_HOLDERS:,}",
            )
        if (
            isinstance(ttl, bool)
            or not isinstance(ttl, (int, float))
            or not 0 < ttl <= _LONGEST_TTL
        ):
            raise UsageError(f"the TTL is {ttl!r}", hint="give seconds, above 0, at most 30 days")
        self.holders = holders
        self._ttl = ttl

    @verb
    def acquire(self, wait: float | None = None) -> Patient[str]:
        """Take a slot for `ttl` seconds, waiting up to `wait` seconds for one, and return its token.

        Atomic. Raises `SemaphoreFull`.
        """
        return Patient(self._acquire(wait or 0.0, self._scope.token()), wait or 0.0)

    @verb
    def renew(self, token: str) -> Op[None]:
        """Hold a slot for another `ttl` seconds from now. Raises `NotHolder` if it was lost."""
        return self._renew(token)

    @verb
    def release(self, token: str) -> Op[None]:
        """Release a slot, and wake waiters. Raises `NotHolder` if it was already lost."""
        return self._release(token)

    def held(self, wait: float | None = None) -> HeldSemaphore[BusT_co]:
        """Return a context manager that holds a slot during a `with` (or `async with`) block.

        It renews the slot every third of `ttl` seconds. Raises `SemaphoreFull` on entry, and `NotHolder` at
        the end if the slot was lost during the block.
        """
        return HeldSemaphore(self, wait, self._ttl)

    def _step(self, token: str, milliseconds: int | str, *, keep: bool = False) -> Script:
        key = self._scope.keys.limits(_QUEUE, self.name)[0]
        return Script(
            "semaphore",
            (key, self._scope.keys.bell(f"{_QUEUE}.{self.name}")),
            (f"{self._scope.agent} {token}", self.holders, milliseconds, int(keep)),
            writes=True,
        )

    def _acquire(self, wait: float, token: str) -> Op[str]:
        validate.wait("wait", wait)
        until = self._scope.monotonic() + wait
        bell = self._scope.keys.bell(f"{_QUEUE}.{self.name}")
        while True:
            # Resent after a lost reply, this step finds the slot already held.
            held, free_in, last, *agents = yield self._step(token, round(self._ttl * 1000))
            if held:
                return token
            left = until - self._scope.monotonic()
            if left <= 0:
                raise _full(self.name, self.holders, agents)
            yield Wait(bell, text(last), max(0.001, min(left, int(free_in) / 1000, _GLANCE)))

    def _renew(self, token: str) -> Op[None]:
        held, *_ = yield self._step(token, round(self._ttl * 1000), keep=True)
        if not held:
            raise self._lost()

    def _release(self, token: str) -> Op[None]:
        step = self._step(token, "")
        held, *_ = yield step
        if not held and step.sendings < 2:
            raise self._lost()

    def _give_up(self, token: str) -> Op[None]:
        """Release a slot that an interrupted caller may hold; errors are ignored."""
        step = self._step(token, "")
        step.optional = True
        try:
            yield step
        except (LinkDown, ServerReply):
            return

    def _lost(self) -> NotHolder:
        return NotHolder(
            f"the place among the holders of the semaphore {self.name!r} was lost",
            hint="it was not renewed in time: others may have held it; use a longer ttl",
        )


class HeldSemaphore(Generic[BusT_co]):
    """Holds a slot of a semaphore inside `with` on a `Bus`, or inside `async with` on an `AsyncBus`."""

    def __init__(self, semaphore: Any, wait: float | None, ttl: float) -> None:
        self._semaphore = semaphore
        self._wait = wait
        self._ttl = ttl
        self._token = ""
        self._upkeep: Upkeep | None = None

    def __enter__(self: HeldSemaphore[Blocking]) -> str:
        on, self._token = self._semaphore, self._semaphore._scope.token()
        try:
            on._run("acquire", self._acquiring())
            self._upkeep = Upkeep(self._renew, self._ttl / 3)
            self._upkeep.start()
        except AgentBusError:
            raise
        except BaseException:
            # Give up the slot: after an interrupt, nobody would do so before its TTL expires.
            on._bus.runner.run(on._give_up(self._token), deadline=SHORTLY)
            raise
        return self._token

    def __exit__(self: HeldSemaphore[Blocking], _kind: object, error: object, _at: object) -> None:
        if self._upkeep is not None and not self._upkeep.stop():
            return
        try:
            self._semaphore.release(self._token)
        except AgentBusError as failure:
            _failed(failure, error)

    async def __aenter__(self: HeldSemaphore[Awaiting]) -> str:
        on, self._token = self._semaphore, self._semaphore._scope.token()
        try:
            await on._run("acquire", self._acquiring())
        except asyncio.CancelledError:
            await on._bus.runner.run(on._give_up(self._token), deadline=SHORTLY)
            raise
        self._upkeep = Upkeep(self._renew, self._ttl / 3)
        self._upkeep.astart()
        return self._token

    async def __aexit__(
        self: HeldSemaphore[Awaiting], _kind: object, error: object, _at: object
    ) -> None:
        if self._upkeep is not None:
            await self._upkeep.astop()
        try:
            await self._semaphore.release(self._token)
        except AgentBusError as failure:
            _failed(failure, error)

    def _acquiring(self) -> Patient[str]:
        wait = self._wait or 0.0
        return Patient(self._semaphore._acquire(wait, self._token), wait)

    def _renew(self) -> Any:
        return self._semaphore.renew(self._token)


def _failed(failure: AgentBusError, error: object) -> None:
    if not isinstance(error, BaseException):
        raise failure
    # The exception of the block takes precedence.
    error.add_note(f"and the semaphore was not given up: {failure}")


def _full(name: str, holders: int, agents: Sequence[bytes]) -> SemaphoreFull:
    known = ", ".join(dict.fromkeys(map(text, agents)))
    return SemaphoreFull(
        f"the semaphore {name!r} has {holders} holder{'s' if holders > 1 else ''} already: {known}",
        hint="wait for one of them, or allow more",
    )
