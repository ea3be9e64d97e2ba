"""The bell: one line about messages that wait for an agent, in AgentBus's own words.

Models receive it at the level of their developer, so it contains only counts, checked names and
ages, never text that another agent wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentbus.core.names import is_plain

READ = "Read: agentbus inbox (or the tool catch_up)."
WAS_AWAY = "AgentBus: the bus could not be reached for a while; it is back."
_LONGEST_NAME = 40
_UNCHECKED = "another agent"


def bell(reply: Sequence[Any]) -> str:
    """Return the line for a reply of the script `read_notifications`."""
    return f"AgentBus: {waiting(int(reply[1]), reply[2:])}. {READ}"


def stay(reply: Sequence[Any]) -> str:
    """Return the reason why a turn should not end yet."""
    said = waiting(int(reply[1]), reply[2:])
    return (
        f"AgentBus: before you stop, look at {said}. {READ} Answer an ask: agentbus reply ID TEXT."
    )


def wake(reply: Sequence[Any]) -> str:
    """Return the line that wakes an idle agent."""
    said = waiting(int(reply[1]), reply[2:])
    return (
        f"AgentBus: {said} came while you were idle. {READ} Answer an ask: agentbus reply ID TEXT."
    )


def waiting(now: int, counts: Sequence[Any]) -> str:
    """Return a summary of the waiting messages: asks, urgent messages with their senders, others.

    `counts` are the numbers of asks, urgent messages, others and all unread ones, then senders and times.
    """
    asks, urgent, others, unread = map(int, counts[:4])
    said = []
    if asks:
        said.append(_many(asks, "ask"))
    if urgent:
        said.append(_many(urgent, "urgent message"))
    pairs = counts[4:]
    if said and pairs:
        said[-1] += f" from {_senders(now, pairs)}"
    if others:
        said.append(_many(others, "message"))
    left = unread - asks - urgent - others
    return ", ".join(said) + (f"; {unread} unread in all" if left > 0 else "")


def checked(name: str) -> str:
    """Return a name of plain characters; any other name could be read as a sentence."""
    return name if is_plain(name) and len(name) <= _LONGEST_NAME else _UNCHECKED


def age(seconds: float) -> str:
    """Return a duration in its largest unit."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _senders(now: int, pairs: Sequence[bytes]) -> str:
    """Return the last two senders, each with the age of the message."""
    newest: dict[str, int] = {}
    for at in range(0, len(pairs), 2):
        name = checked(pairs[at].decode("utf-8", "replace"))
        newest[name] = max(newest.get(name, 0), int(pairs[at + 1]))
    last = sorted(newest.items(), key=lambda sender: -sender[1])
    said = [f"{name} ({age((now - sent) / 1000)} ago)" for name, sent in last[:2]]
    return " and ".join(said) + (" and others" if len(last) > 2 else "")


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
