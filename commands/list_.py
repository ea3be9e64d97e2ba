"""list: list notes, flags, agents, topics or queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.admin import project
from agentbus.commands import _values, _views
from agentbus.commands._declare import Call, Param, Verb, tags, whole
from agentbus.commands._format import count
from agentbus.coordination import notes
from agentbus.coordination.flags import SILENT, FlagState, holders_seen
from agentbus.core.clock import rfc3339
from agentbus.core.errors import UsageError
from agentbus.core.names import word
from agentbus.core.readable import age

if TYPE_CHECKING:
    from agentbus.coordination.notes import Note
    from agentbus.coordination.waiters import Waiter

VERB = Verb(
    "list",
    Param("--tag T", "Only notes with this tag; with any of several as a,b.", values="tag"),
    Param(
        "--text WORDS",
        "Only notes with all these words in key, tags or value, of the newest 1,000.",
        dest="text_",
    ),
    Param("--latest N", "At most N notes (50).", convert=whole, default=50),
    Param("--flags", "Flags that are held, satisfied, failed or awaited, and who waits."),
    Param("--agents", "Agents seen on the channel, and how far they have heard it."),
    Param("--max, --limit N", "With --agents: at most N agents (50).", convert=whole),
    Param("--topics", "Topics of messages."),
    Param("--queues", "Queues."),
    text="Notes come without their values, newest first. JSON: for notes key, agent_id, timestamp, tags;"
    " for flags flag, state, agent_id, timestamp, ttl, token, note, and, where the holder was not seen for"
    " 5 minutes, silent (seconds), and, where agents wait, waiting (until, agent_id, since);"
    " for agents agent_id, last_seen, heard, unheard; for topics topic,"
    " last_spoken; for queues queue.",
    examples=(
        "agentbus list --tag docker",
        "agentbus list --text 'release notes'",
        "agentbus list --flags",
        "agentbus list --agents --json",
    ),
)

# Maximum number of flags to show: more would take longer than a second or two.
_MOST = 10_000
# Maximum number of notes to search.
_SEARCHED = 1000
# Default number of agents in the list: a list of thousands is of no use to a model.
_AGENTS = 50


def run(call: Call) -> None:
    """Print the list, one item per line."""
    args, bus, out = call.args, call.bus, call.out
    asked = [kind for kind in ("flags", "agents", "topics", "queues") if getattr(args, kind)]
    if len(asked) > 1 or (asked and (args.tag is not None or args.text_ is not None)):
        raise UsageError("several kinds were given", hint="give one at a time")
    if args.max is not None and not args.agents:
        raise UsageError("--max goes with --agents alone", hint="for notes give --latest")
    if args.flags:
        _flags(call)
    elif args.agents:
        most = _AGENTS if args.max is None else args.max
        _views.empty(call, agents := bus.agents(limit=most))
        for seen in agents:
            at = rfc3339(seen.last_seen)
            behind = "" if seen.unheard is None else f", {seen.unheard} unheard"
            out.record(
                _values.fields(seen) | {"last_seen": at}, f"{word(seen.agent_id)} seen {at}{behind}"
            )
        known = bus.runner.run(project.known(bus.scope), verb="list") if len(agents) == most else 0
        if known > most:
            more = count(known - most, "more agent")
            out.warn(f"{more} seen earlier; --max {known} lists all")
    elif args.topics:
        _views.empty(call, topics := bus.topics())
        for topic in topics:
            at = rfc3339(topic.last_spoken)
            out.record({"topic": topic.topic, "last_spoken": at}, f"{word(topic.topic)} {at}")
    elif args.queues:
        for queue in bus.queues():
            out.record({"queue": queue}, word(queue))
    else:
        listed = _notes(call)
        _views.empty(call, listed)
        for note in listed:
            _values.note(out, note, value=False)


def _notes(call: Call) -> list[Note]:
    """Return the newest notes, with any of the tags, or those that contain all words of a text."""
    args, bus = call.args, call.bus
    wanted = args.tag and tags(args.tag)
    if args.text_ is None:
        return bus.list_(tag=wanted, latest=args.latest)
    op = notes.notes(bus.scope, wanted or (), latest=_SEARCHED)
    read = bus.runner.run(op, verb="list")
    words = args.text_.lower().split()
    matching = [note for note in read if all(each in _text(note) for each in words)]
    if len(read) >= _SEARCHED:
        call.out.warn(f"only the newest {len(read):,} notes were searched; --tag searches others")
    return matching[: args.latest]


def _text(note: Note) -> str:
    return "\n".join((note.key, *note.tags, str(note.value))).lower()


def _flags(call: Call) -> None:
    flags = call.bus.flags(limit=_MOST + 1)
    if len(flags) > _MOST:
        last = flags.pop().flag
        call.out.warn(f"only {_MOST:,} flags are shown; those from {word(last)} on are left out")
    states = {state.flag: state for state in flags}
    waiting: dict[str, list[Waiter]] = {}
    for waiter in call.bus.waiters():
        waiting.setdefault(waiter.flag, []).append(waiter)
    seen = call.bus.runner.run(holders_seen(call.bus.scope, flags))
    for flag in sorted({*states, *waiting}):
        state = states.get(flag) or FlagState(flag, "free", None, None, None, None)
        silent = seen.get(state.agent_id or "") if state.state == "held" else None
        silent = silent if silent is not None and silent >= SILENT else None
        mark = "" if silent is None else f", holder not seen for {age(silent)}"
        _values.flag(call.out, state, waiting.get(flag, ()), silent, mark)
