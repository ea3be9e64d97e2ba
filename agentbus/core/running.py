"""Tells whether a process, or a POSIX session, of this host runs."""

from __future__ import annotations

import os


def runs(process: int) -> bool:
    """Return whether a process of any user is running; True for an id that is too large to check."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def session_runs(session: int) -> bool:
    """Tell whether a process of a POSIX session runs; its first one may have ended before the others."""
    if runs(session):
        return True
    try:
        processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return False
    return any(_session_of(process) == session for process in processes)


def _session_of(process: int) -> int | None:
    try:
        return os.getsid(process)
    except OSError:
        return None
