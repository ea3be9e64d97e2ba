"""Runs operations within a deadline: blocking, or in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from agentbus.core import loggers, names
from agentbus.core.errors import AgentBusError
from agentbus.core.settings import socket_path
from agentbus.queues import ids, policy
from agentbus.store import async_driver, followers
from agentbus.store.coalesce import Coalescer
from agentbus.store.driver import at_once, iterate, run
from agentbus.store.operation import attempt, named
from agentbus.store.schemes import async_link
from agentbus.store.scope import ATTENDED, enter
from agentbus.store.sessions import attending

if TYPE_CHECKING:
    from agentbus.core.settings import Settings
    from agentbus.queues.policy import Policies, Policy
    from agentbus.store.connection import Backend
    from agentbus.store.steps import Op

    class BlockingBus(Protocol):
        """The part of a `Bus` that lower packages use."""

        runner: Runner


T = TypeVar("T")


# Names of operations in the log that are not those of their methods.
_LOGGED_AS = {
    "publish_many": "publish",
    "dead_letters": "dlq",
    "letter": "dlq",
    "replay_all": "replay",
}
# Maximum seconds for the operations that run before a connection is closed.
_LAST_WORDS = 1.0


class _AnyRunner:
    """Settings with their backend and scope, and retries for every operation."""

    def __init__(self, settings: Settings, shared: _AnyRunner | None = None) -> None:
        self.settings = settings
        if shared is None:
            self.backend, self.scope = enter(settings)
        else:
            self.backend, self.scope = shared.backend, shared.scope
        # Functions that return an operation to run before the connection is closed.
        self.at_close: list[Callable[[], Op[object]]] = []
        self._policies: Policies | None = None if shared is None else shared._policies

    @property
    def policies(self) -> Policies:
        """The policies of queues. Raises `ConfigError` if one of them is invalid."""
        if self._policies is None:
            self._policies = policy.read(self.settings)
        return self._policies

    def policy(self, queue: str) -> Policy:
        """Return the policy of a queue, with the defaults. Raises `ConfigError`."""
        return self.policies.policy_of(names.name("queue", queue))

    def attempt(
        self,
        op: Op[T],
        patience: float | Callable[[], float] | None = None,
        deadline: float | None = None,
        *,
        answered: bool = False,
        elapsed: float = 0.0,
    ) -> Op[T]:
        """Wrap an operation so that transient failures are retried; times are in seconds."""
        return attempt(
            op,
            where=self.backend.name,
            deadline=self.settings.deadline if deadline is None else deadline,
            patience=patience,
            answered=answered,
            elapsed=elapsed,
            advice=self.backend.advice,
            monotonic=self.scope.monotonic,
        )

    def where(self) -> tuple[str, str, Backend]:
        """Return a name of the server unique within this process, the project, and the backend."""
        server = socket_path() if self.settings.url is None else self.settings.url
        return server, self.scope.keys.project, self.backend

    def recorded(self, op: Op[T], now: float) -> Op[T]:
        """Wrap an operation so that it records this session, if that is due."""
        return op if now - self.scope.attended < ATTENDED else attending(self.scope, op)

    def _shortly(self) -> float:
        return min(_LAST_WORDS, self.settings.deadline)

    def again(self, op: Op[T], elapsed: float) -> Op[T]:
        """Wrap an operation in retries, `elapsed` seconds after its start."""
        return self.attempt(op, elapsed=elapsed)

    def record(
        self,
        verb: str | None,
        began: float,
        error: BaseException | None = None,
        result: object = None,
    ) -> None:
        """Log the outcome of a verb and the ids that it published; its error names the verb."""
        if verb is None:
            return
        if isinstance(error, AgentBusError):
            error.name_operation(verb)
        verb = _LOGGED_AS.get(verb, verb)
        publishes = error is None and verb == "publish"
        level = "debug" if publishes else "info" if error is None else "warning"
        if not loggers.heard(level):
            return
        fields: dict[str, object] = {
            "verb": verb.strip("_"),
            "agent": self.scope.agent,
            "project": self.scope.keys.project,
            "duration_ms": round((time.monotonic() - began) * 1000, 3),
            "outcome": "ok" if error is None else type(error).__name__,
        }
        if not publishes:
            loggers.emit(level, fields)
            return
        tasks: Any = [result] if isinstance(result, str) else result
        for task in tasks:
            queue = names.unescape(ids.split(task)[1])
            loggers.emit(level, fields | {"queue": queue, "id": task}, f"{verb} {queue} {task}")


class Runner(_AnyRunner):
    """Runs operations in the caller's thread; several threads may share it.

    With `shared`, it uses that runner's backend and scope, but a separate connection.
    """

    def __init__(self, settings: Settings, shared: _AnyRunner | None = None) -> None:
        super().__init__(settings, shared)
        self.link = self.backend.link()
        # Workers and schedulers enter this context for as long as they run.
        self.beside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def run(
        self,
        op: Op[T],
        *,
        verb: str | None = None,
        patience: float | None = None,
        deadline: float | None = None,
    ) -> T:
        """Run an operation to its end and return its result; `verb` is its name in the log.

        Once the server has answered, an outage may last `patience` seconds instead of the deadline. Raises
        `BackendUnavailable` or `OutcomeUnknown`.
        """
        began = time.monotonic()
        op = self.recorded(op, began)
        try:
            if patience is None and deadline is None:
                result = at_once(self.link, op, self.settings.deadline, self.again)
            else:
                result = run(self.link, self.attempt(op, patience, deadline))
        except AgentBusError as error:
            self.record(verb, began, error)
            raise
        self.record(verb, began, result=result)
        return result

    def iterate(self, op: Op[Any], patience: float | None = None, *, verb: str) -> Iterator[Any]:
        """Run an operation and yield what it emits; with `patience`, it is taken for a follower."""
        tried = named(self.attempt(self.recorded(op, time.monotonic()), patience), verb)
        return self._follow(tried) if patience else iterate(self.link, tried)

    def _follow(self, op: Op[Any]) -> Iterator[Any]:
        with followers.place(*self.where(), self.link) as link:
            yield from iterate(link, op)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next operation opens a new one."""
        for last in self.at_close:
            try:
                self.run(last(), deadline=self._shortly())
            except AgentBusError:
                # Do not wait for an unavailable server.
                continue
        # Operations in progress in other threads finish on the old link.
        link, self.link = self.link, self.backend.link()
        link.close()


