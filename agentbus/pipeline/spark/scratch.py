"""Directories for Spark: one for the lifetime of this process, and others in the user's cache."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable

from agentbus.core import settings
from agentbus.core.settings_check import make_private

# A path of this length leaves room for the name that Spark gives a socket.
_LONGEST = 60


@functools.cache
def place() -> pathlib.Path:
    """Return this process's directory, created by the first call and removed at exit."""
    return _made(None)


@functools.cache
def sockets() -> pathlib.Path:
    """Return a directory as `place` does, whose path is short enough for sockets in it."""
    return place() if len(os.fsencode(place())) <= _LONGEST else _made("/tmp")


def cached(name: str, fill: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """Return a directory in the user's cache, which `fill` fills if it does not exist yet.

    Several processes may call this concurrently. If the cache cannot be written to, as in many
    containers, the directory is created in this process's own directory.
    """
    with contextlib.suppress(OSError):
        return filled(pathlib.Path(settings.cache_directory(), name), fill)
    return filled(place() / name, fill)


def filled(path: pathlib.Path, fill: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """Return a directory that `fill` fills if it does not exist yet; it appears atomically."""
    if path.is_dir():
        return path
    make_private(str(path.parent))
    beside = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        fill(beside)
        try:
            beside.rename(path)
        except OSError:
            # Another process has created the same directory first.
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return path


def clear() -> None:
    """Remove this process's directory now, for a process that exits without exit handlers."""
    for directory in (sockets, place):
        if directory.cache_info().currsize:
            _remove(directory(), os.getpid())
            directory.cache_clear()


def _made(above: str | None) -> pathlib.Path:
    made = pathlib.Path(tempfile.mkdtemp(prefix="agentbus-spark-", dir=above))
    atexit.register(_remove, made, os.getpid())
    return made


def _remove(made: pathlib.Path, owner: int) -> None:
    # A fork inherits the exit handler, and must leave its parent's files alone.
    if os.getpid() == owner:
        shutil.rmtree(made, ignore_errors=True)
