"""Takes consumers of events out of quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentbus.core.stream import text
from agentbus.store.steps import Script

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


def lift(scope: Scope, consumers: Sequence[str] = ()) -> Op[list[str]]:
    """Release the named consumers, or all, from quarantine; return those released, by name."""
    gone = yield Script("lift_quarantine", (scope.keys.quarantined,), consumers, writes=True)
    return sorted(map(text, gone))