class LastingRunner:
    """Runs a worker's operations; retries without limit once the server has answered.

    It shares another runner's connection. After `hurry`, an outage may last only until the deadline.
    """

    def __init__(self, runner: Runner) -> None:
        self.scope = runner.scope
        # Runs an operation that must not wait for an unavailable server to return.
        self.briefly = runner.run
        self.close = runner.close
        self.beside = runner.beside
        self._runner = runner
        # True if the server has ever answered; if so, outages are waited out.
        self.answered = False
        self._until = math.inf

    def run(self, op: Op[T], *, patience: float | None = None) -> T:
        """Run an operation. Raises `BackendUnavailable` if the server never answered."""
        left = self._left if patience is None else patience
        tried = self._runner.attempt(op, left, answered=self.answered)
        result = run(self._runner.link, named(tried, "work"))
        self.answered = True
        return result

    async def arun(self, op: Op[T]) -> T:
        """Run an operation in a thread, so that it does not block the event loop."""
        return await asyncio.to_thread(self.run, op)

    def trim(self) -> None:
        """Close all unused connections except one."""
        # A link from another package may not have this method.
        trim = getattr(self._runner.link, "trim", None)
        if trim is not None:
            trim()

    def hurry(self) -> None:
        """Stop retrying without limit: from now on, the deadline applies."""
        self._until = min(self._until, time.monotonic() + self._runner.settings.deadline)

    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())


class AsyncRunner(_AnyRunner):
    """Runs operations in an event loop; its coroutines share one connection."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._drive = async_driver
        self.link = async_link(self.backend)
        self.deadline = settings.deadline
        self.coalescer = Coalescer(self.link, self._retrying)
        # For workers, whose own threads call the server.
        self.blocking = Runner(settings, self)
        # Events of abandoned iterations that have not ended yet.
        self._left: set[asyncio.Event] = set()

    def run(
        self,
        op: Op[T],
        *,
        verb: str | None = None,
        patience: float | None = None,
        deadline: float | None = None,
    ) -> Coroutine[Any, Any, T]:
        """Run an operation like `Runner.run`."""
        if patience is None and deadline is None:
            return self._drive.at_once(self, op, verb)
        return self._run(op, verb, patience, deadline)

    async def _run(
        self, op: Op[T], verb: str | None, patience: float | None, deadline: float | None
    ) -> T:
        began = time.monotonic()
        op = self.recorded(op, began)
        try:
            result = await self._drive.run(self.link, self.attempt(op, patience, deadline))
        except AgentBusError as error:
            self.record(verb, began, error)
            raise
        self.record(verb, began, result=result)
        return result

    async def _retrying(self, op: Op[T], elapsed: float) -> T:
        return await self._drive.run(self.link, self.again(op, elapsed))

    def iterate(
        self, op: Op[Any], patience: float | None = None, *, verb: str
    ) -> AsyncIterator[Any]:
        """Run an operation and yield what it emits; with `patience`, it is taken for a follower."""
        tried = named(self.attempt(self.recorded(op, time.monotonic()), patience), verb)
        return self._watched(
            self._follow(tried) if patience else self._drive.iterate(self.link, tried)
        )

    async def _follow(self, op: Op[Any]) -> AsyncGenerator[Any]:
        with followers.async_place(*self.where(), self.link) as link:
            async with contextlib.aclosing(self._drive.iterate(link, op)) as values:
                async for value in values:
                    yield value

    async def _watched(self, values: AsyncGenerator[Any]) -> AsyncIterator[Any]:
        """Yield the values of an iteration; `aclose` waits for its end if it was abandoned."""
        ended = asyncio.Event()
        try:
            async for value in values:
                try:
                    yield value
                except GeneratorExit:
                    self._left.add(ended)
                    raise
        finally:
            try:
                await values.aclose()
            finally:
                self._left.discard(ended)
                ended.set()

    async def _leave(self) -> None:
        """Wait for iterations that were left by `break`, so that they can record their positions."""
        # The event loop closes an abandoned generator in a task that starts within two iterations
        # of the loop.
        for _ in range(2):
            await asyncio.sleep(0)
        if self._left:
            waiting = [asyncio.ensure_future(ended.wait()) for ended in self._left]
            _, late = await asyncio.wait(waiting, timeout=self._shortly())
            for iteration in late:
                iteration.cancel()

    async def aclose(self) -> None:
        """Close the connections; operations in progress fail."""
        try:
            await self._leave()
            for last in self.at_close:
                try:
                    await self.run(last(), deadline=self._shortly())
                except AgentBusError:
                    continue
        finally:
            self.blocking.close()
            await self.link.aclose()
