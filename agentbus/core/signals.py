"""Stops long runs at SIGTERM and SIGINT, without locks on which a signal handler could block."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Stoppable(Protocol):
    """An object that can be stopped, also from a signal handler."""

    def stop(self) -> None: ...


S = TypeVar("S", bound=Stoppable)
P = ParamSpec("P")
T = TypeVar("T")

# Python's default handlers of these signals.
_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
# True if a signal has already ended a run in this process; the caller may have missed it.
_ended = False


class StopEvent:
    """An event as in `threading` that a signal handler may set while its own thread waits for it.

    `threading.Event` uses a lock: a handler that interrupted the lock's owner would wait forever.
    """

    def __init__(self) -> None:
        self._set = False
        # Unlike other queues, SimpleQueue is reentrant: `put` may interrupt `get` or another `put`.
        self._bell: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Set the event, and wake all threads that wait for it."""
        self._set = True
        self._bell.put(None)

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set, at most `timeout` seconds, and return whether it is."""
        if not self._set:
            with contextlib.suppress(Empty):
                self._bell.get(timeout=timeout)
                # Pass the bell on, so that the other waiting threads wake too.
                self._bell.put(None)
        return self._set


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGTERM or SIGINT; a second signal ends the process at once.

    This works only in the main thread, and only for signals that the program neither ignores nor handles
    itself; the old handlers are restored afterwards. If a signal has already ended an earlier run, this one
    is also passed on to the old handler after the run: a loop of runs must not swallow every signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []

    def act(number: int, _frame: object) -> None:
        heard.append(number)
        if len(heard) > 1:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop()

    before = {signum: old for signum, old in _DEFAULTS.items() if signal.getsignal(signum) is old}
    for number in before:
        signal.signal(number, act)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
    if heard:
        _pass_on(heard[0])


def stops_at_signals(
    run: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], T]:
    """Decorate a method so that SIGTERM and SIGINT stop its object while it runs."""

    @functools.wraps(run)
    def running(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with stopped_by_signals(self.stop):
            return run(self, *args, **kwargs)

    return running


def _pass_on(number: int) -> None:
    global _ended
    again, _ended = _ended, True
    if again:
        signal.raise_signal(number)
