"""The time, kept as a file's modification time, at which hooks next renew an agent's tasks held by hand."""

from __future__ import annotations

import os
import time

# Maximum seconds between two checks of hooks for such tasks: a check takes longer than a stat.
LONGEST = 300.0


def mark(state: str, agent: str) -> str:
    """Return the path of the file that holds the time."""
    name = "".join([c if c.isascii() and c.isalnum() else "-" for c in agent])[-100:]
    return os.path.join(state, f"renewed-{name}")


def is_due(state: str, agent: str) -> bool:
    """Return whether the time has come, or none was ever set."""
    try:
        due = os.stat(mark(state, agent)).st_mtime
    except OSError:
        return True
    # After the clock was set back, the file's time may lie far ahead: treat it as due.
    return not 0 < due - time.time() <= LONGEST


def schedule(state: str, agent: str, visibility: float) -> None:
    """Set the time for tasks with this shortest visibility; hooks renew at once if it cannot be stored."""
    due = time.time() + min(LONGEST, visibility / 3)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        path = mark(state, agent)
        os.close(os.open(path, flags, 0o600))
        os.utime(path, (due, due))
    except OSError:
        return


def forget(state: str, agent: str) -> None:
    """Make the next hook renew at once."""
    try:
        os.unlink(mark(state, agent))
    except OSError:
        return
