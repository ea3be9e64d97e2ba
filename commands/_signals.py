"""Signals that end a verb: what they do for a while, and then no more."""

from __future__ import annotations

import contextlib
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def heard(act: Callable[[int, object], object], *numbers: signal.Signals) -> Iterator[None]:
    """Have these signals, or else those that end a verb, call a function with their number.

    What they did before, they do again at the end. To be used in the main thread.
    """
    before = {number: signal.signal(number, act) for number in numbers or ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
