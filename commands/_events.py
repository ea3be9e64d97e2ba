"""Common code of the event verbs: their options, the ledger, and the user's module."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from agentbus.commands import _long_running
from agentbus.commands._declare import Param, seconds, whole
from agentbus.commands._format import age
from agentbus.core.errors import BackendUnavailable, ConfigError, UsageError
from agentbus.core.loggers import emit
from agentbus.core.settings import state_directory
from agentbus.core.settings_check import make_private

if TYPE_CHECKING:
    from agentbus.commands._declare import Call
    from agentbus.events import Cleanup, LeaseStanding, Ledger

_LONGEST_PAUSE = 5.0
_SHORTEST_LEASE = 0.5

_DECLARES = (
    "The module that declares them with @consumer, or a package; the current directory counts."
)
_NAME = Param("--name N", "Only the consumer of this name.")
MODULE = (Param("MODULE", _DECLARES, required=True), _NAME)
# Parameters of a verb that can run without a module.
SOME_MODULE = (Param("MODULE", _DECLARES), _NAME)
PARAMS = (
    Param(
        "--database URL",
        "postgresql://… or sqlite:///PATH; without it a file of the project's own."
        " [AGENTBUS_DATABASE]",
    ),
    Param("--prefix P", "Prefix of the table names (agentbus_).", default="agentbus_"),
    Param("--schema S", "PostgreSQL's schema of the tables."),
)


def _lease(text: str) -> float:
    lease = seconds(text)
    if lease < _SHORTEST_LEASE:
        raise ValueError(f"{text!r} is too short: a lease must be renewed in time")
    return lease


LEASE = Param(
    "--lease SEC",
    "Lease of a process on a stream, in seconds or as 1m (30).",
    convert=_lease,
    default=30.0,
)


CLEANUP = (
    Param(
        "--cleanup-retention S",
        "Keep the rows of processed events, which identify duplicates, for S seconds (7d).",
        convert=seconds,
    ),
    Param("--cleanup-interval S", "Seconds between two cleanups (5m).", convert=seconds),
    Param("--cleanup-batch-size N", "Rows that a cleanup deletes at once (1000).", convert=whole),
)


def cleanup(call: Call) -> Cleanup:
    """Return the options of the cleanup of processed events."""
    from agentbus.events import Cleanup  # needs the extra `events`

    args = call.args
    given = {
        "retention": args.cleanup_retention,
        "interval": args.cleanup_interval,
        "batch": args.cleanup_batch_size,
    }
    return Cleanup(**{name: value for name, value in given.items() if value is not None})


def words(call: Call, wanted: str) -> list[str]:
    """Return the words after an action. Raises `UsageError` if their number is wrong."""
    given: list[str] = call.args.words
    if len(given) != len(wanted.split()):
        raise UsageError(
            f"'{call.args.action}' takes {wanted or 'nothing more'}, not {len(given)} words",
            hint="see 'agentbus events --help'",
        )
    return given


def load(module: str) -> None:
    """Import the user's module, also from the current directory. Raises `UsageError`."""
    from agentbus.events import declare  # needs the extra `events`

    sys.path.insert(0, os.getcwd())
    declare.load(module)


def ledger(call: Call, *, make: bool = False) -> Ledger:
    """Return the ledger of the options and settings; unless `make`, its tables must exist."""
    with _hinted(make):
        opened = _open(call, make=make)
        if not make:
            opened.check()
    return opened


def served(call: Call, verb: str) -> Ledger | None:
    """Return the ledger of a long-running verb once its database replies; None after a signal.

    Call it within `warned`, which reports errors while it waits.
    """
    with _hinted(make=False):
        opened = _open(call, make=False)
        return opened if _awaited(opened, verb) else None


def _open(call: Call, *, make: bool) -> Ledger:
    from agentbus.events import open_ledger  # needs the extra `events`

    args = call.args
    url = args.database or call.settings.database
    if url is None:
        path = _default_database(call.settings.project)
        if make:
            make_private(os.path.dirname(path))
        url = f"sqlite:///{path}"
    return open_ledger(url, args.prefix, args.schema, deadline=call.settings.deadline, make=make)


def _default_database(project: str) -> str:
    return os.path.join(state_directory(), "events", f"{quote(project, safe='')}.db")


def warn_of_readers(call: Call, leases: list[LeaseStanding]) -> None:
    """Warn about readers that keep many or old events in the outbox."""
    for lease in leases:
        if lease.reader is not None and lease.alert is not None:
            kept = "event is" if lease.lag == 1 else "events are"
            call.out.warn(
                f"{lease.stream}: {lease.lag} {kept} kept for the reader {lease.reader},"
                f" the oldest since {age(lease.lag_ms / 1000)}"
            )


@contextlib.contextmanager
def _hinted(make: bool) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        if not make and ("is not there" in error.message or "missing" in error.message):
            error.shell_hint = "run 'agentbus outbox init' with the same options"
        raise


def _awaited(ledger: Ledger, verb: str) -> bool:
    """Wait until a ledger's database replies; False if a signal arrives first."""
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

    _long_running.until_told([(look, stopped.set)])
    return not stopped.is_set()
