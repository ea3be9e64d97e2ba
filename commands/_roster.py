"""events register, forget, skip: administers the consumers of a stream."""

from __future__ import annotations

from agentbus.commands import _events, _values
from agentbus.commands._declare import Call
from agentbus.commands._format import count


def register(call: Call) -> None:
    """Register a consumer before its first run."""
    stream, name = _events.words(call, "STREAM NAME")
    from agentbus.events import register_consumer

    new = register_consumer(_events.ledger(call), stream, name, past=call.args.past)
    fields: dict[str, object] = {"stream": stream, "consumer": name, "new": new}
    call.out.record(fields, f"{name} is known" + ("" if new else " already, and stays where it is"))


def forget(call: Call) -> None:
    """Delete a consumer or reader that will not run again."""
    stream, name = _events.words(call, "STREAM NAME")
    from agentbus.events import forget_consumer, forget_reader
    from agentbus.events.leases import READER

    if name.startswith(READER):
        forget_reader(call.bus, stream, name)
        dropped, done = 0, "will be forgotten when the stream's relay next checks"
    else:
        dropped = forget_consumer(_events.ledger(call), stream, name, force=call.args.force)
        done = "is forgotten"
    fields: dict[str, object] = {"stream": stream, "consumer": name, "dropped": dropped}
    more = f", and {count(dropped, 'parked event')} with it" if dropped else ""
    call.out.record(fields, f"{name} {done}{more}")


def skip(call: Call) -> None:
    """Move a consumer past events."""
    stream, name = _events.words(call, "STREAM NAME")
    from agentbus.events import skip_events

    done = skip_events(_events.ledger(call), call.bus, stream, name, to=call.args.to)
    fields = {"stream": stream, "consumer": name, **_values.fields(done)}
    if done.before == done.after:
        text = f"{name} stays at {done.after}: nothing was skipped"
    else:
        most = "up to " if call.args.to is None else ""
        text = f"{name} goes on past {done.after}: {most}{count(done.events, 'event')} skipped"
    call.out.record(fields, text)
