"""recall: read notes."""

from __future__ import annotations

from agentbus.commands._declare import Call, Param, Verb, tags, whole
from agentbus.coordination import recall

VERB = Verb(
    "recall",
    "Read a note by its key, or notes by their tags.",
    Param("KEY", "The note's key.", dest="name", values="note"),
    Param("--key K", "The note's key.", values="note"),
    Param(
        "--tag A,B",
        "Notes with any of these tags, newest first. May be repeated.",
        convert=tags,
        many=True,
        values="tag",
    ),
    Param("--all", "Only notes with all of the tags."),
    Param("--latest N", "At most N notes (10).", convert=whole, default=10),
    text="With a key it prints only the note's text, unchanged. If there is no such note, exit 5. JSON:"
    " key, value, agent_id, timestamp, tags.",
    examples=(
        "agentbus recall docker-build",
        'sh -c "$(agentbus recall docker-build)"',
        "agentbus recall --tag docker,build --all --latest 3 --json",
    ),
    subject="key",
)


def run(call: Call) -> None:
    """Print the value, or the notes that have the tags."""
    args = call.args
    key = args.name if args.key is None else args.key
    labels = [tag for group in args.tag for tag in group]
    if (key is None) == (not labels) or (args.name is not None and args.key is not None):
        from agentbus.core.errors import UsageError

        raise UsageError(
            "recall needs a key or tags"
            if key is None
            else "recall takes one key or tags, not both",
            hint="give one key, or --tag",
        )
    args.key = key
    scope = call.enter()
    if key is not None and not call.out.json:
        found = call.run(recall.read(scope, key))
        value = found[found.index(b"value") + 1] if b"value" in found[::2] else b""
        call.out.exactly(value)
        return
    from agentbus.commands import _values
    from agentbus.coordination import notes

    if key is not None:
        _values.note(call.out, call.run(notes.recall(scope, key)), value=True)
        return
    for noted in call.run(notes.notes(scope, labels, every=args.all, latest=args.latest)):
        _values.note(call.out, noted, value=True)
