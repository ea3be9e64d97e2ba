"""One directory for what this process's Spark needs while it runs, removed when the process ends."""

from __future__ import annotations

import atexit
import functools
import os
import pathlib
import shutil
import tempfile


@functools.cache
def place() -> pathlib.Path:
    """Return the directory, made when it is first asked for."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="agentbus-spark-"))
    atexit.register(_remove, made, os.getpid())
    return made


def clear() -> None:
    """Remove the directory now, for who ends this process without Python's own farewell."""
    if place.cache_info().currsize:
        _remove(place(), os.getpid())
        place.cache_clear()


def _remove(made: pathlib.Path, owner: int) -> None:
    # A fork inherits what is registered, and must leave its parent's files alone.
    if os.getpid() == owner:
        shutil.rmtree(made, ignore_errors=True)
