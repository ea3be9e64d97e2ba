"""A realistic project: a dozen agents that build a shop, fifteen queues, and the last hour of their work.

    with demo(place) as project:
        print(project.url, project.name)

Everything is written through the library, on a server whose clock is set back and moves on to the end,
which is the same at each run. Workers and waiting agents live until the block ends.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import threading
from collections.abc import Callable, Iterator

import agentbus
from tests.screenshots import demo_events, demo_talk, demo_work
from tests.screenshots.clock import END, DemoClock
from tests.torture.server import DisposableServer

NAME = "shop"
# For so many minutes of its past the project has metrics.
HOUR = 60


class Demo:
    """The project while it lives: its server, its clock, and a bus for each agent."""

    name = NAME

    def __init__(self, server: DisposableServer, end: float) -> None:
        self.server = server
        self.url = server.url
        self.clock = DemoClock(server, end)
        # Set at the end: workers finish their tasks, and waiting agents go.
        self.over = threading.Event()
        self.at_end: list[Callable[[], object]] = []
        # The first message of a thread, and a task in the middle of a chain.
        self.thread = self.released = ""
        # The live workers, by queue.
        self.workers: dict[str, agentbus.Worker] = {}
        self._buses: dict[str, agentbus.Bus] = {}

    def bus(self, agent: str) -> agentbus.Bus:
        """Return the bus of an agent."""
        if agent not in self._buses:
            self._buses[agent] = self.clock.bus(NAME, agent)
        return self._buses[agent]

    def own_bus(self, agent: str) -> agentbus.Bus:
        """Open another bus of an agent, for a thread of its own."""
        opened = self.clock.bus(NAME, agent)
        self.at_end.append(opened.close)
        return opened

    def close(self) -> None:
        """End all that lives."""
        self.over.set()
        for end in reversed(self.at_end):
            end()
        for bus in self._buses.values():
            bus.close()


@contextlib.contextmanager
def demo(place: pathlib.Path, *, end: float = END) -> Iterator[Demo]:
    """Start a server with the project; `end` is the unix time that it then shows."""
    with DisposableServer(place / "server", "--appendfsync", "everysec", clock=True) as server:
        project = Demo(server, end)
        try:
            with demo_events.ledger(place) as ledger, _quiet():
                _live(project, ledger)
            yield project
        finally:
            project.close()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out of the log what is meant to fail."""
    logger = logging.getLogger("agentbus")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def _live(project: Demo, ledger: demo_events.Ledger) -> None:
    """Let the project's last day pass."""
    minutes: dict[float, list[Callable[[Demo], object]]] = {}
    for part in (demo_talk.DAY, demo_work.DAY):
        for before, happens in part:
            minutes.setdefault(before, []).append(happens)
    for third in range(3 * HOUR, 0, -1):
        minutes.setdefault(third / 3, []).append(demo_work.metrics(third / 3))
    for before in sorted(minutes, reverse=True):
        project.clock.before(before)
        for happens in minutes[before]:
            happens(project)
    demo_events.happen(project, ledger)
    project.clock.before(0)
    demo_talk.wait(project)
    demo_work.run_on(project)
