"""The step that takes leases, without the imports for its errors and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentbus.core.settings import repository, repository_name
from agentbus.store.steps import Script

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Once

MOST_LEASES = 500


def own_repository(scope: Scope) -> str:
    """Return the name of the repository to which patterns belong here; '' outside of one.

    It is also '' if the settings let all directories of the project share leases.
    """
    root, common = repository()
    if root is None or scope.leases_by_project:
        return ""
    return repository_name(root, common)


def taking(
    scope: Scope,
    once: Once,
    milliseconds: int,
    pairs: Sequence[str],
    *,
    force: bool = False,
    why: str = "",
    auto: bool = False,
    sub: str = "",
    counts: bool = False,
    process: str = "",
) -> Script:
    """Return the step that takes or renews leases; `pairs` alternates patterns and their tokens (or '').

    Leases of a client's `process` end with it.
    """
    keys = scope.keys
    return Script(
        "lease",
        (
            *(keys.leases, keys.lease_fence, keys.lease_bell, keys.metrics, keys.leases_refused),
            *(keys.agents, once.key),
        ),
        [
            *(scope.agent, str(milliseconds), str(int(force)), why, str(int(auto)), sub),
            *(str(int(counts)), str(MOST_LEASES), once.token, process),
            *(own_repository(scope), *pairs),
        ],
        writes=True,
    )
