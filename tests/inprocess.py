"""Runs command lines inside this process, with their real descriptors, as fast as functions."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import tempfile
import threading
import tty
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from agentbus.commands import _main


class Done(NamedTuple):
    """How a command line ended."""

    code: int
    out: bytes
    err: bytes


_runs: list[str] = []


def used() -> bool:
    """Whether a command line was run since this was last asked."""
    found = bool(_runs)
    _runs.clear()
    return found


def run(*argv: str, stdin: bytes = b"") -> Done:
    """Run one command line; its output goes to files, which never fill up."""
    _runs.append(argv[0] if argv else "")
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out:
        with tempfile.TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            with _standing_in(given.fileno(), out.fileno(), err.fileno()):
                code = _main.run(list(argv))
            out.seek(0)
            err.seek(0)
            return Done(code, out.read(), err.read())


def on_terminal(*argv: str) -> Done:
    """Run one command line, without colours, with both outputs on a terminal that changes nothing."""
    _runs.append(argv[0] if argv else "")
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    shown: list[bytes] = []

    def read() -> None:
        # The end of a terminal is an error, once its last writer is gone.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 65536):
                shown.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with (
            environment({"NO_COLOR": "1"}),
            open(os.devnull, "rb") as nothing,
            _standing_in(nothing.fileno(), theirs, theirs),
        ):
            code = _main.run(list(argv))
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    return Done(code, b"".join(shown), b"")


@contextlib.contextmanager
def environment(changes: dict[str, str], without: Sequence[str] = ()) -> Iterator[None]:
    """Change the environment for a while."""
    before = dict(os.environ)
    try:
        for name in without:
            os.environ.pop(name, None)
        os.environ.update(changes)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _standing_in(*descriptors: int) -> Iterator[None]:
    """Let other files stand in for descriptors 0, 1 and 2."""
    kept = [os.dup(number) for number in range(3)]
    before = sys.stdout, sys.stderr
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        # Help is printed by way of Python's own files, which must lead to the same place.
        with open(1, "w", closefd=False) as out, open(2, "w", closefd=False) as err:
            sys.stdout, sys.stderr = out, err
            yield
    finally:
        sys.stdout, sys.stderr = before
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)
