"""Reads stdin and writes stdout or stderr, even if the client has made them non-blocking."""

from __future__ import annotations

import os


def read(most: int) -> bytes:
    """Read at most `most` bytes from stdin, as soon as any are available; b'' at its end."""
    while True:
        try:
            return os.read(0, most)
        except BlockingIOError:
            import select

            select.select([0], [], [])


def write(descriptor: int, data: bytes) -> None:
    """Write all of the data. Raises `OSError` if the reader is gone."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            import select

            select.select([], [descriptor], [])
