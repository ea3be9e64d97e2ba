"""When hooks next renew the tasks that an agent holds by hand: the time of a file."""

from __future__ import annotations

import os
import time

# Seconds: at most this often hooks look whether there are such tasks, which takes longer than a stat.
LONGEST = 300.0


def mark(state: str, agent: str) -> str:
    """Return the path of the file."""
    name = "".join([c if c.isascii() and c.isalnum() else "-" for c in agent])[-100:]
    return os.path.join(state, f"renewed-{name}")


def is_due(state: str, agent: str) -> bool:
    """Tell whether it is time, or none was ever set."""
    try:
        due = os.stat(mark(state, agent)).st_mtime
    except OSError:
        return True
    # A clock that was set back must not keep hooks off for long.
    return not 0 < due - time.time() <= LONGEST


def schedule(state: str, agent: str, visibility: float) -> None:
    """Set the time, for tasks of which the shortest has this visibility; at once if it cannot be kept."""
    due = time.time() + min(LONGEST, visibility / 3)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        path = mark(state, agent)
        os.close(os.open(path, flags, 0o600))
        os.utime(path, (due, due))
    except OSError:
        return


def forget(state: str, agent: str) -> None:
    """Have the next hook look at once."""
    try:
        os.unlink(mark(state, agent))
    except OSError:
        return
