"""The terminal of `top`: a thread reads frames while keys are handled."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import threading
import time
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import ConsoleDimensions, Group

from agentbus.commands import _format, _signals
from agentbus.commands._top_details import DetailLine
from agentbus.commands._top_keys import KeyReader
from agentbus.commands._top_view import READ, View
from agentbus.core.errors import AgentBusError

if TYPE_CHECKING:
    from rich.console import Console

    from agentbus.client.bus import Bus
    from agentbus.commands._top_actions import Action, Person
    from agentbus.commands._top_view import FrameRequest
    from agentbus.dashboard import Dashboard, Snapshot

# Seconds to wait for the rest of a key's sequence: a lone escape is the key Esc.
_REST = 0.05


class Reader:
    """Reads frames in a thread at intervals, and writes to `wake` when a frame is ready."""

    def __init__(
        self,
        bus: Bus,
        dashboard: Dashboard,
        view: View,
        wanted: FrameRequest,
        wake: int,
        person: Person | None,
    ) -> None:
        self._bus = bus
        self._dashboard = dashboard
        self._view = view
        self._wake = wake
        self._changed = threading.Condition()
        self._wanted = wanted
        self._soon = False
        self._ended = False
        self._action: Action | None = None
        self._person: Person | None = person
        self._frames: list[tuple[Snapshot | None, object, object]] = []
        self._thread = threading.Thread(target=self._run, name="frames", daemon=True)
        self._thread.start()

    def want(self, wanted: FrameRequest, *, soon: bool) -> None:
        """Set the content of the next frame; with `soon` it is read at once."""
        with self._changed:
            self._wanted = wanted
            self._soon = self._soon or soon
            self._changed.notify()

    def do(self, action: Action) -> None:
        """Perform a confirmed action before the next frame, which is read at once."""
        with self._changed:
            self._action, self._soon = action, True
            self._changed.notify()

    def take(self) -> list[tuple[Snapshot | None, object, object]]:
        """Return the new frames: snapshot, detail and its lines; or None, a time and a reason."""
        with self._changed:
            frames, self._frames = self._frames, []
        return frames

    def end(self) -> None:
        """Stop reading frames."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _run(self) -> None:
        due = time.monotonic() + self._view.every
        while True:
            with self._changed:
                while not (self._ended or self._soon) and (left := due - time.monotonic()) > 0:
                    self._changed.wait(left)
                if self._ended:
                    return
                self._soon = False
                wanted = self._wanted
                action, self._action = self._action, None
            if action is not None and self._person is not None:
                self._act(self._person, action)
            due = time.monotonic() + self._view.every
            try:
                snapshot = self._dashboard.snapshot(**wanted.rows, messages=READ)
                frame: tuple[Snapshot | None, object, object] = (
                    *(snapshot, wanted.detail),
                    self._lines(wanted),
                )
            except AgentBusError as error:
                error.name_operation("top")
                frame = (None, time.time(), error.message)
            with self._changed:
                self._frames.append(frame)
            with contextlib.suppress(OSError):
                os.write(self._wake, b"f")

    def _act(self, person: Person, action: Action) -> None:
        try:
            self._view.done = person.act(action)
        except AgentBusError as error:
            self._view.done = f"{action.do}: {error.message}"

    def _lines(self, wanted: FrameRequest) -> object:
        if wanted.detail is None:
            return []
        try:
            return wanted.detail.read(self._bus, self._dashboard)
        except AgentBusError as error:
            if error.exit_code == 1:
                raise
            # The object is gone; the view continues.
            return [DetailLine(error.message, style="yellow")]


def show(
    bus: Bus,
    dashboard: Dashboard,
    first: Snapshot,
    every: float,
    until: float,
    person: Person | None = None,
) -> None:
    """Show frames until `q` is pressed or a monotonic time is reached; a person's keys act."""
    view = View(every, writes=person is not None)
    live = _format.screen()
    console = live.console
    view.wanted(_fit(console)[1])
    view.frame(first, None, [])
    keys, wake = os.pipe()
    os.set_blocking(wake, False)
    last, typed = time.time(), KeyReader()
    # Without a terminal for keys, the view ends with its timeout or a signal.
    watched = [0, keys] if os.isatty(0) else [keys]

    def draw() -> None:
        live.update(Group(*view.draw(*_fit(console), time.time())), refresh=True)

    def resized(_number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            os.write(wake, b"w")

    with _signals.unwound(), _raw(), _signals.heard(resized, signal.SIGWINCH):
        reader = Reader(bus, dashboard, view, view.wanted(console.size.height), wake, person)
        try:
            live.start()
            draw()
            while (left := until - time.monotonic()) > 0:
                # While the server is down, the view counts the seconds.
                most = _REST if typed.waits else max(every, 1.0)
                ready, _, _ = select.select(watched, [], [], min(left, most))
                pressed = _pressed(typed, ready)
                if pressed is None or not all(view.press(key) for key in pressed):
                    return
                if keys in ready:
                    os.read(keys, 1024)
                for snapshot, detail, rest in reader.take():
                    if snapshot is None:
                        view.lost(last, str(rest))
                    else:
                        last = time.time()
                        view.frame(snapshot, detail, rest)  # type: ignore[arg-type]
                if view.confirmed is not None:
                    reader.do(view.confirmed)
                    view.confirmed = None
                reader.want(view.wanted(console.size.height), soon=bool(pressed))
                draw()
        finally:
            reader.end()
            live.stop()
            os.close(keys)
            os.close(wake)


def _pressed(typed: KeyReader, ready: list[int]) -> list[str] | None:
    """Return the complete keys; None at the end of the input."""
    if 0 in ready:
        data = os.read(0, 1024)
        return typed.read(data) if data else None
    # After a frame alone, the rest of a key's sequence may still arrive.
    return [] if ready else typed.rest()


def _fit(console: Console) -> tuple[int, int]:
    """Set the console's size to the terminal's current size, which COLUMNS may not reflect."""
    with contextlib.suppress(OSError):
        columns, lines = os.get_terminal_size(1)
        if columns and lines:
            console.size = ConsoleDimensions(columns, lines)
    return console.size


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Read keys one by one without echo; an interrupt remains an interrupt."""
    if not os.isatty(0):
        yield
        return
    before = termios.tcgetattr(0)
    tty.setcbreak(0, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
