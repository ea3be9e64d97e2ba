"""The log of a long-running verb: lines on stderr, and failures in the operations log."""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from pythonjsonlogger.json import JsonFormatter

from agentbus.commands import _long_running
from agentbus.commands._declare import Param
from agentbus.commands._format import count
from agentbus.commands._output import plain
from agentbus.commands._program_output import escaped, on_github, to_stderr
from agentbus.core import loggers
from agentbus.core.clock import rfc3339
from agentbus.core.names import word
from agentbus.core.version import __version__
from agentbus.workers.executors import is_async

if TYPE_CHECKING:
    from agentbus.commands._declare import Call
    from agentbus.queues.delivery import Delivery

FORMAT = Param(
    "--log-format FORMAT",
    "The lines on stderr: text (default), or json, one object a line.",
    choices=("text", "json"),
    default="text",
)
# Done tasks that are logged one by one within a second; the others of that second are counted.
_EACH = 50


@contextlib.contextmanager
def logged(call: Call, verb: str, *, reports: bool = False) -> Iterator[WorkerLog]:
    """Log on stderr during a `with` block: the bus, and what the process itself logs by `logging`.

    A module that has configured `logging` keeps its handlers, and no other is added. With `reports`, the
    verb itself tells how each run has ended. Failures also go into the operations log; of verbs other than
    `work`, all that is logged.
    """
    log = WorkerLog(call, verb)
    root, own = logging.getLogger(), logging.getLogger("agentbus")
    levels = root.level, own.level
    stderr = None if root.handlers or log.level is None else _StderrHandler(log, log.level)
    if stderr is not None and log.level is not None:
        stderr.setFormatter(_formatter(call.args.log_format))
        stderr.addFilter(_Filter(reports))
        root.addHandler(stderr)
        root.setLevel(log.level)
    if own.level == logging.NOTSET or own.level > logging.INFO:
        own.setLevel(logging.INFO)
    try:
        with _long_running.recorded(call, logging.WARNING if verb == "work" else logging.INFO):
            yield log
    finally:
        log.close()
        root.setLevel(levels[0])
        own.setLevel(levels[1])
        if stderr is not None:
            root.removeHandler(stderr)


class WorkerLog:
    """The lines of one worker: its start, its tasks and its end.

    Threads share it. `level` is None if the user has disabled the log.
    """

    def __init__(self, call: Call, verb: str) -> None:
        settings = call.settings
        self._call = call
        self._verb = verb
        self._common: dict[str, object] = {"agent": settings.agent, "project": settings.project}
        name = settings.log_level
        self.level = None if name == "off" else logging.getLevelNamesMapping()[name.upper()]
        # Keeps a progress line out of the way while a line is written.
        self.aside: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
        self._lock = threading.Lock()
        self._second = 0
        self._number = 0

    @property
    def shows_tasks(self) -> bool:
        """True if done tasks and the output of programs are logged."""
        return self.level is not None and self.level <= logging.INFO

    def started(self, what: str, **fields: object) -> None:
        """Log that the verb starts: of which project, on which server."""
        bus = self._call.bus
        server = bus.runner.backend.name
        fields = {"verb": self._verb, "event": "started", "server": server, **fields}
        fields["version"] = __version__
        shown = {"project": bus.runner.scope.keys.project, "server": server, **fields}
        named = ", ".join(
            f"{name} {_value(shown[name])}"
            for name in shown
            if name not in ("verb", "event", "queues")
        )
        self.emit("info", f"{what} started: {named}", fields)

    def totals(
        self,
        what: str,
        of: dict[str, Any],
        done: int,
        failed: int,
        webhooks: int | None,
        *,
        printed: bool = True,
    ) -> None:
        """Log the totals of a worker; with `printed` and --json, also print them."""
        self.close()
        fields = {**of, "done": done, "failed": failed}
        text = f"{what}: {done} done"
        text += f", {count(failed, 'run')} failed" if failed else ""
        if webhooks is not None:
            fields["webhooks"] = webhooks
            text += f", {count(webhooks, 'webhook')} sent" if webhooks else ""
        if printed and self._call.out.json:
            self._call.out.record(fields, text)
        self.ended(text, **fields)

    def ended(self, text: str, **fields: object) -> None:
        """Log that the verb has ended."""
        self.emit("info", text, {"verb": self._verb, "event": "stopped", **fields})

    def emit(self, level: str, text: str, fields: dict[str, object]) -> None:
        """Log a line."""
        loggers.emit(level, {**self._common, **fields}, text)

    def middleware(self, handler: Callable[..., Any]) -> list[Callable[..., Any]]:
        """Return the middleware of a handler that logs each done task; the library logs the failures."""
        if not self.shows_tasks:
            return []
        return [self._awaited if is_async(handler) else self._called]

    def _called(self, delivery: Any, call_next: Callable[[Any], Any]) -> Any:
        began = time.monotonic()
        result = call_next(delivery)
        if inspect.isawaitable(result):
            return self._ended_later(delivery, began, result)
        self.done(delivery, time.monotonic() - began)
        return result

    async def _awaited(self, delivery: Any, call_next: Callable[[Any], Any]) -> Any:
        return await self._ended_later(delivery, time.monotonic(), call_next(delivery))

    async def _ended_later(self, delivery: Any, began: float, awaitable: Awaitable[Any]) -> Any:
        result = await awaitable
        self.done(delivery, time.monotonic() - began)
        return result

    def done(self, delivery: Any, took: float) -> None:
        """Log a done task, unless many are done within a second."""
        if delivery.settled and not delivery.acked:
            # The handler has retried, snoozed or buried its task.
            return
        if self._is_counted():
            return
        name = delivery.task_name
        fields = _of_run(delivery, "done", took)
        text = delivery.id
        if name is not None:
            fields["task"] = name
            text += f" ({word(name)})"
        text += f" done in {_duration(took)}"
        self.emit("info", text + f" (attempt {delivery.attempt})" * (delivery.attempt > 1), fields)

    def ran(
        self, delivery: Delivery, outcome: str, took: float, text: str, error: str | None
    ) -> None:
        """Log how the run of a program has ended."""
        if outcome == "done":
            self.done(delivery, took)
            return
        fields = _of_run(delivery, outcome, took) | {"error": error}
        self.emit({"failed": "warning", "dead": "error"}.get(outcome, "info"), text, fields)
        if error is not None and self.shows_tasks and on_github():
            title = f"agentbus work {delivery.queue}".replace(":", "%3A").replace(",", "%2C")
            self.write(f"::error title={title}::{escaped(plain(text))}\n".encode())

    def write(self, data: bytes) -> None:
        """Write output of a program to stderr."""
        with self.aside():
            to_stderr(data)

    def close(self) -> None:
        """Log how many tasks of the last second were only counted."""
        with self._lock:
            more, self._number = self._number - _EACH, 0
        self._summarise(more)

    def _is_counted(self) -> bool:
        """Count a done task, and return whether it is only counted."""
        second, more = int(time.monotonic()), 0
        with self._lock:
            if second != self._second:
                more, self._number, self._second = self._number - _EACH, 0, second
            self._number += 1
            counted = self._number > _EACH
        self._summarise(more)
        return counted

    def _summarise(self, more: int) -> None:
        if more > 0:
            fields: dict[str, object] = {"verb": "work", "outcome": "done", "number": more}
            self.emit("info", f"{count(more, 'more task')} done within the second", fields)


