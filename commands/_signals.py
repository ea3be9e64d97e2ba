"""Installs signal handlers for the length of a `with` block."""

from __future__ import annotations

import contextlib
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn, TypeVar

    T = TypeVar("T", bound=Callable[[int, object], object])

# What is to be logged before the process is left at once.
_last_words: list[Callable[[int, str], None]] = []
ENDING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def leaving(last: Callable[[int, str], None]) -> Iterator[None]:
    """Have `leave` call a function with the exit code and the outcome."""
    _last_words.append(last)
    try:
        yield
    finally:
        _last_words.remove(last)


def leave(code: int, outcome: str) -> NoReturn:
    """End this process at once, after the outcome was logged."""
    for last in _last_words:
        last(code, outcome)
    os._exit(code)


@contextlib.contextmanager
def heard(act: T, *numbers: signal.Signals) -> Iterator[T]:
    """Call a function for these signals (default: SIGINT and SIGTERM); restore the old handlers at the end.

    Only for the main thread.
    """
    before = {number: signal.signal(number, act) for number in numbers or ENDING}
    try:
        yield act
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
