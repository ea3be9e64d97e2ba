"""The library with one of the faults that delay a queue or wrong a task, which the checks must catch."""

from __future__ import annotations

import hashlib
import importlib
import math
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import AgentBusError, BackendUnavailable, NotFound
from agentbus.core.stream import position, text
from agentbus.queues import cancel as cancelling, delivery, publish, results
from agentbus.queues.claimed import Taken
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.durable_steps import DurableSteps
from agentbus.store import failures, resp
from agentbus.workers import fetcher
from agentbus.workers.concurrent import Concurrent
from agentbus.workers.heartbeat import Renewal
from agentbus.workers.serial import Serial
from tests.torture.assignment import Allowance, Assignment

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
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


def hands_mixed() -> None:
    """Hand on the results of several tasks in another order."""

    def mixed(scope: Scope, ids: Sequence[str], group: str) -> Op[list[Any]]:
        return (yield from results.of_tasks(scope, ids, group))[::-1]

    _replace(delivery, of_tasks=mixed)


def forgets_steps() -> None:
    """Call the function of each step, recorded or not."""

    def begin(self: DurableSteps, name: str) -> Op[bytes | None]:
        yield from begins(self, name)
        return None

    begins = DurableSteps.begin
    _replace(DurableSteps, begin=begin)


def starts_all() -> None:
    """Start each task of a limited queue at once."""

    def ask(_consumer: object, _task: Taken) -> Op[int]:
        yield from ()
        return 1

    _replace(fetcher, ask=ask)


def lets_all_in() -> None:
    """Give a slot of a semaphore to everybody."""
    _spoil("semaphore", b"number < most", b"true")


def cancels_nothing() -> None:
    """Say that a task is cancelled, and let it be."""

    def cancel(_scope: Scope, given: str, _policies: object) -> Op[cancelling.Cancelled]:
        yield from ()
        return cancelling.Cancelled(given, "", "cancelled", ())

    _replace(cancelling, cancel=cancel)


def drains_early() -> None:
    """Call a queue drained while others hold tasks of it."""
    _spoil("check_drained", rb"if info\['pending'\] > 0 then return 0 end", b"")


def knows_no_doubt() -> None:
    """Call what was not answered refused."""

    def given_up(*of: Any) -> AgentBusError:
        return BackendUnavailable(failed(*of).message)

    failed = failures.given_up
    _replace(failures, given_up=given_up)


def trusts_memory() -> None:
    """Release what waits for a task that was seen done, whether the server still knows it or not."""
    _spoil("release_dependents", rb"redis\.call\('HGET', KEYS\[1\], field\) == '\+'", b"true")


def absent_is_done() -> None:
    """Take a task of which nothing is known for one that is done, and returned nothing."""

    def read(scope: Scope, task: results.Address, group: str | None) -> Op[tuple[str, Any, Any]]:
        try:
            return (yield from reads(scope, task, group))
        except NotFound:
            return "kept", b"null", group

    reads = results._read_state
    _replace(results, _read_state=read)


def waits_for_none() -> None:
    """Wait for no replica, where a task is to be durable."""
    _replace(publish, confirmed=lambda op, *_how: op)


def _spoil(script: str, pattern: bytes, instead: bytes) -> None:
    """Replace what one place of a script says."""
    spoilt, number = re.subn(pattern, instead, resp.source(script))
    assert number == 1
    resp._sources[script] = spoilt
    resp.digests()[script] = hashlib.sha1(spoilt, usedforsecurity=False).hexdigest()


def _nothing(*_of: object) -> None:
    return None


def _replace(where: type | ModuleType, **functions: Callable[..., Any]) -> None:
    for name, function in functions.items():
        assert hasattr(where, name)
        setattr(where, name, function)


FAULTS = {
    fault.__name__: fault
    for fault in (
        *(whole_stream, whole_pages, fetch_together, full_pages, no_renewal, log_own),
        *(hands_mixed, forgets_steps, starts_all, lets_all_in, cancels_nothing, drains_early),
        *(knows_no_doubt, trusts_memory, absent_is_done, waits_for_none),
    )
}


def main(told: Assignment, limit: Allowance) -> None:
    """Run the module that is named, with the fault that is named."""
    options = dict(told.options)
    FAULTS[options.pop("fault")]()
    importlib.import_module(options.pop("program")).main(told._replace(options=options), limit)
