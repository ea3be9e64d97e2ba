"""tidy: what is done and old goes, with consumers that are dead and notes on what is gone."""

from __future__ import annotations

from agentbus.commands._declare import Call, Param, Verb
from agentbus.commands._table import count

VERB = Verb(
    "tidy",
    "Trim what every group has done, and remove dead consumers and leftovers.",
    Param("queue", metavar="QUEUE", help="The queue; without one all of them."),
    Param("dry_run", "--dry-run", flag=True, help="Only count, and change nothing."),
    text="Workers do this by themselves, now and then. What a group or a reader still needs stays, and"
    " what is done is kept for the time that the queue's policy says (a day). Exit 5 if there is no"
    " such queue. JSON: queue, trimmed, consumers, leftovers, dry_run.",
    examples=("agentbus tidy --dry-run", "agentbus tidy mail"),
    subject="queue",
)


def run(call: Call) -> None:
    """Tidy the queue, or all, and print for each what was removed."""
    args = call.args
    would = "would be " if args.dry_run else ""
    for done in call.bus.tidy(args.queue, dry_run=args.dry_run):
        fields = {
            "queue": done.queue,
            "trimmed": done.trimmed,
            "consumers": done.consumers,
            "leftovers": done.leftovers,
            "dry_run": args.dry_run,
        }
        text = f"{done.queue}: {would}trimmed by {done.trimmed}"
        text += f", {count(done.consumers, 'dead consumer')}, {count(done.leftovers, 'leftover')}"
        call.out.record(fields, text)
