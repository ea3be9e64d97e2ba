"""Has a signal that ends a waiting verb logged."""

from __future__ import annotations

import contextlib
import signal

from agentbus.commands import _signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def noted(last: Callable[[int, str], None]) -> Iterator[None]:
    """Call `last` with the exit code and the outcome if SIGTERM or SIGHUP ends this process at once.

    A handler that the verb installs itself takes precedence.
    """

    def act(number: int, _frame: object) -> None:
        last(128 + number, f"ended by {signal.Signals(number).name}")
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    hearing = _signals.heard(act, *numbers) if numbers else contextlib.nullcontext()
    with hearing, _signals.leaving(last):
        yield
