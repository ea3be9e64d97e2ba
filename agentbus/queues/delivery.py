"""One receipt of a task, as a handler or a program that fetches gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core.envelope import META, trail_of
from agentbus.queues.retry import pause
from agentbus.store.verb import Awaiting, Blocking, verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.queues.claimed import Taken
    from agentbus.queues.consumer import Consumption
    from agentbus.queues.publish import Task
    from agentbus.store.steps import Op


class AnyDelivery:
    """What a blocking delivery and an asynchronous one share."""

    __slots__ = ("_consumer", "_perform", "_taken", "acked", "payload", "settled")
    if TYPE_CHECKING:
        # Of the envelope, by `__getattr__`.
        correlation_id: str | None
        traceparent: str | None

    def __init__(self, consumer: Consumption, perform: Callable[[Any], Any], taken: Taken) -> None:
        self._consumer = consumer
        self._perform = perform
        self._taken = taken
        self.payload = taken.payload
        self.settled = False
        self.acked = False

    @property
    def id(self) -> str:
        """The task's id, as `publish` returned it."""
        return self._consumer.id_of(self._taken)

    @property
    def attempt(self) -> int:
        """The attempt number, starting at 1."""
        return self._taken.attempt

    @property
    def queue(self) -> str:
        """The queue that it came from."""
        return self._consumer.queue

    @property
    def group(self) -> str:
        """The group that it was taken for."""
        return self._consumer.group

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
        """The whole envelope, ready to be published again."""
        from agentbus.queues.publish import Task

        known: dict[str, Any] = {name: self._taken.meta.get(name) for name in Task.__match_args__}
        known.update(payload=self.payload, priority=self.priority, created_at=self.created_at)
        return Task(**known)

    @property
    def trail(self) -> Any:
        """The agents that the task passed, as a router noted them, each with the time in unix ms."""
        return trail_of(self._taken.meta, self.payload)

    def __getattr__(self, name: str) -> Any:
        if name in META:
            return self._taken.meta.get(name)
        raise AttributeError(f"a delivery has no {name!r}")

    @verb
    def ack(self, result: object = None) -> Op[bool]:
        """Acknowledge the task, with a result to keep if there is one; tells whether it was still ours."""
        self.settled = True
        self.acked = yield from self._consumer.finish(self._taken, 0.0, result)
        return self.acked

    @verb
    def retry(self, after: float = 0.0) -> Op[bool]:
        """Deliver the task again after `after` seconds; tells whether it was still ours."""
        op = self._consumer.retry(self._taken, pause(after))
        self.settled = True
        return (yield from op)

    @verb
    def bury(self, error: BaseException | str) -> Op[bool]:
        """Move the task to the dead letters, with the reason; tells whether it was still ours."""
        self.settled = True
        return (yield from self._consumer.bury(self._taken, error))

    def _run(self, _name: str, op: Op[bool]) -> Any:
        return self._perform(op)


class Delivery(AnyDelivery, Blocking):
    """A task in the hands of a consumer: its payload, and the ways to settle it.

    `ack`, `retry` and `bury` return whether the task was still this consumer's; one that another consumer
    has reclaimed is left alone. The rest of the envelope are attributes, too: `correlation_id`,
    `reply_to`, `headers` and so on, as in `Task`; None where nothing was given.
    """

    __slots__ = ()


class AsyncDelivery(AnyDelivery, Awaiting):
    """A delivery in a coroutine: as `Delivery`, but `ack`, `retry` and `bury` are awaited."""

    __slots__ = ()
