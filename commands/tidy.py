"""tidy: trim finished tasks, and delete dead consumers and leftovers."""

from __future__ import annotations

from agentbus.commands import _values
from agentbus.commands._declare import Call, Param, Verb
from agentbus.commands._format import count
from agentbus.core.names import word

VERB = Verb(
    "tidy",
    Param("QUEUE", "The queue (default: all).", values="queue"),
    Param("--dry-run", "Only count."),
    text="Workers do this regularly. Tasks that a group or a reader still needs are kept, and finished"
    " tasks are kept as long as the queue's policy says (a day). Exit 5 if there is no such queue."
    " JSON: queue, trimmed, consumers, leftovers, dry_run.",
    examples=("agentbus tidy --dry-run", "agentbus tidy mail"),
    subject="queue",
)


def run(call: Call) -> None:
    """Tidy one queue or all, and print what was removed from each."""
    args = call.args
    would = "would be " if args.dry_run else ""
    for done in call.bus.tidy(args.queue, dry_run=args.dry_run):
        text = f"{word(done.queue)}: {would}trimmed by {done.trimmed}"
        text += f", {count(done.consumers, 'dead consumer')}, {count(done.leftovers, 'leftover')}"
        call.out.record(_values.fields(done) | {"dry_run": args.dry_run}, text)
