"""A progress line on a terminal's stderr, which is removed at the end."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import Progress, TextColumn

from agentbus.commands._format import age, number
from agentbus.commands._output import plain
from agentbus.core.errors import AgentBusError
from agentbus.core.settings import environment

if TYPE_CHECKING:
    from agentbus.commands._declare import Call

# A verb that takes less time shows no progress; afterwards the figures are redrawn at this
# interval.
_EVERY = 1.0


def wanted(call: Call) -> bool:
    """Tell whether stderr is a terminal that can redraw a line, and the output is not JSON."""
    return not call.out.json and environment().get("TERM") != "dumb" and os.isatty(2)


class Line:
    """A line that is redrawn in place, and removed at the end of a `with` block."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._drawn = Progress(
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            get_time=monotonic,
        )
        self._task = self._drawn.add_task("", total=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Replace the line's text; a terminal that is gone is not an error."""
        # Measure the terminal for each line: it may be resized, and a wrapped line would not be
        # removed completely.
        text = plain(text)
        with contextlib.suppress(OSError):
            # A terminal of unknown width reports 0 columns.
            text = text[: os.get_terminal_size(2).columns or None]
        self._drawn.update(self._task, description=text)
        with contextlib.suppress(OSError):
            self._drawn.start()
            self._drawn.refresh()

    def clear(self) -> None:
        if self._drawn.live.is_started:
            with contextlib.suppress(OSError):
                self._drawn.stop()


class Ticker(Line):
    """Shows a text, redrawn once a second, during a `with` block."""

    def __init__(
        self, text: Callable[[], str], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(monotonic)
        self._text = text
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._open_line = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        with self._lock:
            self.clear()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Remove the line while other output is written."""
        with self._lock:
            self.clear()
            yield

    def pass_on(self, data: bytes) -> None:
        """Write a program's stderr output; the line is not drawn over an unfinished line of it."""
        with self.aside(), contextlib.suppress(OSError):
            self._open_line = not data.endswith(b"\n")
            os.write(2, data)

    def line(self) -> str:
        """Return the text of the line."""
        return self._text()

    def _run(self) -> None:
        while not self._over.wait(_EVERY):
            with contextlib.suppress(AgentBusError):
                text = self.line()
                with self._lock:
                    if not self._over.is_set() and not self._open_line:
                        self.show(text)


class Countdown(Ticker):
    """Shows the completed work, the speed at which the rest shrinks, and the time left.

    `left` returns the amount of work left, and is called once a second. `text` describes the work
    in words.
    """

    def __init__(
        self,
        left: Callable[[], int],
        text: Callable[[int], str],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(lambda: self._said(left(), text), monotonic)

    def _said(self, left: int, text: Callable[[int], str]) -> str:
        task = self._drawn.tasks[0]
        if task.total is None:
            self._drawn.reset(self._task, total=left)
        self._drawn.update(self._task, completed=(task.total or 0) - left)
        said = text(left)
        if task.speed:
            said += f", {number(task.speed)}/s"
            said += f", about {age(left / task.speed)}" if left > 0 else ""
        return said
