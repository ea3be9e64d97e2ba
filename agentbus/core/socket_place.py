"""Chooses the directory of the embedded server's socket if the path in the server's directory is too long.

It is a directory below XDG_RUNTIME_DIR or else /tmp, whose name is derived from the server's directory; if
another user has taken these names, it is one below /tmp with a random name. The choice is recorded in the
server's directory, because processes of a user may have different environments.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile

from agentbus.core.settings_check import own_directory

_RECORD = "socket-directory"
_SHARED = "/tmp"
# Paths up to this length leave room for the socket's name.
_LONGEST = 88


def find(place: str, runtime: str | None) -> str | None:
    """Return the socket's directory for the server in `place`; None while every candidate is taken.

    `runtime` is XDG_RUNTIME_DIR. The directory need not exist yet.
    """
    recorded = _recorded(place)
    if recorded is not None:
        return recorded
    return next((each for each in usual(place, runtime) if not is_taken(each)), None)


def make(place: str, runtime: str | None) -> str:
    """Create the socket's directory, private to this user, record it, and return it.

    `place` belongs to this user. Only one process at a time may call this.
    """
    folder = find(place, runtime)
    try:
        if folder is not None and not os.path.lexists(folder):
            os.mkdir(folder, 0o700)
    except FileExistsError:
        # Another process took the name after it was looked up, or this user created the directory.
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
    """Return the candidates derived from the server's directory, the preferred one first."""
    name = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
    paths = []
    if runtime is not None and os.path.isabs(runtime) and _is_private(runtime):
        below = os.path.join(runtime, f"agentbus-{name}")
        if len(os.fsencode(below)) <= _LONGEST:
            paths.append(below)
    return [*paths, f"{_SHARED}/agentbus-{os.getuid()}-{name}"]


def is_taken(path: str) -> bool:
    """Report whether a path exists and is not a directory of this user's."""
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
    # The directory disappears with the login session that owns XDG_RUNTIME_DIR.
    return folder if os.path.isdir(folder) else None
