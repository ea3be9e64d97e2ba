"""The flags of a project: found by occasional scans, and followed in the channel's notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.coordination import flags
from agentbus.coordination.flags import FlagState
from agentbus.dashboard.parts import OFTEN, SELDOM, Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.coordination.message import Message
    from agentbus.coordination.waiters import Waiter
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Flags per script, and flags that are read again with each snapshot.
_PAGE, _FRESH = 100, 200


class FlagList:
    """The flags that are held, satisfied or failed, held ones first."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.names: Part[list[FlagState]] = Part(
            scope.monotonic, lambda: flags.states(scope), SELDOM
        )
        self._found: list[FlagState] = []
        self._states: dict[str, FlagState] = {}

    def read(self, spoken: Sequence[Message], missed: int) -> Op[list[FlagState]]:
        """Return the flags; held flags, and flags that the messages name, are current.

        If messages were `missed`, any flag may have changed.
        """
        if missed:
            self.names.hasten(OFTEN)
        found = yield from self.names.get()
        if found is not self._found:
            self._found = found
            self._states = {one.flag: one for one in found}
        else:
            changed = [
                one.details["flag"] for one in spoken if one.details and "flag" in one.details
            ]
            held = [flag for flag, one in self._states.items() if one.state == "held"]
            wanted = [*dict.fromkeys([*reversed(changed), *held])][:_FRESH]
            for at in range(0, len(wanted), _PAGE):
                _, page = yield from flags.look(self._scope, wanted[at : at + _PAGE])
                self._states.update((one.flag, one) for one in page)
        there = (one for one in self._states.values() if one.state != "free")
        return sorted(there, key=lambda one: (one.state != "held", one.flag))


def with_awaited(states: Sequence[FlagState], waiting: Sequence[Waiter]) -> list[FlagState]:
    """Return the flags and the free flags that are awaited: awaited flags first, then held ones."""
    awaited = {one.flag for one in waiting}
    free = awaited - {one.flag for one in states}
    return sorted(
        [*states, *(FlagState(flag, "free", None, None, None, None) for flag in free)],
        key=lambda one: (one.flag not in awaited, one.state != "held", one.flag),
    )
