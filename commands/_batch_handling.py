"""The handler of `work --batch N -- CMD`: one run of the program for several tasks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.commands._handling import Handling
from agentbus.commands._payload import json_or_text
from agentbus.commands._program import ProgramFailed, ProgramRefused, ProgramStopped

if TYPE_CHECKING:
    from agentbus.queues.delivery import Delivery


class TasksTogether:
    """Tasks for which a program runs once; the first time limit or cancellation ends the run."""

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries = deliveries
        limits = [delivery.time_limit for delivery in deliveries if delivery.time_limit is not None]
        self.time_limit = min(limits, default=None)
        self.over_at = min((delivery.over_at for delivery in deliveries), default=inf)

    @property
    def id(self) -> str:
        """The first task's id, and the number of tasks."""
        more = len(self._deliveries) - 1
        return self._deliveries[0].id + (f" and {more} more" if more else "")

    @property
    def cancelled(self) -> bool:
        """Tell whether one of the tasks was cancelled, or took too long."""
        return any(delivery.cancelled for delivery in self._deliveries)


class BatchHandling(Handling):
    """Handles a list of deliveries: first attempts together, later attempts one by one.

    A task that makes the program fail therefore costs the others one attempt.
    """

    def __call__(self, deliveries: Sequence[Delivery]) -> None:  # type: ignore[override]
        parts = [[delivery] for delivery in deliveries if delivery.attempt > 1]
        first = [delivery for delivery in deliveries if delivery.attempt == 1]
        for part in (*([first] if first else []), *parts):
            if self.program.stopping:
                for delivery in part:
                    # The task has not started: the next worker gets it, and nothing is printed.
                    delivery.snooze(0.0)
            else:
                self._handle(part)

    def _handle(self, part: Sequence[Delivery]) -> None:
        began = time.monotonic()
        data = b"".join(orjson.dumps(delivery.payload) + b"\n" for delivery in part)
        fields = {
            "AGENTBUS_QUEUE": part[0].queue,
            "AGENTBUS_GROUP": part[0].group,
            "AGENTBUS_TASK_IDS": " ".join(delivery.id for delivery in part),
        }
        try:
            lines = self.program.run(TasksTogether(part), data, fields, str.splitlines)
        except ProgramFailed as error:
            for delivery in part:
                self._failed(delivery, error, began, alone=len(part) == 1)
            return
        results: list[Any] = [None] * len(part)
        if lines is not None and len(lines) == len(part):
            results = [json_or_text(line) if line.strip() else None for line in lines]
        for delivery, result in zip(part, results, strict=True):
            ours = delivery.ack(result)
            self._told(delivery, "done" if ours else "stale", began, None)

    def _failed(
        self, delivery: Delivery, error: ProgramFailed, began: float, *, alone: bool
    ) -> None:
        if isinstance(error, ProgramRefused) and not alone:
            # Run each task alone to find those that the program refuses.
            error = ProgramFailed(str(error), error.program_output)
        last = self._is_last(delivery, error)
        buried = isinstance(error, ProgramRefused) or last
        outcome = "dead" if buried else "failed"
        self._told(delivery, "cancelled" if delivery.cancelled else outcome, began, str(error))
        if isinstance(error, ProgramStopped) and not buried:
            delivery.retry(0.0)
        else:
            delivery.fail(error)
