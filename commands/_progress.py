"""A line on a terminal that says how far a long drain is; it leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Self

from agentbus.commands._out import plain, to_stderr
from agentbus.commands._table import age, number
from agentbus.core.errors import AgentBusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A short drain needs no line; a long one gets five a second, of figures a second old at most.
_PATIENCE = 1.0
_REDRAWN = 0.2
_ASKED = 1.0
# Speed is measured over so many answers.
_REMEMBERED = 10
# What a terminal has that does not say.
_COLUMNS = 80


def wanted(*, json: bool, term: str) -> bool:
    """Tell whether somebody looks at stderr who would want to see it."""
    return not json and term != "dumb" and os.isatty(2)


class Line:
    """A line on a terminal's stderr that is drawn over, and taken away at the end of a `with` block."""

    def __init__(self) -> None:
        self._shown = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Draw a text in place of the one before."""
        try:
            columns = os.get_terminal_size(2).columns or _COLUMNS
        except OSError:
            return
        # The last column stays empty: some terminals begin a new line after it.
        text = _narrow(plain(text), max(1, columns - 1))
        size = _width(text)
        to_stderr(f"\r{text}{' ' * (self._shown - size)}")
        self._shown = size

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            to_stderr(f"\r{' ' * self._shown}\r")
            self._shown = 0


class Progress:
    """Shows done, left, speed and the time it may take, while a `with` block runs.

    No colours and no control sequences, only a carriage return: so any terminal will do.
    """

    def __init__(self, what: str, done: Callable[[], int], left: Callable[[], int]) -> None:
        self._what = what
        self._done = done
        self._left = left
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._line = Line()
        self._open_line = False
        # When it was asked, how many were done, how many left.
        self._known: deque[tuple[float, int, int]] = deque(maxlen=_REMEMBERED)

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        with self._lock:
            # Whoever draws holds the lock, so nothing comes after this.
            self._over.set()
            self._line.clear()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Take the line away while something else is written."""
        with self._lock:
            self._line.clear()
            yield

    def pass_on(self, data: bytes) -> None:
        """Write what a program said to stderr; an unfinished line of it is not drawn over."""
        with self.aside(), contextlib.suppress(OSError):
            self._open_line = not data.endswith(b"\n")
            os.write(2, data)

    def line(self, now: float) -> str:
        """Return what is shown."""
        done = self._done()
        if not self._known:
            return f"{self._what}: {done} done"
        (then, before, left), (asked, known, rest) = self._known[0], self._known[-1]
        remaining = max(0, rest - (done - known))
        text = f"{self._what}: {done} done, {remaining} left"
        if asked == then:
            return text
        text += f", {number(max(0.0, (done - before) / (now - then)))}/s"
        # Other workers may help: what counts is how fast the rest becomes less.
        gone = (left - rest) / (asked - then)
        return text + (f", about {age(round(remaining / gone))}" if gone > 0 else "")

    def _run(self) -> None:
        asked = 0.0
        wait = _PATIENCE
        while not self._over.wait(wait):
            wait = _REDRAWN
            now = time.monotonic()
            if now - asked >= _ASKED:
                asked = now
                with contextlib.suppress(AgentBusError):
                    self._known.append((now, self._done(), self._left()))
            with self._lock:
                if not self._over.is_set() and not self._open_line:
                    self._line.show(self.line(time.monotonic()))


class Share(Progress):
    """Shows how much of a known number is done, in percent too, while a `with` block runs."""

    def __init__(self, what: str, done: Callable[[], int], rows: int) -> None:
        # Asked once a second, not whenever the line is drawn.
        self._last = 0

        def left() -> int:
            self._last = done()
            return rows - self._last

        super().__init__(what, lambda: self._last, left)
        self._rows = rows

    def line(self, now: float) -> str:
        """Return what is shown."""
        done = self._last
        text = f"{self._what}: {done} of {self._rows} rows, {100 * done // max(self._rows, 1)} %"
        if len(self._known) < 2:
            return text
        (then, _, before), (asked, _, rest) = self._known[0], self._known[-1]
        speed = (before - rest) / (asked - then)
        text += f", {number(max(0.0, speed))}/s"
        return text + (f", about {age(rest / speed)}" if speed > 0 and rest > 0 else "")


def _width(text: str) -> int:
    """Return at most how many columns a text takes."""
    return sum(1 if c.isascii() else 2 for c in text)


def _narrow(text: str, columns: int) -> str:
    if _width(text) <= columns:
        return text
    while text and _width(text) > columns - 3:
        text = text[:-1]
    return f"{text}..."[:columns] if columns < 3 else f"{text}..."
