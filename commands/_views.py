"""Common code of the views of a project: they name it, and report if it does not exist."""

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
    """Print the line that names the project, above text; `nothing` says that no line follows."""
    if not call.out.json:
        call.out.record({}, f"project {call.bus.project}" + (f": {nothing}" if nothing else ""))


def named(call: Call) -> dict[str, object]:
    """Return the field that names the project in each record of JSON."""
    return {"project": call.bus.project}


def must_exist(call: Call) -> None:
    """Raise `NotFound`, with the nearest projects, if this one does not exist."""
    if not call.bus.exists():
        raise _missing(call.bus)


def warn_if_empty(out: Out, bus: Bus) -> bool:
    """Report on stderr that the project does not exist yet, for a view that waits for it.

    Returns whether the server could be asked.
    """
    try:
        if not bus.exists():
            error = _missing(bus)
            out.warn(f"{error.message} yet, so nothing is shown so far; {error.shell_hint}")
    except AgentBusError:
        # The view itself reports it.
        return False
    return True


def empty(call: Call, records: Sequence[object]) -> None:
    """Report on stderr each record of the bus's own that another program wrote, if nothing was found."""
    if records:
        return
    for finding in call.bus.runner.run(foreign_keys.examine(call.bus.scope), verb="health"):
        call.out.warn(finding.text)


def _missing(bus: Bus) -> NotFound:
    return missing(bus.project, bus.projects())
