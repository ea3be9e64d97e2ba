"""Waits until agents are idle or gone.

A hook that ends a turn or a session rings the bell of the agent's inbox. A process that was killed
rings nothing, so the presence is also read every few seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.coordination import address, inbox, presence, tell
from agentbus.core import names
from agentbus.core.errors import TimedOut, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentbus.coordination.address import AgentAddress
    from agentbus.coordination.presence import Presence
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Seconds between two checks for processes that were killed.
_RECHECK = 5.0


@dataclass(frozen=True, slots=True)
class AgentState:
    """The state of an agent that ended a wait: `idle` or `gone`; `waited` is in seconds.

    `seen` is the unix time of the agent's last activity.
    """

    agent: str
    state: str
    seen: float
    waited: float


def await_agents(
    scope: Scope,
    *,
    idle: Sequence[str] = (),
    gone: Sequence[str] = (),
    any_: bool = False,
    timeout: float | None = 1800,
) -> Op[list[AgentState]]:
    """Block until each of these agents (or any one) is idle, or gone; an agent that is gone is idle.

    Raises `TimedOut`, `NoSuchAgent` for an agent that never used the project, and `UsageError` for this
    agent, and for one whose turns nothing records.
    """
    wanted = [(names.name("agent", agent), "idle") for agent in names.items("agent", idle)]
    wanted += [(names.name("agent", agent), "gone") for agent in names.items("agent", gone)]
    wanted = [*dict.fromkeys(wanted)]
    agents = [*dict.fromkeys(agent for agent, _ in wanted)]
    if not agents:
        raise UsageError("no agent was named", hint="name at least one")
    names.at_most("agent", len(agents))
    addresses = yield from address.find_all(scope, agents)
    if any((each.keys, each.name) == (scope.keys, scope.agent) for each in addresses):
        raise UsageError("this agent would wait for itself", hint="name another agent")
    began, met = scope.monotonic(), dict[tuple[str, str], AgentState]()
    bells = [each.keys.inbox_bell(each.name) for each in addresses]
    places = dict(zip(agents, addresses, strict=True))
    first = True
    while True:
        tails = yield from inbox.last_rings(bells)
        now, known = yield from _read(scope, places)
        if first:
            yield from _check(scope, places, wanted, known, now)
        first, waited = False, scope.monotonic() - began
        met = {
            (agent, until): AgentState(agent, state, known[agent].seen, waited)
            for agent, until in wanted
            if (state := state_now(known[agent], now)) == until or state == "gone"
        }
        if len(met) == len(wanted) or (any_ and met):
            return [*met.values()]
        left = timeout - waited if timeout else _RECHECK
        if left <= 0:
            awaited = [f"{names.word(agent)} to be {until}" for agent, until in wanted]
            raise TimedOut(
                f"waited {timeout:g} s for {' and '.join(awaited)}",
                hint="bus.present(all=True) returns what each agent does",
                shell_hint="see 'agentbus who --all' for what each agent does",
            )
        yield inbox.next_ring(tails, min(left, _RECHECK))


def _read(
    scope: Scope, places: Mapping[str, AgentAddress]
) -> Op[tuple[float, dict[str, Presence]]]:
    """Return the server's time, and the presence of each agent; its time is 0 if it was never seen."""
    known: dict[str, Presence] = {}
    now = 0.0
    for project in {each.keys.project for each in places.values()}:
        agents = [agent for agent, each in places.items() if each.keys.project == project]
        there = address.at(scope, places[agents[0]])
        for at in range(0, len(agents), presence.AT_ONCE):
            page = agents[at : at + presence.AT_ONCE]
            now, read = yield from presence.seen(there, [places[agent].name for agent in page])
            known |= dict(zip(page, read, strict=True))
    return now, known


def _check(
    scope: Scope,
    places: Mapping[str, AgentAddress],
    wanted: Sequence[tuple[str, str]],
    known: dict[str, Presence],
    now: float,
) -> Op[None]:
    unknown = [agent for agent, each in known.items() if not each.seen and each.state is None]
    if unknown:
        elsewhere = {places[agent].keys.project: places[agent].keys for agent in unknown}
        raise (yield from tell.nobody(scope, unknown, elsewhere))
    for agent, until in wanted:
        if until == "idle" and state_now(known[agent], now) is None:
            raise UsageError(
                f"nothing records the turns of {names.word(agent)}, so it is never idle",
                hint="wait until it is gone, or for a flag",
                shell_hint="wait with --gone, or for a flag",
            )


def state_now(known: Presence, now: float) -> str | None:
    """Return an agent's state; one that only used the channel is gone when it is not present."""
    return known.state if presence.is_there(known, now) else "gone"
