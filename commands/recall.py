"""recall: read notes."""

from __future__ import annotations

from agentbus.commands._declare import Call, Param, Verb, tags, whole
from agentbus.coordination import recall
from agentbus.core.stream import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbus.store.scope import Scope

VERB = Verb(
    "recall",
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
    Param("--max-chars N", "At most N letters (300 or more).", convert=whole),
    Param("--default TEXT", "With a key: print this if there is no such note, and exit 0."),
    text="With a key it prints only the note's text, unchanged. If there is no such note, exit 5. With"
    " --max-chars, a longer text is cut, and stderr says so. JSON: key, value, agent_id, timestamp, tags;"
    " truncated (letters left out) where it was cut.",
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
    if args.default is not None and key is None:
        from agentbus.core.errors import UsageError

        raise UsageError("--default goes with a key", hint="leave it out")
    args.key = key
    if args.max_chars is not None:
        _bounded(call)
    scope = call.enter()
    if args.default is None:
        _recall(call, scope, key, labels)
        return
    from agentbus.core.errors import NotFound

    try:
        _recall(call, scope, key, labels)
    except NotFound:
        if call.out.json:
            fields = {"key": key, "value": args.default, "agent_id": None, "timestamp": None}
            call.out.record({**fields, "tags": []}, "")
        else:
            call.out.exactly(args.default.encode(errors="surrogateescape"))


def _recall(call: Call, scope: Scope, key: str | None, labels: list[str]) -> None:
    args = call.args
    if key is not None and not call.out.json:
        value = call.run(recall.value(scope, key))
        if args.max_chars is None:
            call.out.exactly(value)
        else:
            _bounded(call).value(call, text(value), args.max_chars)
        return
    from agentbus.commands import _values
    from agentbus.coordination import notes

    if key is not None:
        listed = [call.run(notes.recall(scope, key))]
    else:
        listed = call.run(notes.notes(scope, labels, every=args.all, latest=args.latest))
    if args.max_chars is not None:
        _bounded(call).notes(call, listed, args.max_chars)
        return
    for noted in listed:
        _values.note(call.out, noted, value=True)


def _bounded(call: Call) -> Any:
    from agentbus.commands import _bounded

    _bounded.check(call.args.max_chars)
    return _bounded
