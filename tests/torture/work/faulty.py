"""The library with one of the faults that delay a queue or wrong a task, which the checks must catch."""

from __future__ import annotations

import hashlib
import importlib
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentbus.core.stream import position, text
from agentbus.queues.claimed import Taken
from agentbus.queues.consumer import QueueConsumer
from agentbus.store import resp
from agentbus.workers.concurrent import Concurrent
from agentbus.workers.heartbeat import Renewal
from agentbus.workers.serial import Serial
from tests.torture.assignment import Allowance, Assignment

if TYPE_CHECKING:
    from agentbus.store.steps import Op

_PAGE = 100
_UNDONE = rb"= undone\(stream, length, [^)]*\)"
_LOGS_CUT_OFF = rb"if KEYS\[\d+\] then log_cut_off\(.*"


def whole_stream() -> None:
    """Count all tasks of the stream against the bound: also those done behind one that is not."""
    _spoil("publish", _UNDONE, b"= length, ''")


def whole_pages() -> None:
    """Let a worker take a page of a dead one's tasks, the oldest first."""
    _take_together(lambda _count: _PAGE)


def fetch_together() -> None:
    """Hand out tasks that were delivered before together, as many as were asked for."""
    _take_together(lambda count: count)


def _take_together(most: Callable[[int], int]) -> None:
    take_retries = QueueConsumer.take_retries

    def together(
        self: QueueConsumer, priority: str, count: int, *, firsts: int = 0, **_suspects: bool
    ) -> Op[tuple[list[Taken], float | None, int, bool]]:
        found: list[Taken] = []
        alone = True
        lost = 0
        while alone and len(found) < most(max(count, firsts)):
            tasks, due, gone, alone = yield from take_retries(self, priority, count, firsts=firsts)
            found, lost = found + tasks, lost + gone
        found.sort(key=lambda task: position(text(task.entry_id)))
        return found, due, lost, False

    _replace(QueueConsumer, take_retries=together)


def full_pages() -> None:
    """Read a full page, however slow its tasks are, keep all of it, and acknowledge at its end."""

    def resize(self: Serial, *_ran: object) -> None:
        self._size = self._most

    def look(self: Serial, _now: float) -> None:
        assert self._running is not None
        self._running.look_at = math.inf

    _replace(Serial, _resize=resize, _look=look, relieve=_nothing)
    _replace(Concurrent, relieve=_nothing)


def no_renewal() -> None:
    """Begin what was taken before a freeze, and do not ask who has it by now."""
    full_pages()
    _replace(Renewal, overdue=_nothing, _note=_nothing)


def log_own() -> None:
    """Log the attempts that workers end, and not those that are counted when a task is reclaimed."""
    for script in ("take_retries", "reclaim"):
        _spoil(script, _LOGS_CUT_OFF, b"")


def _spoil(script: str, pattern: bytes, instead: bytes) -> None:
    """Replace what one place of a script says."""
    spoilt, number = re.subn(pattern, instead, resp.source(script))
    assert number == 1
    resp._sources[script] = spoilt
    resp.digests()[script] = hashlib.sha1(spoilt, usedforsecurity=False).hexdigest()


def _nothing(*_of: object) -> None:
    return None


def _replace(where: type, **methods: Callable[..., Any]) -> None:
    for name, method in methods.items():
        assert hasattr(where, name)
        setattr(where, name, method)


FAULTS = {
    fault.__name__: fault
    for fault in (whole_stream, whole_pages, fetch_together, full_pages, no_renewal, log_own)
}


def main(told: Assignment, limit: Allowance) -> None:
    """Run the module that is named, with the fault that is named."""
    options = dict(told.options)
    FAULTS[options.pop("fault")]()
    importlib.import_module(options.pop("program")).main(told._replace(options=options), limit)
