"""The options with which a typed task is declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core import names
from agentbus.core.errors import UsageError
from agentbus.queues.limits import QueueLimit
from agentbus.queues.publish import check_priority
from agentbus.queues.task import Task, envelope_of
from agentbus.tasks.schedule_record import check_times

if TYPE_CHECKING:
    from agentbus.queues.retry import Backoff


_ENVELOPE = ("attempts", "priority", "expires", "unique")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The queue, and the other options given to `Tasks.task`.

    `attempts`, `priority`, `expires`, `unique` and `timeout` become fields of each task's envelope, the
    last one as `time_limit`. `limit` is that of the queue, on all of its tasks. `backoff` takes precedence
    over the queue's policy. Schedulers publish a task with `every` (in seconds) or `cron`; see
    `Schedules.add` for these, `timezone` and `missed`.
    """

    queue: str
    attempts: int | None = None
    priority: str | None = None
    expires: float | None = None
    backoff: Backoff | None = None
    timeout: float | None = None
    every: float | None = None
    cron: str | None = None
    timezone: str | None = None
    missed: str | None = None
    unique: str | None = None
    limit: QueueLimit | None = None

    def __post_init__(self) -> None:
        names.name("queue", self.queue)
        if self.priority is not None:
            check_priority(self.priority)
        if self.limit is not None and not isinstance(self.limit, QueueLimit):
            raise UsageError(f"the limit is {self.limit!r}", hint="give a QueueLimit")
        if self.backoff is not None and not callable(getattr(self.backoff, "after", None)):
            raise UsageError(f"the backoff is {self.backoff!r}", hint="give a Backoff")
        envelope_of(
            Task(
                None,
                attempts=self.attempts,
                expires=self.expires,
                time_limit=self.timeout,
                unique=self.unique,
            )
        )
        if self.every is not None or self.cron is not None:
            check_times(f"the task of {self.queue!r}", self.every, self.cron, **self.times())
        elif self.times():
            raise UsageError(
                f"{' and '.join(self.times())} without a schedule", hint="give every= or cron="
            )

    def times(self) -> dict[str, str]:
        """Return the schedule's time zone and its treatment of missed ticks, if given."""
        given = {"timezone": self.timezone, "missed": self.missed}
        return {name: value for name, value in given.items() if value is not None}

    def envelope(self) -> dict[str, Any]:
        """Return the fields of the envelope that these options set."""
        fields = {name: getattr(self, name) for name in _ENVELOPE}
        fields["time_limit"] = self.timeout
        return {name: value for name, value in fields.items() if value is not None}
