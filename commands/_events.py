"""What the verbs of events share: which database, how work under way ends, and how its trouble is told."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING

from agentbus import logs
from agentbus.commands._declare import Param, seconds
from agentbus.commands._out import to_stderr
from agentbus.errors import BackendUnavailable, ConfigError, UsageError
from agentbus.loggers import emit
from agentbus.settings import events_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agentbus.commands._declare import Call
    from agentbus.events import Ledger

# More impatient than this nobody is with one that was told to stop.
_TWICE = 2
# How often the main thread looks whether a signal came, in seconds.
_GLANCE = 0.5
_LONGEST_PAUSE = 5.0
_SHORTEST_LEASE = 0.5

# What of a record goes into the operations log.
_LOGGED = (
    *("verb", "event", "consumer", "stream", "pid", "exit", "signal", "crash_count"),
    *("window_seconds", "reason", "error", "lost"),
)

PARAMS = (
    Param(
        "database",
        "--database",
        metavar="URL",
        help="postgresql://… or sqlite:///PATH; without it a file of the project's own."
        " [AGENTBUS_DATABASE]",
    ),
    Param(
        "prefix",
        "--prefix",
        metavar="P",
        default="agentbus_",
        help="How the names of the tables begin (agentbus_).",
    ),
    Param("schema", "--schema", metavar="S", help="PostgreSQL's schema that the tables lie in."),
)


def _lease(text: str) -> float:
    found = seconds(text)
    if found < _SHORTEST_LEASE:
        raise ValueError(f"{text!r} is too short: renewing a lease takes time, too")
    return found


LEASE = Param(
    "lease",
    "--lease",
    metavar="SEC",
    convert=_lease,
    default=30.0,
    help="How long a stream stays with a process that is silent, in seconds or as 1m (30).",
)


def words(call: Call, wanted: str) -> list[str]:
    """Return the words behind an action, as many as it wants. Raises `UsageError`."""
    given: list[str] = call.args.words
    if len(given) != len(wanted.split()):
        raise UsageError(
            f"'{call.args.action}' takes {wanted or 'nothing more'}, not {len(given)} words",
            hint="see 'agentbus events --help'",
        )
    return given


def load(module: str) -> None:
    """Import a module of the user's; modules of the current directory count. Raises `UsageError`."""
    sys.path.insert(0, os.getcwd())
    try:
        import_module(module)
    except Exception as error:
        raise UsageError(
            f"the module {module!r} cannot be loaded ({type(error).__name__}: {error})",
            hint="correct it, or start this where it can be found",
        ) from error


def ledger(call: Call, *, make: bool = False) -> Ledger:
    """Return the ledger that the options and settings name, whose tables are there unless `make`."""
    with _hinted(make):
        found = _open(call, make=make)
        if not make:
            found.check()
    return found


def served(call: Call, verb: str) -> Ledger | None:
    """Return the ledger as `ledger` does, for work without an end: a database that is away is waited for.

    None if a signal came first. Trouble is told as it is later, by `warned`.
    """
    with _hinted(make=False):
        found = _open(call, make=False)
        return found if _awaited(found, verb) else None


def _open(call: Call, *, make: bool) -> Ledger:
    from agentbus.events import open_ledger

    args = call.args
    url = args.database or call.settings.database
    if url is None:
        path = events_path(call.settings.project)
        if make:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        url = f"sqlite:///{path}"
    return open_ledger(url, args.prefix, args.schema, deadline=call.settings.deadline, make=make)


@contextlib.contextmanager
def _hinted(make: bool) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        if not make and ("is not there" in error.message or "missing" in error.message):
            error.hint = "run 'agentbus outbox init' with the same options"
        raise


def _awaited(ledger: Ledger, verb: str) -> bool:
    """Look at a ledger until its database serves; False if a signal ended that."""
    stopped = threading.Event()

    def look() -> None:
        pause = 0.1
        while not stopped.is_set():
            try:
                ledger.check()
                return
            except BackendUnavailable as error:
                emit("warning", {"verb": verb, "error": str(error)})
                stopped.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    until_told([(look, stopped.set)])
    return not stopped.is_set()


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
        logs.write(record.levelname.lower(), self._call.settings.log_level, fields)
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
    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            # A signal that the system hands to another thread does not wake this one, which acts on it.
            while thread.is_alive():
                thread.join(_GLANCE)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if failed:
        raise failed[0]
