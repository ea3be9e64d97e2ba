"""One receipt of a task, as a handler gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core.envelope import trail_of
from agentbus.queues.retry import pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.queues.claimed import Taken
    from agentbus.queues.consumer import Consumption
    from agentbus.queues.publish import Task


class Delivery:
    """A task in the hands of a consumer: its payload, and what may become of it.

    `ack`, `retry` and `bury` tell whether the task was still this consumer's; one that was taken over by
    another is refused, and nothing happens. In an asynchronous handler they are awaited.
    The rest of the envelope are attributes, too: `correlation_id`, `reply_to`, `headers` and so on, as in
    `Task`; None where nothing was said.
    """

    __slots__ = ("_consumption", "_run", "_taken", "acked", "payload", "settled")

    def __init__(self, consumption: Consumption, run: Callable[[Any], Any], taken: Taken) -> None:
        self._consumption = consumption
        self._run = run
        self._taken = taken
        self.payload = taken.payload
        self.settled = False
        self.acked = False

    @property
    def id(self) -> str:
        """The task's id, as `publish` returned it."""
        return self._consumption.id_of(self._taken)

    @property
    def attempt(self) -> int:
        """Which run of this task this is, from 1."""
        return self._taken.attempt

    @property
    def queue(self) -> str:
        """The queue that it came from."""
        return self._consumption.queue

    @property
    def group(self) -> str:
        """The group that it was taken for."""
        return self._consumption.group

    @property
    def priority(self) -> str:
        """critical, high, normal or low."""
        return self._taken.priority

    @property
    def created_at(self) -> float:
        """When it was published, in unix seconds of the server's clock (the publisher's, if delayed)."""
        said = self._taken.meta.get("created_at")
        if isinstance(said, (int, float)):
            return said
        return int(self._taken.entry_id.partition(b"-")[0]) / 1000

    @property
    def task(self) -> Task:
        """The whole envelope, as it may be published again."""
        from agentbus.queues.publish import Task

        known: dict[str, Any] = {name: self._taken.meta.get(name) for name in Task.__match_args__}
        known.update(payload=self.payload, priority=self.priority, created_at=self.created_at)
        return Task(**known)

    @property
    def correlation_id(self) -> str | None:
        """What the task belongs to."""
        said: str | None = self._taken.meta.get("correlation_id")
        return said

    @property
    def traceparent(self) -> str | None:
        """The trace that the task belongs to, as W3C Trace Context writes it."""
        said: str | None = self._taken.meta.get("traceparent")
        return said

    @property
    def trail(self) -> Any:
        """The agents that the task passed, as a router noted, each with the time in unix ms."""
        return trail_of(self._taken.meta, self.payload)

    def __getattr__(self, name: str) -> Any:
        from agentbus.core.envelope import META

        if name in META:
            return self._taken.meta.get(name)
        raise AttributeError(f"a delivery has no {name!r}")

    def ack(self, result: object = None) -> Any:
        """Say that the task is done, with a result to keep if there is one."""
        self.settled = True
        self.acked = bool(self._run(self._consumption.finish(self._taken, 0.0, result)))
        return self.acked

    def retry(self, after: float = 0.0) -> Any:
        """Have the task delivered again, after so many seconds."""
        op = self._consumption.retry(self._taken, pause(after))
        self.settled = True
        return bool(self._run(op))

    def bury(self, error: BaseException | str) -> Any:
        """Put the task among the dead letters, with the reason."""
        self.settled = True
        return bool(self._run(self._consumption.bury(self._taken, error)))


class AsyncDelivery(Delivery):
    """A delivery in the hands of an asynchronous handler: `ack`, `retry` and `bury` are awaited."""

    __slots__ = ()

    async def ack(self, result: object = None) -> bool:
        """Say that the task is done, with a result to keep if there is one."""
        self.settled = True
        self.acked = bool(await self._run(self._consumption.finish(self._taken, 0.0, result)))
        return self.acked

    async def retry(self, after: float = 0.0) -> bool:
        """Have the task delivered again, after so many seconds."""
        op = self._consumption.retry(self._taken, pause(after))
        self.settled = True
        return bool(await self._run(op))

    async def bury(self, error: BaseException | str) -> bool:
        """Put the task among the dead letters, with the reason."""
        self.settled = True
        return bool(await self._run(self._consumption.bury(self._taken, error)))
