"""One call of a tool of the MCP server: its output and its connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from agentbus.agents.tools import LONGEST_WAIT
from agentbus.commands import _declare
from agentbus.commands._declare import Args, Call
from agentbus.commands._output import Out, plain
from agentbus.core.errors import AgentBusError
from agentbus.core.oplog import write

if TYPE_CHECKING:
    from agentbus.client.bus import Bus
    from agentbus.core.settings import Settings
    from agentbus.store.connection import Backend
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Link, Op, Step

    Opened = tuple[Backend, Scope, Link]

T = TypeVar("T")


class Captured(Out):
    """Collects a verb's output, as text and as fields."""

    def __init__(self) -> None:
        super().__init__(json=False)
        self.fields = self.text = True
        self.records: list[Mapping[str, object]] = []
        self.lines: list[str] = []

    def record(self, fields: Mapping[str, object], text: str, red: str = "") -> None:
        if fields:
            self.records.append(fields)
        if text and self.text:
            self.lines.append(plain(text))

    def drawn(self, line: str) -> None:
        self.lines.append(line)

    def exactly(self, data: bytes) -> None:
        self.lines.append(data.decode("utf-8", "backslashreplace").removesuffix("\n"))

    def warn(self, text: str) -> None:
        self.lines.append(f"({plain(text)})")


class Links:
    """The connections for one agent's calls, each used by one call at a time."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._free: list[Opened] = []
        self._bus: Bus | None = None

    @property
    def bus(self) -> Bus:
        """The bus for verbs that use one; threads may share it."""
        if self._bus is None:
            self._bus = _declare.open_bus(self.settings)
        return self._bus

    def take(self) -> Opened | None:
        """Return a connection that no call uses, or None."""
        try:
            return self._free.pop()
        except IndexError:
            return None

    def put(self, opened: Opened) -> None:
        """Keep a connection for the next call."""
        self._free.append(opened)

    def close(self) -> None:
        """Close the connections, which no call uses any more."""
        while (opened := self.take()) is not None:
            opened[2].close()
        if self._bus is not None:
            self._bus.close()


class ToolCall(Call):
    """One call of a tool: its output is kept in memory, and its connection is used again."""

    def __init__(self, links: Links, given: dict[str, Any], wanted: Callable[[], bool]) -> None:
        super().__init__(Args(), links.settings)
        self.given = given
        self._wanted = wanted
        self.captured = Captured()
        self._out = self.captured
        self._links = links
        # Functions that mark messages as read; their argument tells whether the client took the
        # result.
        self.after: list[Callable[[bool], object]] = []

    @property
    def bus(self) -> Bus:
        return self._links.bus

    def enter(self) -> Scope:
        if self._link is None:
            opened = self._links.take()
            if opened is None:
                return super().enter()
            self._backend, self._scope, self._link = opened
        return self._scope

    def run(self, op: Op[T], *, patience: float = 0.0) -> T:
        link = self._link
        if not patience or link is None:
            return super().run(op, patience=patience)
        self._link = _CancellableLink(link, self._wanted)
        try:
            return super().run(op, patience=patience)
        finally:
            self._link = link

    def finish(self, taken: bool) -> None:
        """Mark as read what the client took, or give it back, and release the connection."""
        try:
            for step in self.after:
                step(taken)
        except AgentBusError as error:
            # The client does not wait for this: messages that were shown will be shown again.
            write("warning", self.settings.log_level, {"verb": "mcp", "outcome": error.message})
            return
        if self._link is not None:
            self._links.put((self._backend, self._scope, self._link))
            self._link = None

    def verb(self, called: str, **values: object) -> None:
        """Run a verb with these parameter values."""
        module = _declare.module(called)
        initial = {param.dest: param.initial() for param in module.VERB.params}
        self.args = Args(**{**initial, **values})
        module.run(self)

    def wait(self) -> float | None:
        """Return the seconds that the call may wait; None if no waiting is requested."""
        wait = self.given.get("wait")
        return None if wait is None else max(0.0, min(float(wait), LONGEST_WAIT))


class _CancellableLink:
    """A link on which an operation ends after a wait if its call was cancelled."""

    def __init__(self, link: Link, wanted: Callable[[], bool]) -> None:
        self.name, self.close = link.name, link.close
        self._link = link
        self._wanted = wanted

    def execute(self, step: Step) -> Any:
        """Exchange one step with the server. Raises `AgentBusError` if the call was cancelled."""
        reply = self._link.execute(step)
        if step.blocks and not self._wanted():
            raise AgentBusError("the client has cancelled the call", hint="call again")
        return reply
