"""Routing: the rules by which tasks that come in at one queue reach the right agent's."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentbus.routing.glob import Glob as Glob
    from agentbus.routing.loading import check as check, load as load, parse as parse
    from agentbus.routing.problems import Problem as Problem
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

# Loaded when first used.
_HOMES = {
    "Agent": "rules",
    "Choice": "rules",
    "Explanation": "rules",
    "Glob": "glob",
    "Limit": "rules",
    "Problem": "problems",
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
