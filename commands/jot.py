"""jot: write a note."""

from __future__ import annotations

from agentbus.commands import _values
from agentbus.commands._declare import Call, Param, Verb, body, tags
from agentbus.coordination import notes
from agentbus.core.errors import UsageError
from agentbus.core.names import word

VERB = Verb(
    "jot",
    Param("KEY", "The note's key.", dest="name", values="note"),
    Param("VALUE|-|@FILE", "The note's text.", dest="text"),
    Param("--key K", "The note's key.", values="note"),
    Param("--value V", "The note's text, taken literally."),
    Param(
        "--tag A,B",
        "Its tags; they replace the old ones. May be repeated.",
        convert=tags,
        many=True,
        values="tag",
    ),
    Param("--if-absent", "Refuse (exit 4) if the note exists."),
    text="Writes the note, replaces its tags and reports it on the channel, in one atomic step. JSON: key,"
    " value, agent_id, timestamp, tags.",
    examples=(
        "agentbus jot docker-build 'docker build -t app .' --tag docker,build",
        "agentbus jot schema @schema.sql --tag db",
        "make --version | agentbus jot make-version - --if-absent",
    ),
    subject="key",
)


def run(call: Call) -> None:
    """Write the note and print its key."""
    args = call.args
    key, text = args.name, args.text
    if args.key is not None:
        # With --key, a single argument is the value.
        if text is not None:
            raise UsageError("the key is given twice", hint="give it once")
        key, text = args.key, args.name
    elif key is None:
        raise UsageError("the key is missing", hint="give it as an argument or by --key")
    args.key = key
    labels = [tag for group in args.tag for tag in group]
    value = body("note", text, args.value, call.settings.max_body, "--value")
    noted = call.run(notes.jot(call.enter(), key, value, labels, if_absent=args.if_absent))
    if call.out.fields:
        _values.note(call.out, noted, value=True)
    else:
        call.out.record({}, word(noted.key))
