"""Installs signal handlers for the length of a `with` block."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T", bound=Callable[[int, object], object])

ENDING = (signal.SIGINT, signal.SIGTERM)
_FATAL = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def heard(act: T, *numbers: signal.Signals) -> Iterator[T]:
    """Call a function for these signals (default: SIGINT and SIGTERM); restore the old handlers at the end.

    An ignored SIGHUP stays ignored: `nohup` has it so. Only for the main thread.
    """
    before = {
        number: signal.signal(number, act)
        for number in numbers or ENDING
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield act
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def unwound() -> Iterator[None]:
    """Leave the block at SIGTERM or SIGHUP as at a Ctrl-C, then do what the signal does without it.

    Only for the main thread.
    """
    told: list[int] = []

    def leave(number: int, _frame: object) -> None:
        # Another one must not interrupt what the first has begun.
        if not told:
            told.append(number)
            raise KeyboardInterrupt

    try:
        with heard(leave, *_FATAL):
            yield
    finally:
        # Also where the terminal is gone, and cannot be restored.
        if told:
            signal.raise_signal(told[0])
