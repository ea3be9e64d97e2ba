"""Finds unreachable rules, shadowed by earlier rules, and agents without a rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from agentbus.core.validate import shown

if TYPE_CHECKING:
    from agentbus.core.validate import Problems
    from agentbus.routing.glob import Glob
    from agentbus.routing.rules import RouteTarget, Rule

    # The line number, and the text.
    LineWarning = tuple[int, str]

# Maximum number of patterns to compare: a file with 10,000 would take minutes to load.
_HELD = 1_000


def check_rules(rules: Sequence[Rule], problems: Problems) -> list[LineWarning]:
    """Add a problem for each unreachable rule, and return the warnings."""
    warnings = _check_types(rules, problems)
    _check_patterns(rules, problems)
    return warnings


def check_agents(
    agents: Mapping[str, int], rules: Sequence[Rule], default: RouteTarget | None
) -> list[LineWarning]:
    """Return a warning for each agent that no rule and no default names; `agents` maps names to lines."""
    if not rules and default is None:
        return [
            (1, "there are neither rules nor a default: only tasks with an agent_id are routed")
        ]
    reached = {name for rule in rules for name in rule.target.agents}
    reached.update(default.agents if default is not None else ())
    return [
        (line, f"no rule reaches the agent {shown(name)}: only tasks with its name as agent_id do")
        for name, line in agents.items()
        if name not in reached
    ]


def _check_types(rules: Iterable[Rule], problems: Problems) -> list[LineWarning]:
    warnings: list[LineWarning] = []
    first: dict[str, Rule] = {}
    for rule in rules:
        taken = [(kind, first[kind]) for kind in rule.work_types if kind in first]
        overlap = ", ".join(f"{shown(kind)} is taken by {by}" for kind, by in taken[:5])
        if taken and len(taken) == len(rule.work_types):
            problems.add(
                rule.line,
                f"rule {rule.number} is never reached: {overlap}",
                "remove it, or name its agents in the earlier rule",
            )
        elif taken:
            warnings.append((rule.line, f"rule {rule.number} has no effect on some: {overlap}"))
        for kind in rule.work_types:
            first.setdefault(kind, rule)
            if "*" in kind or "?" in kind:
                better = f"match: {{type: {shown(kind)}}}"
                literal = f"the work type {shown(kind)} is taken literally"
                warnings.append((rule.line, f"{literal}; for a pattern write {better}"))
    return warnings


def _check_patterns(rules: Iterable[Rule], problems: Problems) -> None:
    same: dict[frozenset[tuple[str, Glob]], Rule] = {}
    earlier: list[tuple[Rule, dict[str, Glob]]] = []
    for rule in rules:
        if not rule.match:
            continue
        globs = {condition.field: condition.glob for condition in rule.match}
        by = same.setdefault(frozenset(globs.items()), rule)
        if by is rule:
            by = next((other for other, wide in earlier if _covered(globs, wide)), rule)
        if by is not rule:
            problems.add(
                rule.line,
                f"rule {rule.number} is never reached: {by} matches all that it would",
                "remove it, or put it before the other",
            )
        if len(earlier) < _HELD:
            earlier.append((rule, globs))


def _covered(globs: Mapping[str, Glob], wide: Mapping[str, Glob]) -> bool:
    """Return whether conditions certainly hold wherever the narrower conditions hold."""
    for field, glob in wide.items():
        narrow = globs.get(field)
        if narrow is None or not glob.covers(narrow):
            return False
    return True
