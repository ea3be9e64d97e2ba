"""projects: list the projects on the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agentbus.commands import _format, _values
from agentbus.commands._declare import Call, Verb
from agentbus.core.clock import rfc3339
from agentbus.store.scope import server_time

if TYPE_CHECKING:
    from agentbus.admin.projects import Project

VERB = Verb(
    "projects",
    text="Prints a line for each project, the most recently active first: how many agents and queues it"
    " has, and the time since anything happened in it. What another user of the server may read"
    " alone is shown as -. On a server with over a million keys projects may be missing, which"
    " stderr reports. JSON: project, agents, queues, last_activity.",
    examples=("agentbus projects", "agentbus projects --json"),
)


def run(call: Call) -> None:
    """Print the projects, and report omitted ones."""
    bus = call.bus
    listing, now = bus.projects(), bus.runner.run(server_time(bus.scope), verb="projects")

    def since(row: Project) -> str:
        return "-" if row.last_activity is None else f"{_format.age(now - row.last_activity)} ago"

    columns: dict[str, Callable[[Project], str]] = {
        "PROJECT": lambda row: row.project,
        "AGENTS": lambda row: _number(row.agents),
        "QUEUES": lambda row: _number(row.queues),
        "LAST ACTIVITY": since,
    }
    _format.show(call.out, listing.projects, columns, _fields, left=1)
    if listing.left_out:
        call.out.warn(
            f"about {listing.left_out} keys were not examined, since the server has too many:"
            " projects may be missing here"
        )
    if listing.one_shard:
        call.out.warn(f"only the projects on the shard of {call.bus.project} are listed")


def _number(number: int | None) -> str:
    return "-" if number is None else str(number)


def _fields(project: Project) -> dict[str, object]:
    last = project.last_activity
    at = None if last is None else rfc3339(last, milliseconds=True)
    return _values.fields(project) | {"last_activity": at}
