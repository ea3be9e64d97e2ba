"""Routing: rules that move tasks from one queue to the queues of agents."""

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
    **dict.fromkeys(("Agent", "Choice", "Explanation", "Limit"), "rules"),
    **dict.fromkeys(("Rule", "Rules", "Step", "Target"), "rules"),
    **dict.fromkeys(("check", "load", "parse"), "loading"),
    "Glob": "glob",
    "Problem": "agentbus.core.validate",
    "Router": "router",
}
__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
