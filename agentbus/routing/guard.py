"""The loop guard: uses a task's trail to stop agents from triggering each other in circles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core import envelope

if TYPE_CHECKING:
    # Agents in order, each with the unix time in ms at which it was triggered.
    Trail = list[tuple[str, int]]

_LONGEST = 1_000


def trail_of(meta: dict[str, Any], payload: object) -> Trail:
    """Return the trail of a task. Raises `ValueError` if it is malformed."""
    found = envelope.trail_of(meta, payload)
    if found is None:
        return []
    if not isinstance(found, list) or len(found) > _LONGEST:
        raise ValueError("its trail is not a list of agents")
    return [_passed(each) for each in found]


def _passed(each: object) -> tuple[str, int]:
    match each:
        case [str(agent), int(at)]:
            return agent, at
    raise ValueError("its trail is not a list of agents and times")


def circle(trail: Trail, agent: str, *, depth: int, window: float, now: int) -> str | None:
    """Return why a task with this trail must not trigger an agent; None if it may.

    A task must not trigger an agent that was triggered within the last `window` seconds, or extend the
    trail beyond `depth` agents. `now` is in ms.
    """
    names = [name for name, _ in trail]
    way = " → ".join((*names[-depth - 1 :], agent))
    if any(name == agent and at > now - window * 1000 for name, at in trail):
        return f"it goes in a circle: {way}"
    if len(trail) >= depth:
        return f"more than {depth} agents triggered each other: {way}"
    return None
