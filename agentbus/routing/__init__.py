"""Routing: the rules by which tasks that come in at one queue reach the right agent's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core.lazy import lazily

if TYPE_CHECKING:
    from agentbus.core.validate import Problem as Problem
    from agentbus.routing.glob import Glob as Glob
    from agentbus.routing.loading import check as check, load as load, parse as parse
    from agentbus.routing.router import Router as Router
    from agentbus.routing.rules import (
        Agent as Agent,
        Choice as Choice,
        Explanation as Explanation,
        Limit as Limit,
        Rule as Rule,
        Rules as Rules,
        Step as Step,
        Target as Target,
    )

_HOMES = {
    "Agent": "rules",
    "Choice": "rules",
    "Explanation": "rules",
    "Glob": "glob",
    "Limit": "rules",
    "Problem": "agentbus.core.validate",
    "Router": "router",
    "Rule": "rules",
    "Rules": "rules",
    "Step": "rules",
    "Target": "rules",
    "check": "loading",
    "load": "loading",
    "parse": "loading",
}
__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
