"""monitor: print the channel's messages as they come, each one once."""

from __future__ import annotations

from agentbus.commands import _message, _views
from agentbus.commands._declare import Call, Param, Verb, seconds

_SHOWN = 20
_LEAST = 0.1


def _interval(text: str) -> float:
    interval = seconds(text)
    if interval < _LEAST:
        raise ValueError(f"{text!r} is less than {_LEAST} s")
    return interval


VERB = Verb(
    "monitor",
    Param("--timeout S", "Stop after S seconds.", convert=seconds),
    Param(
        "--interval S",
        "Has no effect any more: 'top' shows flags, notes and queues.",
        convert=_interval,
        default=1.0,
    ),
    text="The last 20 messages, then each new one, a line each. It moves no cursor. If messages were"
    " trimmed before they were read, stderr says how many. Stderr also names the project, and says if it"
    " is empty. 'top' shows the whole project on a terminal. JSON: project, and as overhear.",
    examples=("agentbus monitor", "agentbus monitor --timeout 60 | grep deploy"),
    waits="",
)


def run(call: Call) -> None:
    """Print messages until interrupted."""
    bus, out, tail = call.bus, call.out, "0-0"
    _views.warn_if_empty(out, bus)
    if not out.json:
        out.warn(f"messages of the project {bus.project}")
    for message in bus.overhear(last=_SHOWN):
        _message.show_message(out, message, bus.project)
        tail = message.id
    for message in bus.overhear(since=tail, follow=True, timeout=call.args.timeout):
        _message.show_message(out, message, bus.project)
