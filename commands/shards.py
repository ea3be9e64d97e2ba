"""shards: list the shards of a project on a cluster, or set their number."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agentbus.commands import _format, _values
from agentbus.commands._bare import actions
from agentbus.commands._declare import Call, Param, Verb, whole
from agentbus.core.errors import UsageError

if TYPE_CHECKING:
    from agentbus.queues.shards import Shard

VERB = Verb(
    "shards",
    actions(
        {
            "list": "Print a line for each shard: its node, and how many queues it has.",
            "set N": "Spread new queues over N shards; queues that exist stay where they are.",
        }
    ),
    Param("N", "The number of shards.", dest="number", convert=whole),
    text="A shard is a prefix of keys with a hash tag, so its queues are on one node of the cluster; the"
    " numbers in the prefixes are searched so that the shards spread evenly over the nodes. The number is"
    " recorded on the server, and may grow; with a smaller one, the other shards stay, but get no new"
    " queues. The first 'set' exits 4 while workers of the project run. What works across shards, and what"
    " is refused, is in docs/explanation/shards.md. Exit 5 if the project has no shards. JSON: name, node,"
    " queues, opened.",
    examples=("agentbus shards set 12", "agentbus shards list --json"),
)
_COLUMNS: dict[str, Callable[[Shard], str]] = {
    "SHARD": lambda row: row.name,
    "NODE": lambda row: row.node or "-",
    "QUEUES": lambda row: str(row.queues),
    "NEW QUEUES": lambda row: "yes" if row.opened else "no",
}


def run(call: Call) -> None:
    """Run the action."""
    args = call.args
    if (args.number is None) is not (args.action == "list"):
        wants = "nothing" if args.action == "list" else "the number of shards"
        raise UsageError(f"shards {args.action} takes {wants}", hint="see 'agentbus help shards'")
    shards = call.bus.shards() if args.action == "list" else call.bus.set_shards(args.number)
    _format.show(call.out, shards, _COLUMNS, _values.fields, left=2)
