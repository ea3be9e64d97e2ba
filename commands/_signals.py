"""Installs signal handlers for the length of a `with` block."""

from __future__ import annotations

import contextlib
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def heard(act: Callable[[int, object], object], *numbers: signal.Signals) -> Iterator[None]:
    """Call a function for these signals (default: SIGINT and SIGTERM); restore the old handlers at the end.

    Only for the main thread.
    """
    before = {number: signal.signal(number, act) for number in numbers or ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
