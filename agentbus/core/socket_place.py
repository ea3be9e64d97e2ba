"""Chooses the directory of the embedded server's socket where the path of the server's own is too long.

That is a directory below XDG_RUNTIME_DIR, else one below /tmp, with names that follow from the server's
directory; where another user has taken these names, one with a name that nobody could foresee. The choice
is written into the server's directory, because not every process of a user has the same environment.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile

from agentbus.core.settings_check import own_directory

_RECORD = "socket-directory"
_SHARED = "/tmp"
# A path of this length leaves room for the socket's name.
_LONGEST = 88


def find(place: str, runtime: str | None) -> str | None:
    """Return the directory for the server in `place`; None while every name for it is taken.

    `runtime` is XDG_RUNTIME_DIR. The directory need not exist yet.
    """
    recorded = _recorded(place)
    if recorded is not None:
        return recorded
    return next((each for each in usual(place, runtime) if not is_taken(each)), None)


def make(place: str, runtime: str | None) -> str:
    """Create the directory, private to this user, write down which one it is, and return it.

    `place` belongs to this user. Called by one process at a time.
    """
    folder = find(place, runtime)
    try:
        if folder is not None and not os.path.lexists(folder):
            os.mkdir(folder, 0o700)
    except FileExistsError:
        # Taken since it was looked for, or made by a process of this user.
        folder = find(place, runtime)
    if folder is None:
        folder = tempfile.mkdtemp(prefix=f"agentbus-{os.getuid()}-", dir=_SHARED)
    own_directory(folder)
    record = os.path.join(place, _RECORD)
    beside = f"{record}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(beside, flags, 0o600), "wb") as file:
        file.write(os.fsencode(folder))
    os.replace(beside, record)
    return folder


def usual(place: str, runtime: str | None) -> list[str]:
    """Return the names that follow from the server's directory, the preferred one first."""
    name = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
    paths = []
    if runtime is not None and os.path.isabs(runtime) and _is_private(runtime):
        below = os.path.join(runtime, f"agentbus-{name}")
        if len(os.fsencode(below)) <= _LONGEST:
            paths.append(below)
    return [*paths, f"{_SHARED}/agentbus-{os.getuid()}-{name}"]


def is_taken(path: str) -> bool:
    """Report whether something is at a path that is not a directory of this user's."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid()


def _is_private(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    )


def _recorded(place: str) -> str | None:
    try:
        if os.lstat(place).st_uid != os.getuid():
            return None
        with open(os.path.join(place, _RECORD), "rb") as file:
            folder = os.fsdecode(file.read(_LONGEST + 1))
    except OSError:
        return None
    if not os.path.isabs(folder) or len(os.fsencode(folder)) > _LONGEST or is_taken(folder):
        return None
    # Gone with the session whose XDG_RUNTIME_DIR it was in.
    return folder if os.path.isdir(folder) else None
