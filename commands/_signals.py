"""Installs signal handlers for the duration of a `with` block."""

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
    """Call a function for these signals (default: SIGINT, SIGTERM); restore the old handlers.

    An ignored SIGHUP stays ignored, as under `nohup`. Only for the main thread.
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
    """Leave the block at SIGTERM or SIGHUP as at a Ctrl-C, then raise the signal again.

    Only for the main thread.
    """
    told: list[int] = []

    def leave(number: int, _frame: object) -> None:
        # A further signal must not interrupt the cleanup that the first one began.
        if not told:
            told.append(number)
            raise KeyboardInterrupt

    try:
        with heard(leave, *_FATAL):
            yield
    finally:
        # Raise the signal even if the terminal is gone and cannot be restored.
        if told:
            signal.raise_signal(told[0])
