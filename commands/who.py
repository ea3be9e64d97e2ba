"""who: list the agents that are present, and what each one does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agentbus.commands import _values, _views
from agentbus.commands._declare import Call, Param, Verb, whole
from agentbus.coordination import presence
from agentbus.core.clock import rfc3339
from agentbus.core.names import word

if TYPE_CHECKING:
    from agentbus.coordination.presence import Presence

VERB = Verb(
    "who",
    Param("--doing TEXT", "Record what this agent does, for others to see; '' removes it."),
    Param(
        "--topics LIST",
        "Let hooks tell this agent of these topics only; with a minus before each, all others; '' ends it.",
    ),
    Param("--max, --limit N", "At most N agents (30).", convert=whole, default=30),
    Param("--all", "All known agents, including those that are gone."),
    text="Last seen first. An agent is present if it recorded its presence within 24 hours and is not gone,"
    " or used the channel within an hour. JSON: agent, state (active, idle, waiting, gone; null without a"
    " record), seen, client, host, branch, doing, leases, unread, topics; subs, the leases of each"
    " subagent, where there are any; unguarded, true for a client's session in which no hook has run.",
    examples=(
        "agentbus who",
        "agentbus who --doing 'the parser'",
        "agentbus who --topics=-commits,-deploys",
        "agentbus who --all --json",
    ),
)

_FIELDS = (
    "agent",
    "state",
    "seen",
    "client",
    "host",
    "branch",
    "doing",
    "leases",
    "unread",
    "topics",
)
# Maximum leases per agent, and characters per text, in the text output.
_LEASES, _LETTERS = 3, 60
# Characters, besides letters and digits, that need no quotes in hosts and branches.
_PLAIN = "._@~:-/*?+#"


def run(call: Call) -> None:
    """Print the agents, one per line."""
    args, bus, out = call.args, call.bus, call.out
    if args.doing is not None or args.topics is not None:
        bus.here(doing=args.doing, topics=args.topics)
    every, most = args.all, args.max + 1
    op = presence.present_now(bus.scope, every=every, limit=most)
    now, agents = bus.runner.run(op, verb="present")
    _views.empty(call, agents)
    for agent in agents[: args.max]:
        fields = _values.fields(agent, *_FIELDS) | {"seen": rfc3339(agent.seen)}
        fields |= {"subs": {**agent.subs}} if agent.subs else {}
        fields |= {"unguarded": True} if agent.unguarded and presence.is_there(agent, now) else {}
        out.record(fields, _line(agent, now) if out.text else "")
    if len(agents) > args.max:
        out.warn(f"more agents are {'known' if args.all else 'present'}: give a larger --max")


def _line(agent: Presence, now: float) -> str:
    line = f"{word(agent.agent)} {agent.state or 'seen'} {_age(now - agent.seen)}"
    if agent.host is not None and agent.host != os.uname().nodename:
        line += f", on {_cut(agent.host)}"
    if agent.unguarded and presence.is_there(agent, now):
        line += ", unguarded"
    if agent.branch is not None:
        line += f", {_cut(agent.branch)}"
    if agent.leases:
        line += f", leases {' '.join(_lease(agent, pattern) for pattern in agent.leases[:_LEASES])}"
        left = len(agent.leases) - _LEASES
        line += f" and {left} more" if left > 0 else ""
    if agent.unread:
        line += f", {agent.unread} unread"
    return line + (f": {agent.doing}" if agent.doing else "")


def _lease(agent: Presence, pattern: str) -> str:
    by = [word(sub) for sub, patterns in agent.subs.items() if pattern in patterns]
    return _cut(pattern) + (f" (subagent {' and '.join(by)})" if by else "")


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _cut(text: str) -> str:
    shown = text if len(text) <= _LETTERS else text[: _LETTERS - 3] + "..."
    plain = all(c.isascii() and (c.isalnum() or c in _PLAIN) for c in shown)
    return shown if plain else word(shown)
