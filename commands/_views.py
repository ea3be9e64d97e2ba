"""Common code of views of a project: they show its name, and report if it does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentbus.admin.health import foreign_keys
from agentbus.admin.projects import missing
from agentbus.core.errors import AgentBusError

if TYPE_CHECKING:
    from agentbus.client.bus import Bus
    from agentbus.commands._declare import Call
    from agentbus.commands._output import Out
    from agentbus.core.errors import NotFound


def head(call: Call, nothing: str = "") -> None:
    """Print the line with the project's name above text; `nothing` reports that no line follows."""
    if not call.out.json:
        call.out.record({}, f"project {call.bus.project}" + (f": {nothing}" if nothing else ""))


def named(call: Call) -> dict[str, object]:
    """Return the field with the project's name for each JSON record."""
    return {"project": call.bus.project}


def must_exist(call: Call) -> None:
    """Raise `NotFound`, with similar names, if this project does not exist."""
    if not call.bus.exists():
        raise _missing(call.bus)


def warn_if_empty(out: Out, bus: Bus) -> bool:
    """Report on stderr that the project does not exist yet, for a view that waits for it.

    Returns whether the server replied.
    """
    try:
        if not bus.exists():
            error = _missing(bus)
            out.warn(f"{error.message} yet, so nothing is shown so far; {error.shell_hint}")
    except AgentBusError:
        # The view itself reports the error.
        return False
    return True


def empty(call: Call, records: Sequence[object]) -> None:
    """Report records of the bus that another program wrote on stderr, if nothing was found."""
    if records:
        return
    for finding in call.bus.runner.run(foreign_keys.examine(call.bus.scope), verb="health"):
        call.out.warn(finding.text)


def _missing(bus: Bus) -> NotFound:
    return missing(bus.project, bus.projects())
