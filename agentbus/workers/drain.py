"""A drain: its time limit, and the number of tasks that were buried meanwhile."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import TaskBuried, TimedOut, UsageError
from agentbus.core.names import shell_word
from agentbus.core.validate import is_seconds
from agentbus.queues.dead_letters import DeadLetters

if TYPE_CHECKING:
    from agentbus.queues.runner import Runner
    from agentbus.store.steps import Op


class Drain:
    """One worker's drain of a queue: ended, or stopped by `stop` after `timeout` seconds.

    `buried` counts the tasks of the group that any worker buried since `start`.
    """

    def __init__(
        self,
        runner: Runner,
        queue: str,
        group: str,
        timeout: float | None,
        stop: Callable[[], None],
    ) -> None:
        if timeout is not None and not (is_seconds(timeout) and 0 < timeout < math.inf):
            raise UsageError(f"the drain timeout is {timeout!r}", hint="give seconds, above 0")
        letters_of = runner.policy(queue).dead_letters
        self._letters = DeadLetters(runner.scope, queue, group, letters_of=letters_of)
        self._queue = queue
        self._timeout = timeout
        self._stop = stop
        self._mark = ""
        self._late = False
        self._timer: threading.Timer | None = None
        self.ended = False
        self.buried = 0

    def start(self, run: Callable[[Op[Any]], Any]) -> None:
        """Start the clock, and remember which dead letters exist."""
        self._mark = run(self._letters.newest())
        if self._timeout is not None:
            self._timer = threading.Timer(min(self._timeout, threading.TIMEOUT_MAX), self._over)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()

    def finish(self, run: Callable[[Op[Any]], Any]) -> None:
        """Count the buried tasks. Raises `TimedOut` if the time was over before the tasks were."""
        self.buried = run(self._letters.number_after(self._mark))
        if self._late and not self.ended:
            raise TimedOut(
                f"the queue {self._queue!r} was not drained in {self._timeout:g} s",
                hint="drain it again, with more time or more workers",
            )

    def _over(self) -> None:
        self._late = True
        self._stop()


def buried_error(drained: Iterable[tuple[str, str, int]]) -> TaskBuried | None:
    """Return the error about tasks that were buried during drains, by queue and group; None if none was."""
    found = {(queue, group): number for queue, group, number in drained if number}
    if not found:
        return None
    counts = (
        f"{number} task{'' if number == 1 else 's'} of {queue!r}"
        for (queue, _), number in found.items()
    )
    queue, group = next(iter(found))
    whose = "" if group == "default" else f" --group {shell_word(group)}"
    one = sum(found.values()) == 1
    return TaskBuried(
        f"{', '.join(counts)} {'was' if one else 'were'} buried",
        hint=f"see bus.queue({queue!r}).dead_letters({group!r})",
        shell_hint=f"see 'agentbus dlq list {shell_word(queue)}{whose}'",
    )
