"""Reads the amounts in a file of rules: limits, durations, whole numbers, each from its text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentbus.core.timespec import duration
from agentbus.routing.document import Text
from agentbus.routing.problems import shown
from agentbus.routing.rules import Limit

if TYPE_CHECKING:
    from agentbus.routing.document import Node
    from agentbus.routing.problems import Problems

# Seed 004 gives an agent ten tasks a minute.
USUAL = Limit(10, 60.0)
ON, OFF = "on", "off"
_LIMIT = re.compile(r"([1-9][0-9]{0,8})/(s|min|h)", re.ASCII)
_WHOLE = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_YEARS = 10 * 366 * 86_400


def limit(node: Node, what: str, problems: Problems, *, may_be_on: bool = True) -> Limit | None:
    """Return a limit; None where it is `off`, and where it is wrong, which is told."""
    if isinstance(node, Text):
        if node.text == OFF:
            return None
        if node.text == ON and may_be_on:
            return USUAL
        found = _LIMIT.fullmatch(node.text)
        if found is not None:
            return Limit(int(found[1]), _SECONDS[found[2]])
    on = f", '{ON}' for {USUAL.count}/min" if may_be_on else ""
    problems.add(
        node.line,
        f"{what} is {about(node)}, which is no limit",
        f"write N/s, N/min or N/h with N from 1{on}, or '{OFF}'",
    )
    return None


def seconds(node: Node, what: str, default: float, problems: Problems) -> float:
    """Return a duration in seconds; the default where it is wrong, which is told."""
    if isinstance(node, Text):
        found = duration(node.text)
        if found is not None and 1 <= found <= _YEARS:
            return found
    problems.add(
        node.line,
        f"{what} is {about(node)}, which is no duration",
        "write seconds, at least 1 and at most 10 years, or a duration such as 30m",
    )
    return default


def whole(node: Node, what: str, most: int, default: int, problems: Problems) -> int:
    """Return a whole number from 1; the default where it is wrong, which is told."""
    if isinstance(node, Text) and _WHOLE.fullmatch(node.text) and int(node.text) <= most:
        return int(node.text)
    problems.add(
        node.line,
        f"{what} is {about(node)}, which is no whole number from 1 to {most}",
        "write it in digits",
    )
    return default


def about(node: Node) -> str:
    """Return in words what stands there."""
    if isinstance(node, Text):
        return "empty" if node.is_nothing and not node.text else shown(node.text)
    return f"a {kind(node)}"


def kind(node: Node) -> str:
    """Return what a part of the file is: a text, a list or a map."""
    return {"Text": "text", "Items": "list", "Fields": "map"}[type(node).__name__]
