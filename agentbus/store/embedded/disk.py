"""Checks by an actual write whether the embedded server's directory is writable.

The server exits when a write does not reach the disk, and often cannot report it, because its log is
usually on the same disk.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from agentbus.core.errors import BackendUnavailable
from agentbus.core.settings import server_directory

REMEDY = "free space there; what was acknowledged is kept, and the server starts again by itself"
# Free space below this is low: rewriting the append-only file needs as much space as the data.
LITTLE = 64 * 1024 * 1024
# Larger than the largest body: a server that starts must be able to write one.
_PROBE = 1024 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Log messages of a server that stopped because its disk is full.
_IN_LOG = ("No space left on device", "Disk quota exceeded", "AOF write error")
_STARTED = " is starting "
_TAIL = 16_384


@dataclass(frozen=True, slots=True)
class Disk:
    """The state of a directory's disk: `free` bytes, and `error`, a sentence if it cannot be written to."""

    directory: str
    free: int
    error: str | None = None


def examine(*, sync: bool = True) -> Disk:
    """Write a mebibyte into the server's directory and remove it; `sync` forces it to disk."""
    place, error = server_directory(), None
    try:
        free = _free(place)
        _write(place, sync=sync)
    except OSError as failure:
        if failure.errno in _FULL:
            free = _free(place)
            error = f"the disk of {place} is full: {size(free)} free"
        else:
            free, error = 0, f"{place} cannot be written to ({failure.strerror})"
    return Disk(place, free, error)


def check() -> None:
    """Raise `BackendUnavailable` if the server could not write to its directory."""
    disk = examine()
    if disk.error is not None:
        raise BackendUnavailable(disk.error, hint=REMEDY)


def trouble(log: str) -> str | None:
    """Return as a sentence why the server ended, if its disk was the reason; `log` is its log's path."""
    disk = examine()
    if disk.error is not None:
        return disk.error
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    # A write was larger than the free space: the server stopped, and may have been restarted once
    # since.
    at = max(map(text.rfind, _IN_LOG))
    if at < 0 or text.count(_STARTED, at) > 1:
        return None
    return f"the disk of {disk.directory} is too full for it: {size(disk.free)} free"


def size(number: int) -> str:
    """Format a number of bytes for people."""
    mebibytes = number / 1048576
    return f"{mebibytes / 1024:.1f} GiB" if mebibytes >= 1024 else f"{mebibytes:.1f} MiB"


def _free(place: str) -> int:
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


def _write(place: str, *, sync: bool) -> None:
    # Do without `tempfile`, which imports a dozen modules.
    path = os.path.join(place, f".room-{os.urandom(8).hex()}")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            left = memoryview(bytes(_PROBE))
            while left:
                left = left[file.write(left) :]
            if sync:
                os.fsync(file.fileno())
    finally:
        os.unlink(path)
