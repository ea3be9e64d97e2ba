"""Small disks, for tests of full ones."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def disk(path: pathlib.Path, options: str) -> Iterator[pathlib.Path]:
    """Mount a disk at a directory, with options of tmpfs; skip where this user may not mount one."""
    path.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("the command `mount` is not installed")
    if done.returncode:
        pytest.skip("this user may not mount a disk")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def small_disk(path: pathlib.Path, size: str) -> contextlib.AbstractContextManager[pathlib.Path]:
    """Mount a disk of a size such as `8m`."""
    return disk(path, f"size={size}")


def fill(path: pathlib.Path) -> None:
    """Write a file until no byte is left."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(65536)) == 65536:
            pass
        while file.write(b"x"):
            pass
