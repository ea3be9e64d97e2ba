"""Reads stdin and writes stdout or stderr, also where the client's ends of them do not block."""

from __future__ import annotations

import os


def read(most: int) -> bytes:
    """Return what is on stdin, at most so many bytes, as soon as there is something; b'' at its end."""
    while True:
        try:
            return os.read(0, most)
        except BlockingIOError:
            import select

            select.select([0], [], [])


def write(descriptor: int, data: bytes) -> None:
    """Write all of it. Raises `OSError` if nobody reads it."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            import select

            select.select([], [descriptor], [])
