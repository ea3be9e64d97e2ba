"""Parses the agents of a team, and the targets of rules."""

# mypy: disable-error-code="func-returns-value"
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentbus.core.validate import nearest, shown
from agentbus.routing.rules import BACKLOG, ROUND_ROBIN, Limit, RouteTarget

if TYPE_CHECKING:
    from agentbus.core.validate import Located

# Default limit of an agent: ten tasks a minute.
_USUAL = Limit(10, 60.0)
_LIMIT = re.compile(r"([1-9][0-9]{0,8})/(s|min|h)", re.ASCII)
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Team:
    """The agents by name, the line of each, and the limits of agents that have their own."""

    lines: dict[str, int] = field(default_factory=dict)
    limits: dict[str, Limit | None] = field(default_factory=dict)
    # Non-empty if some agents could not be read, so that a name that is missing here may still be
    # valid.
    partly: list[bool] = field(default_factory=list)


def team(given: Located | None, root: Located) -> Team:
    """Return the agents that a file names."""
    found = Team()
    if given is None:
        root.add("'agents' is missing", "name them, as in 'agents: [alice, bob]'")
    elif isinstance(given.value, str) or not given.value:
        given.wrong("a list of names, or a map of names and settings")
    elif isinstance(given.value, list):
        for one in given.items():
            _member(found, one, None)
    else:
        for key, settings in given.entries("a map", "the agent"):
            _member(found, key, settings)
    if not found.lines:
        found.partly.append(True)
    return found


def target(given: Mapping[str, Located], whole: Located, roster: Team) -> RouteTarget:
    """Return the agents that receive the tasks of a rule or of the default, from its `to` and `by`."""
    to = given.get("to")
    chosen: list[str] = []
    if to is None:
        whole.add(f"{whole.what} has no 'to'", "name the agent that gets the task")
    else:
        named = several(to, "agent", whole)
        chosen = [agent for agent, one in named.items() if _known(agent, one, roster)]
    by = given["by"].choice((BACKLOG, ROUND_ROBIN)) if "by" in given else None
    return RouteTarget(tuple(chosen), by or BACKLOG)


def default(given: Located, roster: Team) -> RouteTarget:
    """Return the agents of the default target: a name, a list of names, or a map of `to` and `by`."""
    if given.is_nothing:
        given.add(
            "'default' is empty",
            "name an agent, or leave it out: a task that no rule matches is then buried",
        )
        return RouteTarget(())
    known = given.fields(("to", "by")) if isinstance(given.value, dict) else {"to": given}
    return target(known, given, roster)


def limit(given: Located, *, may_be_on: bool = True) -> Limit | None:
    """Return a limit; None if it is `off`, or if it is invalid, which adds a problem."""
    text = given.value if isinstance(given.value, str) else ""
    if text == "off":
        return None
    if text == "on" and may_be_on:
        return _USUAL
    found = _LIMIT.fullmatch(text)
    if found is not None:
        return Limit(int(found[1]), _SECONDS[found[2]])
    on = f", 'on' for {_USUAL.count}/min" if may_be_on else ""
    return given.wrong(f"N/s, N/min or N/h with N from 1{on}, or 'off'")


def several(given: Located, kind: str, whole: Located) -> dict[str, Located]:
    """Return distinct names, given as one name or as a list, each with its place."""
    found: dict[str, Located] = {}
    if isinstance(given.value, dict) or given.value == []:
        given.wrong("one name, or a list of names")
        return found
    for one in given.items():
        name = one.name(kind)
        if name is not None and name in found:
            one.add(f"{whole.what} names the {kind} {shown(name)} twice", "name it once")
        elif name is not None:
            found[name] = one
    return found


def _member(found: Team, given: Located, settings: Located | None) -> None:
    name = given.name("agent")
    if name is None:
        found.partly.append(True)
    elif name in found.lines:
        given.add(f"the agent {shown(name)} is named twice", "name it once")
    else:
        found.lines[name] = given.line
        if settings is not None and not settings.is_nothing:
            fields = settings.fields(("limit",), "'{limit: 10/min}', or nothing")
            if "limit" in fields:
                found.limits[name] = limit(fields["limit"])


def _known(name: str, given: Located, roster: Team) -> bool:
    if name not in roster.lines and not roster.partly:
        remedy = nearest(name, roster.lines, "add it under 'agents'")
        given.add(f"the agent {shown(name)} is not under 'agents'", remedy)
    return name in roster.lines
