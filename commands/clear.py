"""clear: delete a project's keys."""

from __future__ import annotations

from agentbus.commands._declare import Call, Param, Verb
from agentbus.core.errors import UsageError

VERB = Verb(
    "clear",
    Param("--force", "Delete the keys."),
    Param("--dry-run", "Only print the counts; exit 0."),
    text="Without --force it only prints the counts, and exits 2."
    " JSON: project, total, keys (how many of each kind).",
    examples=("agentbus clear --dry-run", "agentbus clear --force --project scratch"),
)


def run(call: Call) -> None:
    """Delete the keys and print the number of each kind."""
    args = call.args
    counts = call.bus.clear(dry_run=args.dry_run or not args.force)
    total = sum(counts.values())
    if call.out.json:
        call.out.record({"project": call.bus.project, "total": total, "keys": counts}, "")
    else:
        for kind, count in counts.items():
            call.out.record({}, f"{kind} {count}")
        call.out.record({}, f"total {total}")
    if not args.force and not args.dry_run:
        raise UsageError(
            f"no key of the project {call.bus.project!r} was deleted",
            hint="repeat with --force to delete these keys",
        )
