"""The handler of `work -- CMD`: runs the program, acknowledges the task, prints the outcome."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agentbus.commands._output import ReaderGone
from agentbus.commands._program import ProgramFailed, ProgramRefused, ProgramStopped
from agentbus.commands._worktree import WorktreeInUse

if TYPE_CHECKING:
    from agentbus.commands._declare import Call
    from agentbus.commands._program import Program
    from agentbus.commands._worker_log import WorkerLog
    from agentbus.queues.delivery import Delivery
    from agentbus.workers.match import MatchWorker
    from agentbus.workers.worker import Worker

# Seconds after which a task is tried again whose worktree another process uses.
_BUSY = 15.0


class Handling:
    """Handles a delivery: runs the program, acknowledges at once, and prints the outcome."""

    def __init__(self, call: Call, program: Program) -> None:
        self.worker: Worker | MatchWorker | None = None
        self.reader_gone = False
        self.program = program
        self.log: WorkerLog | None = None
        self._call = call

    def __call__(self, delivery: Delivery) -> None:
        if self.program.stopping:
            # The task was taken but has not started: the next worker gets it, and nothing is
            # printed.
            delivery.snooze(0.0)
            return
        began = time.monotonic()
        try:
            result = self.program(delivery)
        except ProgramFailed as error:
            last = self._is_last(delivery, error)
            if delivery.cancelled:
                self._told(delivery, "cancelled", began, str(error))
                raise
            buried = isinstance(error, ProgramRefused) or last
            self._told(delivery, "dead" if buried else "failed", began, str(error))
            if isinstance(error, ProgramStopped) and not buried:
                delivery.retry(0.0)
                return
            raise
        except WorktreeInUse as error:
            # A worker that seemed dead still runs it.
            self._call.out.warn(f"{delivery.id} is tried again in {_BUSY:g} s: {error.message}")
            delivery.snooze(_BUSY)
            return
        # Acknowledge the task now: a worker acknowledges a batch after its last task, and if it
        # were killed before that, programs that have finished would run again.
        ours = delivery.ack(result)
        self._told(delivery, "done" if ours else "stale", began, None)

    def _is_last(self, delivery: Delivery, error: ProgramFailed) -> bool:
        """Return whether this attempt is the last."""
        policy = self._call.bus.policy(delivery.queue)
        limit = delivery.attempts or self._call.args.attempts or policy.attempts
        last: bool = delivery.attempt >= limit
        if delivery.expires_at is not None and not last:
            # Store the pause, so that the worker decides as is printed here.
            error.after = (
                policy.backoff.after(delivery.attempt) if error.after is None else error.after
            )
            last = self._call.bus.scope.server_now() + error.after >= delivery.expires_at
        return last

    def _told(self, delivery: Delivery, outcome: str, began: float, error: str | None) -> None:
        took = time.monotonic() - began
        fields = {
            "task_id": delivery.id,
            "attempt": delivery.attempt,
            "outcome": outcome,
            "error": error,
            "took_ms": round(took * 1000, 3),
        }
        text = f"{delivery.id} {outcome}"
        text += f" (attempt {delivery.attempt})" if delivery.attempt > 1 or error else ""
        text += f": {error}" if error else ""
        assert self.log is not None
        self.log.ran(delivery, outcome, took, text, error)
        try:
            if self._call.out.json:
                self._call.out.record(fields, text)
        except ReaderGone:
            self.reader_gone = True
            if self.worker is not None:
                self.worker.stop()
