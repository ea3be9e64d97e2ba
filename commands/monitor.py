"""monitor: a live view of messages, flags, leases, notes and queues."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from agentbus.commands import _message, _views
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.commands._output import plain
from agentbus.coordination.leases import shown
from agentbus.core.clock import of_day, rfc3339
from agentbus.core.names import word

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agentbus.client.bus import Bus
    from agentbus.coordination.message import Message

_SHOWN = 20
# More flags do not fit on a screen.
_FLAGS = 200
_LEAST = 0.1
# To find flags and queues, all keys of the server are examined: rest for this multiple of the time it took.
_REST = 9.0


def _interval(text: str) -> float:
    found = seconds(text)
    if found < _LEAST:
        raise ValueError(f"{text!r} is less than {_LEAST} s")
    return found


VERB = Verb(
    "monitor",
    "Watch messages, flags, leases, notes and queues as they change.",
    Param("--timeout S", "Stop after S seconds.", convert=seconds),
    Param(
        "--interval S",
        "On a terminal: look at flags, notes and queues every S seconds (1; at least 0.1).",
        convert=_interval,
        default=1.0,
    ),
    text="On a terminal, a view that is redrawn on changes; elsewhere, a line for each message, at once."
    " It moves no cursor. Stderr names the project, and says if it is empty. JSON: project, and as"
    " overhear.",
    examples=("agentbus monitor", "agentbus monitor --timeout 60 | grep deploy"),
)


def run(call: Call) -> None:
    """Show messages, flags, notes and queues until interrupted."""
    _views.warn_if_empty(call.out, call.bus)
    if call.out.json or not call.out.is_terminal():
        _plain(call)
    else:
        _live(call)


def _plain(call: Call) -> None:
    bus, tail = call.bus, "0-0"
    if not call.out.json:
        call.out.warn(f"messages of the project {bus.project}")
    for message in bus.overhear(last=_SHOWN):
        _message.show_message(call.out, message, bus.project)
        tail = message.id
    for message in bus.overhear(since=tail, follow=True, timeout=call.args.timeout):
        _message.show_message(call.out, message, bus.project)


def _live(call: Call) -> None:
    from rich.console import Console
    from rich.live import Live

    bus = call.bus
    messages: deque[Message] = deque(bus.overhear(last=_SHOWN), maxlen=_SHOWN)
    timeout = call.args.timeout
    until = float("inf") if timeout is None else time.monotonic() + timeout
    console = Console(file=sys.stdout)
    rest = _Rest(bus, call.args.interval)
    live = Live(_view(bus, messages, rest), console=console, screen=True, auto_refresh=False)
    try:
        # Inside the `try`: an interrupt during the first drawing must restore the terminal, too.
        live.start(refresh=True)
        while (left := until - time.monotonic()) > 0:
            tail = messages[-1].id if messages else "0-0"
            wait = min(left, rest.wait())
            for message in bus.overhear(since=tail, follow=True, timeout=wait):
                messages.append(message)
                break
            live.update(_view(bus, messages, rest), refresh=True)
    finally:
        live.stop()
        sys.stdout.flush()


class _Rest:
    """The lines of flags and leases, notes, and queues, read less often if that takes long."""

    def __init__(self, bus: Bus, interval: float) -> None:
        self._bus = bus
        self._interval = interval
        self._next = 0.0
        self._old = False
        self._found: tuple[list[str], list[str], list[str]] = [], [], []

    def read(self) -> tuple[list[str], list[str], list[str]]:
        """Return the lines of flags and leases, of notes, and of queues."""
        bus, began = self._bus, time.monotonic()
        self._old = began < self._next
        if self._old:
            return self._found
        flags = [
            f"{word(f.flag)} {f.state}" + (f" by {word(f.agent_id)}" if f.agent_id else "")
            for f in bus.flags(limit=_FLAGS)
        ]
        flags += [
            f"{word(w.agent_id)} waits for {word(w.flag)} until {w.until} since {rfc3339(w.since)[11:19]}"
            for w in bus.waiters()
        ]
        flags += [
            f"{shown(one.pattern)} leased by {word(one.agent)} until {of_day(one.until)}"
            for one in bus.leases()[:_FLAGS]
        ]
        notes = [word(note.key) for note in bus.list_(latest=_SHOWN)]
        self._found = flags, notes, [*map(word, bus.queues())]
        ended = time.monotonic()
        self._next = ended + _REST * (ended - began)
        return self._found

    def wait(self) -> float:
        """Return how long to wait for a message before the next reading, in seconds."""
        left = max(0.0, self._next - time.monotonic())
        return min(self._interval, left) if self._old else max(self._interval, left)


def _view(bus: Bus, messages: deque[Message], rest: _Rest) -> RenderableType:
    from rich.layout import Layout
    from rich.panel import Panel
    from rich.text import Text

    def panel(title: str, lines: list[str]) -> Panel:
        shown = Text("\n".join(plain(line) for line in lines) or "none", overflow="ellipsis")
        shown.no_wrap = True
        return Panel(shown, title=title, title_align="left")

    spoken = [
        f"{rfc3339(m.timestamp)[11:19]} {_message.line(m.agent_id, m.topic, m.text, notice=m.event)}"
        for m in messages
    ]
    flags, notes, queues = rest.read()
    layout = Layout()
    layout.split_column(
        Layout(panel(f"{bus.project}: messages", spoken), ratio=3), Layout(name="low")
    )
    layout["low"].split_row(
        Layout(panel("flags and leases", flags)),
        Layout(panel("notes", notes)),
        Layout(panel("queues", queues)),
    )
    return layout
