"""How work without an end runs: until a signal comes, and with its trouble told."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING

from agentbus.commands import _signals
from agentbus.commands._out import to_stderr
from agentbus.core import oplog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agentbus.commands._declare import Call

# More impatient than this nobody is with one that was told to stop.
_TWICE = 2
# How often the main thread looks whether a signal came, in seconds.
_GLANCE = 0.5

# What of a record goes into the operations log.
_LOGGED = (
    *("verb", "event", "consumer", "stream", "pid", "exit", "signal", "crash_count"),
    *("window_seconds", "reason", "error", "lost"),
)


@contextlib.contextmanager
def warned(call: Call) -> Iterator[None]:
    """Tell the user, and the log, of trouble that is waited out; the same again only the log."""
    handler = _Telling(call)
    logger = logging.getLogger("agentbus")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


class _Telling(logging.Handler):
    def __init__(self, call: Call) -> None:
        super().__init__(logging.INFO)
        self._call = call
        self._last: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        fields = {key: getattr(record, key) for key in _LOGGED if hasattr(record, key)}
        oplog.write(record.levelname.lower(), self._call.settings.log_level, fields)
        shown = "event" in fields and fields.get("verb") != "route"
        if shown or record.levelno < logging.WARNING:
            # A record on stdout tells the user of it; there is none of rules that a router refuses.
            return
        who = str(fields.get("consumer") or fields.get("stream") or fields.get("verb"))
        if "lost" in fields:
            text = f"the server lost {fields['lost']} events, which are published again"
        else:
            text = str(fields.get("error", record.getMessage()))
        if self._last.get(who) != text:
            self._last[who] = text
            self._call.out.warn(f"{who}: {text}")


def until_told(jobs: Sequence[tuple[Callable[[], object], Callable[[], None]]]) -> None:
    """Do jobs in threads, each with what stops it, until all have ended; raises what one of them raised.

    A signal stops them all, and so does the first that fails. A second signal ends this process at once:
    what is not committed then has not happened.
    """
    failed: list[BaseException] = []
    told: list[int] = []

    def stop() -> None:
        for _, ending in jobs:
            ending()

    def work(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 (raised again in the main thread)
            failed.append(error)
            stop()

    def heard(number: int, _frame: object) -> None:
        told.append(number)
        if len(told) == _TWICE:
            to_stderr("agentbus: ended at once; what was not committed has not happened\n")
            os._exit(128 + number)
        stop()

    # Not in the main thread: a signal that met it inside an event's own lock would wait for itself.
    threads = [threading.Thread(target=work, args=(job,), daemon=True) for job, _ in jobs]
    with _signals.heard(heard):
        for thread in threads:
            thread.start()
        for thread in threads:
            # A signal that the system hands to another thread does not wake this one, which acts on it.
            while thread.is_alive():
                thread.join(_GLANCE)
    if failed:
        raise failed[0]
