"""`top` on a terminal: its size changes, keys come in pieces, its server goes away, texts are hostile."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator

import pytest
from rich.cells import cell_len

import agentbus
from agentbus.commands._top_view import View
from agentbus.coordination import presence
from agentbus.core.keys import Keys
from agentbus.dashboard import Dashboard
from agentbus.errors import AgentBusError
from agentbus.store.scope import Scope
from tests.hostile import NASTY, is_body, is_name
from tests.servers import Shell, ask
from tests.terminals import Terminal
from tests.tiers import sampled

Open = Callable[..., Terminal]
KEYS = "1-5 pane"
# Those that some field may hold: no lone surrogates.
TEXTS = [text for text in (*NASTY, *(f"a{one}b" for one in NASTY)) if is_body(text)][:60]


@pytest.fixture
def opened(shell: Shell) -> Iterator[Open]:
    terminals = []

    def open_(*args: str, columns: int = 100, lines: int = 30) -> Terminal:
        terminals.append(Terminal(shell, "top", *args, columns=columns, lines=lines))
        return terminals[-1]

    yield open_
    for one in terminals:
        one.close()


@pytest.fixture
def open_bus(real_url: str, project: str) -> Iterator[Callable[[str], agentbus.Bus]]:
    """Return what opens a bus for an agent on a real server."""
    with contextlib.ExitStack() as opened_:

        def open_(agent: str) -> agentbus.Bus:
            return opened_.enter_context(agentbus.connect(real_url, project=project, agent=agent))

        yield open_


def broken(lines: list[str], columns: int, height: int) -> list[str]:
    """Return what does not fit a terminal."""
    return [line for line in lines if cell_len(line) > columns] + lines[height:]


def whole(terminal: Terminal) -> list[str]:
    """Wait for another frame, and return the newest that is whole: its last line has the keys."""
    terminal.read_new(KEYS)
    return [one for one in terminal.frames() if one and KEYS in one[-1]][-1]


# -- sizes --


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (40, 10)])
def test_a_terminal_that_becomes_smaller_is_redrawn_in_its_size(opened, shell, columns, lines):
    shell.ok("publish", "mail", "x")
    terminal = opened("--every", "0.2", columns=160, lines=50)
    assert broken(whole(terminal), columns, lines)

    terminal.resize(columns, lines)
    while broken(frame := whole(terminal), columns, lines):
        pass

    assert len(frame) == lines
    assert any("mail" in line for line in frame)


@pytest.mark.parametrize("line", [("top",), ("health", "--watch")])
def test_a_screen_is_utf_8_whatever_pythons_own_encoding_is(shell, open_bus, real_url, line):
    queue = open_bus("ada").queue("größer")
    queue.publish(1)
    (one,) = queue.fetch()
    one.bury("broken")
    shell.environment |= {"AGENTBUS_URL": real_url, "PYTHONIOENCODING": "ascii"}
    terminal = Terminal(shell, *line)
    try:
        terminal.read_until("größer")
    finally:
        terminal.close()


# -- keys --


def test_keys_that_arrive_in_pieces_are_keys(opened, shell):
    shell.ok("publish", "mail", "x")
    shell.ok("publish", "größer", "x")
    terminal = opened("--every", "0.2")
    terminal.read_until("BACKLOG")

    for byte in "/ö\r".encode():
        terminal.send(bytes([byte]))
        terminal.read_new("queues 2")
    while "mail" in "".join(whole(terminal)):
        pass
    # An escape by itself is a key after a moment, which a busy machine may take to send the next byte.
    for piece in (b"\x1b[", b"B", b"\x1b[", b"A", b"\r"):
        terminal.send(piece)
    terminal.read_until("[all] waiting")

    assert "größer" in "".join(terminal.frames()[-1])


def test_an_escape_alone_is_a_key_of_its_own(opened, shell):
    shell.ok("publish", "mail", "x")
    terminal = opened("--every", "30")
    terminal.read_until("BACKLOG")
    terminal.press("\r")
    terminal.read_until("[all] waiting")

    terminal.press("\x1b")

    assert "BACKLOG" in terminal.read_new("BACKLOG")


# -- a server that goes away --


def test_a_view_whose_server_is_killed_says_since_when_and_goes_on_by_itself(own_server, shell):
    shell.environment["AGENTBUS_URL"] = own_server.url
    shell.ok("publish", "mail", "x")
    shell.ok("speak", "before")
    terminal = Terminal(shell, "top", "--every", "0.2", "--deadline", "1", columns=100)
    try:
        terminal.read_until("BACKLOG")
        terminal.press("2")
        terminal.read_until("before")
        own_server.kill()
        killed = time.time()

        terminal.read_until("BLIND for")
        since = re.search(r"BLIND for \S+ since (\d\d:\d\d:\d\d)", "".join(whole(terminal)))
        assert since is not None
        # When the last frame came: before that, if the machine was slow.
        seconds = {time.strftime("%H:%M:%S", time.gmtime(killed + at)) for at in range(-30, 2)}
        assert since[1] in seconds
        # It answers keys.
        terminal.press("3")
        terminal.read_new("BACKLOG")
        own_server.start()
        shell.ok("speak", "after")
        terminal.press("2")
        terminal.read_until("after")
        assert "BLIND" not in "".join(whole(terminal))
        assert terminal.process.poll() is None
    finally:
        terminal.close()


# -- hostile texts --

# In a terminal's output: colours, places, and what switches the screen or the cursor.
OURS = re.compile(r"\x1b\[(\?(25|1049)[hl]|[0-9;]*[mHJK])|\r?\n")


def spoil(bus: agentbus.Bus, open_bus: Callable[[str], agentbus.Bus], text: str) -> None:
    """Put a text into every field of every pane, or beside it where the rules refuse it."""
    name = text if is_name(text) else "plain"
    body = text if is_body(text) else "plain"
    line = body.split("\n", 1)[0][:200] or "plain"
    with contextlib.suppress(AgentBusError):
        open_bus(name).here(doing=line)
    place = dict.fromkeys(("client", "session", "host", "cwd", "branch"), line)
    bus.runner.run(presence.here(Scope(bus.project, f"x{len(line)}"), doing=line, place=place))
    bus.speak(body, topic=name)
    queue = bus.queue(name) if not name.startswith("~") else bus.queue("plain")
    queue.publish({"text": body}, headers={"h": line}, correlation_id=name)
    queue.publish(body)
    for delivery in queue.fetch(group=name, count=2):
        delivery.bury(body)
    bus.announce(name, ttl=60)
    bus.announce(f"{name}.", force=True)
    bus.fail(f"{name}.", note=line)
    with contextlib.suppress(AgentBusError):
        bus.lease(f"src/{name}", why=line).__enter__()
    about = f"{name}\nsatisfied\n{line}\n1000\nx"
    ask(bus, "ZADD", Keys(bus.project).waiting, int(time.time() * 1000) + 60_000, about)
    with contextlib.suppress(AgentBusError):
        bus.pause(queue=queue.name, why=line, wait=0)
        bus.halt(why=line, wait=0)


def each_screen(view: View, bus: agentbus.Bus, size: tuple[int, int]) -> Iterator[list[str]]:
    """Draw every pane, each of its pages, and what its first rows open."""
    dashboard = Dashboard(bus)

    def read() -> list[str]:
        detail = view.stack[-1] if view.stack else None
        lines = [] if detail is None else detail.read(bus, dashboard)
        view.frame(dashboard.snapshot(**view.wanted(size[1]).rows), detail, lines)
        return [one.plain for one in view.draw(*size, 0.0)]

    for pane in "12345":
        view.press(pane)
        for keys in (("home",), ("down", "down"), ("pagedown",), ("end",)):
            for key in keys:
                view.press(key)
            yield read()
            for _ in range(3):
                view.press("enter")
                yield read()
                view.press("end")
                yield read()
            while view.stack:
                view.press("esc")


@pytest.mark.parametrize("text", sampled(TEXTS, 20), ids=ascii)
def test_a_hostile_text_in_any_field_stays_text_and_breaks_no_line(open_bus, text):
    bus = open_bus("ada")
    spoil(bus, open_bus, text)
    view = View(1.0)
    view.frame(Dashboard(bus).snapshot(), None, [])

    for size in ((80, 24), (40, 10)):
        for lines in each_screen(view, bus, size):
            assert len(lines) == size[1]
            assert broken(lines, *size) == []
            assert all(line.isprintable() for line in lines), lines


def test_hostile_texts_send_a_terminal_nothing_that_it_obeys(opened, shell, open_bus, real_url):
    shell.environment |= {"AGENTBUS_URL": real_url}
    bus = open_bus("ada")
    for text in TEXTS:
        spoil(bus, open_bus, text)
    terminal = opened("--every", "0.2", columns=120, lines=40)
    terminal.read_until(KEYS)

    for pane in "12345":
        terminal.press(pane)
        whole(terminal)
        terminal.press("\r")
        whole(terminal)
        terminal.press("\x1b")
        whole(terminal)
    terminal.press("q")
    terminal.read_to_the_end()

    left = OURS.sub("", terminal.shown)
    assert left.isprintable(), [one for one in left if not one.isprintable()]
    assert [broken(one, 120, 40) for one in terminal.frames()[:-1] if broken(one, 120, 40)] == []
