"""What the state machines share: a project on a server, a bus for each agent, time that passes."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

import agentbus
from agentbus.core.keys import Keys
from agentbus.core.stream import fields, text
from agentbus.store.steps import Batch
from tests import profiles
from tests.servers import ask

_numbers = itertools.count()


class Machine(RuleBasedStateMachine):
    """One project under test; `url` is set by `run`."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.project = f"machine-{os.getpid()}-{next(_numbers)}"
        self.keys = Keys(self.project)
        self._buses: dict[str, agentbus.Bus] = {}
        self._said: list[dict[str, str]] = []
        self._heard_to = "-"

    def bus(self, agent: str = "ada") -> agentbus.Bus:
        """Return this agent's bus, which stays open until the end."""
        if agent not in self._buses:
            self._buses[agent] = agentbus.connect(self.url, project=self.project, agent=agent)
        return self._buses[agent]

    def ask(self, *words: str | bytes | int) -> Any:
        """Send one command as another program would."""
        return ask(self.bus(), *words)

    def ask_all(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send several commands at once, and return their replies."""

        def op() -> Any:
            replies = yield Batch(list(commands))
            return replies

        found: list[Any] = self.bus()._run("ask", op())
        return found

    def expire(self, key: str) -> None:
        """Let a key's time be over now; it must have an end."""
        assert self.ask("PTTL", key) > 0
        # fakeredis keeps a key whose time is 0 until it is looked at, as a real server may.
        self.ask("PEXPIRE", key, 0)

    def expect_event(self, agent: str, event: str, **said: str) -> None:
        """Note what the bus is to say next on the channel."""
        self._said.append({"agent_id": agent, "event": event, **said})

    def check_events(self) -> None:
        """Check that exactly what was expected was said since the last look, in this order."""
        start = self._heard_to if self._heard_to == "-" else f"({self._heard_to}"
        found = self.ask("XRANGE", self.keys.channel, start, "+")
        told = [fields(flat) for _, flat in found]
        for one in told:
            del one["message"], one["topic"]
        assert told == self._said
        self._said.clear()
        if found:
            self._heard_to = text(found[-1][0])

    def teardown(self) -> None:
        self.bus().clear()
        for bus in self._buses.values():
            bus.close()


def run(machine: type[Machine], url: str) -> None:
    """Run a machine as often as the profile says, on the server at `url`."""
    placed = type(machine.__name__, (machine,), {"url": url})
    with _attentive(url):
        run_state_machine_as_test(placed, settings=profiles.runs())


@contextlib.contextmanager
def _attentive(url: str) -> Iterator[None]:
    """Have a real server see at once that a wait is over, not at its next tick in 100 ms."""
    if url.startswith("memory:"):
        yield
        return
    with agentbus.connect(url, project="machine", agent="ada") as bus:
        ask(bus, "CONFIG", "SET", "hz", 500)
        yield
        ask(bus, "CONFIG", "SET", "hz", 10)


def refused(error: type[agentbus.AgentBusError]) -> Any:
    """Return a context in which this error, and no other, must be raised."""
    return pytest.raises(error)
