"""What the verbs of events share: their options, the ledger that these name, and the user's module."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING

from agentbus.commands._declare import Param, seconds
from agentbus.commands._running import until_told
from agentbus.core.errors import BackendUnavailable, ConfigError, UsageError
from agentbus.core.loggers import emit
from agentbus.core.settings import events_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentbus.commands._declare import Call
    from agentbus.events import Ledger

_LONGEST_PAUSE = 5.0
_SHORTEST_LEASE = 0.5

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
            error.shell_hint = "run 'agentbus outbox init' with the same options"
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
