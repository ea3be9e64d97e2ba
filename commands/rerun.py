"""rerun: deliver a group's acknowledged tasks again."""

from __future__ import annotations

from agentbus.commands import _values
from agentbus.commands._declare import Call, Param, Verb, whole
from agentbus.core.errors import UsageError
from agentbus.core.names import word

VERB = Verb(
    "rerun",
    Param("QUEUE", "The queue.", required=True, values="queue"),
    Param("--from ID|TIME|30m", "Start at this task or time.", dest="start"),
    Param("--until ID|TIME|30m", "Stop at this task or time (default: no limit)."),
    Param("--group G", "The group (default).", default="default", values="group"),
    Param("--limit N", "At most N tasks.", convert=whole),
    Param("--dry-run", "Only count the tasks."),
    text="Delivers the tasks that the group has acknowledged and that are still stored. Pending tasks and"
    " other groups are not affected. A rerun that was interrupted can be started again. Exit 5 if there"
    " is no such queue or group. JSON: queue, group, tasks, pending, first, last,"
    " dry_run.",
    examples=(
        "agentbus rerun mail --from 30m --dry-run",
        "agentbus rerun mail --from 2025-11-20T07:00:00Z --until 2025-11-20T08:00:00Z",
    ),
    subject="queue",
)


def run(call: Call) -> None:
    """Deliver the tasks again, and print their number."""
    args = call.args
    queue = call.bus.queue(args.queue)
    if args.start is None:
        raise UsageError(
            "rerun needs --from", hint="give a task's id, a time, or a duration such as 30m"
        )
    done = queue.replay_from(
        args.start,
        group=args.group,
        until=args.until,
        dry_run=args.dry_run,
        limit=args.limit,
    )
    verb = "would be" if done.dry_run else "is" if done.tasks == 1 else "are"
    text = f"{word(done.queue)}: {done.tasks} {verb} delivered again"
    text += f" to {word(done.group)}"
    text += f", {done.first} to {done.last}" if done.first else ""
    are = "is" if done.pending == 1 else "are"
    text += f"; {done.pending} {are} pending and left alone" if done.pending else ""
    call.out.record(_values.fields(done), text)
