"""Reads who is in a team and to whom a rule sends, from the parts of a file that say so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentbus.core import names
from agentbus.core.errors import UsageError
from agentbus.routing import amounts
from agentbus.routing.amounts import about
from agentbus.routing.document import Fields, Items, Text
from agentbus.routing.problems import nearest, shown
from agentbus.routing.rules import BACKLOG, ROUND_ROBIN, Limit, RouteTarget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentbus.routing.document import Node
    from agentbus.routing.problems import Problems


@dataclass(frozen=True, slots=True)
class Team:
    """The agents by name, with the line of each, and the limits of those that have their own."""

    lines: dict[str, int] = field(default_factory=dict)
    limits: dict[str, Limit | None] = field(default_factory=dict)
    # Some could not be read, so that a name that is missing here need not be wrong.
    partly: list[bool] = field(default_factory=list)


def team(node: Node | None, line: int, problems: Problems) -> Team:
    """Return the agents that a file names."""
    found = Team()
    if node is None:
        problems.add(line, "'agents' is missing", "name them, as in 'agents: [alice, bob]'")
    elif isinstance(node, Text) or not _size(node):
        said = about(node) if isinstance(node, Text) else f"an empty {amounts.kind(node)}"
        problems.add(
            node.line,
            f"'agents' is {said}",
            "write a list of names, or a map of names and settings",
        )
    else:
        for name, settings in _members(node):
            _member(found, name, settings, problems)
    if not found.lines:
        found.partly.append(True)
    return found


def target(
    given: dict[str, Node], line: int, what: str, roster: Team, problems: Problems
) -> RouteTarget:
    """Return whom a rule or a default sends to, from its `to` and `by`."""
    to = given.get("to")
    chosen: list[str] = []
    if to is None:
        problems.add(line, f"{what} has no 'to'", "name the agent that gets the task")
    else:
        for one in several(to, f"'to' of {what}", problems):
            agent = _known(one, roster, problems)
            if agent is not None and agent in chosen:
                problems.add(one.line, f"{what} names {shown(agent)} twice", "name it once")
            elif agent is not None:
                chosen.append(agent)
    by = given.get("by")
    if by is None:
        return RouteTarget(tuple(chosen))
    if isinstance(by, Text) and by.text in (BACKLOG, ROUND_ROBIN):
        return RouteTarget(tuple(chosen), by.text)
    problems.add(by.line, f"'by' of {what} is {about(by)}", f"write {BACKLOG} or {ROUND_ROBIN}")
    return RouteTarget(tuple(chosen))


def default(node: Node, roster: Team, problems: Problems) -> RouteTarget:
    """Return whom the default sends to: a name, a list of them, or a map of `to` and `by`."""
    given: dict[str, Node] = {"to": node}
    if isinstance(node, Fields):
        given = fields(node, ("to", "by"), " in 'default'", problems)
    if isinstance(node, Text) and node.is_nothing:
        problems.add(
            node.line,
            "'default' is empty",
            "name an agent, or leave it out: what no rule matches is then buried",
        )
        return RouteTarget(())
    return target(given, node.line, "'default'", roster, problems)


def fields(node: Fields, known: tuple[str, ...], where: str, problems: Problems) -> dict[str, Node]:
    """Return a map's known keys with what they hold; tells the others."""
    found: dict[str, Node] = {}
    for key, value in node.fields:
        if key.text in known:
            found[key.text] = value
        else:
            problems.add(
                key.line, f"the key {shown(key.text)}{where} is unknown", nearest(key.text, known)
            )
    return found


def several(node: Node, what: str, problems: Problems) -> tuple[Node, ...]:
    """Return what is given as one or as a list."""
    if isinstance(node, Fields) or (isinstance(node, Items) and not node.items):
        said = "a map" if isinstance(node, Fields) else "an empty list"
        problems.add(node.line, f"{what} is {said}", "write one name, or a list of names")
        return ()
    return node.items if isinstance(node, Items) else (node,)


def named(node: Node, kind: str, problems: Problems) -> str | None:
    """Return a name as it was written; None if it is none, which is told."""
    if not isinstance(node, Text):
        problems.add(node.line, f"the {kind} is a {amounts.kind(node)}", "give it as text")
        return None
    try:
        return names.name(kind, node.text)
    except UsageError as error:
        problems.add(node.line, error.message, error.hint or "correct it")
        return None


def _size(node: Items | Fields) -> int:
    return len(node.items if isinstance(node, Items) else node.fields)


def _members(node: Items | Fields) -> Iterator[tuple[Node, Node | None]]:
    if isinstance(node, Items):
        for one in node.items:
            yield one, None
    else:
        yield from node.fields


def _member(found: Team, node: Node, settings: Node | None, problems: Problems) -> None:
    name = named(node, "agent", problems)
    if name is None:
        found.partly.append(True)
        return
    if name in found.lines:
        problems.add(node.line, f"the agent {shown(name)} is named twice", "name it once")
        return
    found.lines[name] = node.line
    if settings is None or (isinstance(settings, Text) and settings.is_nothing):
        return
    if not isinstance(settings, Fields):
        problems.add(
            settings.line,
            f"the settings of the agent {shown(name)} are {about(settings)}",
            "write '{limit: 10/min}', or nothing",
        )
        return
    given = fields(settings, ("limit",), f" of the agent {shown(name)}", problems)
    if "limit" in given:
        found.limits[name] = amounts.limit(
            given["limit"], f"the limit of the agent {shown(name)}", problems
        )


def _known(node: Node, roster: Team, problems: Problems) -> str | None:
    name = named(node, "agent", problems)
    if name is None or name in roster.lines:
        return name
    if not roster.partly:
        problems.add(
            node.line,
            f"{shown(name)} is none of the agents",
            nearest(name, roster.lines, "add it under 'agents'"),
        )
    return None
