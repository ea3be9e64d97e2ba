"""One receipt of a task, as a handler gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.consuming import Consumption, Taken


class Delivery:
    """A task in the hands of a consumer: its payload, and what may become of it.

    `ack`, `retry` and `bury` tell whether the task was still this consumer's; one that was taken over by
    another is refused, and nothing happens.
    """

    __slots__ = ("_consumption", "_run", "_taken", "acked", "payload", "settled")

    def __init__(self, consumption: Consumption, taken: Taken, run: Callable[[Any], Any]) -> None:
        self._consumption = consumption
        self._taken = taken
        self._run = run
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

    def __getattr__(self, name: str) -> Any:
        # The rest of the envelope: correlation_id, reply_to, headers and so on.
        from agentbus.envelope import META

        if name in META:
            return self._taken.meta.get(name)
        raise AttributeError(f"a delivery has no {name!r}")

    def ack(self, result: object = None) -> bool:
        """Say that the task is done, with a result to keep if there is one."""
        self.settled = True
        self.acked = bool(self._run(self._consumption.finish(self._taken, 0.0, result)))
        return self.acked

    def retry(self, after: float = 0.0) -> bool:
        """Have the task delivered again, after so many seconds."""
        self.settled = True
        return bool(self._run(self._consumption.retry(self._taken, after)))

    def bury(self, error: BaseException | str) -> bool:
        """Put the task among the dead letters, with the reason."""
        self.settled = True
        return bool(self._run(self._consumption.bury(self._taken, error)))