def _of_run(delivery: Any, outcome: str, took: float) -> dict[str, object]:
    """Return the fields of the record of a run."""
    return {
        "verb": "work",
        "queue": delivery.queue,
        "group": delivery.group,
        "id": delivery.id,
        "attempt": delivery.attempt,
        "outcome": outcome,
        "duration_ms": round(took * 1000, 3),
    }


class _Filter:
    """Drops records of exchanges and verbs, those that stdout has, and repetitions of a warning."""

    def __init__(self, reports: bool) -> None:
        self._reports = reports
        self._last: dict[object, str] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        if record.name != "agentbus":
            return True
        outcome = getattr(record, "outcome", None)
        if record.levelno < logging.INFO or outcome == "ok":
            return False
        if getattr(record, "verb", None) == "work":
            # The library's record of a failed run has no duration.
            reported = self._reports and outcome in ("failed", "dead")
            return not reported or hasattr(record, "duration_ms")
        if hasattr(record, "consumer") and hasattr(record, "event"):
            return False
        who = getattr(record, "consumer", None) or getattr(record, "stream", None)
        text = _said(record)
        if record.levelno < logging.WARNING or self._last.get(who) != text:
            self._last[who] = text
            return True
        return False


def _said(record: logging.LogRecord) -> str:
    """Return the text of a record, of which the library gives only fields."""
    text, verb = record.getMessage(), getattr(record, "verb", None)
    if text != verb or record.name != "agentbus":
        return text
    who = getattr(record, "consumer", None) or getattr(record, "stream", None) or verb
    lost = getattr(record, "lost", None)
    if lost is not None:
        what = "1 event, which is" if lost == 1 else f"{lost} events, which are"
        return f"{who}: the server lost {what} published again"
    error = getattr(record, "error", None)
    return f"{who}: {error}" if error is not None else f"{who}: {getattr(record, 'event', verb)}"


class _StderrHandler(logging.Handler):
    def __init__(self, log: WorkerLog, level: int) -> None:
        super().__init__(level)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.write(f"{self.format(record)}\n".encode(errors="backslashreplace"))


def _formatter(name: str) -> logging.Formatter:
    if name == "text":
        return _TextFormatter()
    return _JsonFormatter(
        "%(asctime)s %(levelname)s %(name)s %(message)s",
        rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
    )


def _time(record: logging.LogRecord) -> str:
    return rfc3339(record.created, milliseconds=True)


class _JsonFormatter(JsonFormatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return _time(record)

    def format(self, record: logging.LogRecord) -> str:
        # Other handlers get the same record.
        copy = logging.makeLogRecord(record.__dict__)
        copy.msg, copy.args = _said(record), ()
        return super().format(copy)


class _TextFormatter(logging.Formatter):
    """A line of time, level, logger and message, then the lines of a traceback, all escaped."""

    def format(self, record: logging.LogRecord) -> str:
        lines = [f"{_time(record)} {record.levelname} {record.name}: {plain(_said(record))}"]
        trace = record.exc_text or (
            self.formatException(record.exc_info) if record.exc_info else ""
        )
        lines += map(plain, trace.splitlines())
        return "\n".join(lines)


def _value(value: object) -> str:
    return word(value) if isinstance(value, str) else str(value)


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
