"""What keeps agents from triggering each other for ever: a task remembers the agents that it passed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core import envelope

if TYPE_CHECKING:
    # Agents in their order, each with the unix time in ms at which it was triggered.
    Trail = list[tuple[str, int]]

_LONGEST = 1_000


def trail_of(meta: dict[str, Any], payload: object) -> Trail:
    """Return the agents that a task passed. Raises `ValueError` if it carries anything else."""
    found = envelope.trail_of(meta, payload)
    if found is None:
        return []
    if not isinstance(found, list) or len(found) > _LONGEST:
        raise ValueError("its trail is no list of agents")
    return [_passed(each) for each in found]


def _passed(each: object) -> tuple[str, int]:
    match each:
        case [str(agent), int(at)]:
            return agent, at
    raise ValueError("its trail is no list of agents and times")


def circle(trail: Trail, agent: str, *, depth: int, window: float, now: int) -> str | None:
    """Return why an agent is not to be triggered by a task that came this way, None if it may.

    Where it was triggered within the last `window` seconds already, or more than `depth` agents would
    have triggered each other. `now` is in ms.
    """
    names = [name for name, _ in trail]
    way = " → ".join((*names[-depth - 1 :], agent))
    if any(name == agent and at > now - window * 1000 for name, at in trail):
        return f"it goes in a circle: {way}"
    if len(trail) >= depth:
        return f"more than {depth} agents triggered each other: {way}"
    return None
