"""The bell: one line about messages that wait for an agent, in AgentBus's own words.

Models receive it at the level of their developer, so it contains only counts, checked names and
ages, never text that another agent wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentbus.core.names import is_plain

READ = "Read: agentbus inbox (or the tool catch_up)."
_READ_ALL = "Read: agentbus inbox --all (or the tool catch_up)."
WAS_AWAY = "AgentBus: the bus could not be reached for a while; it is back."
_LONGEST_NAME = 40
# Maximum number of topics, and of authors, in one line.
_NAMED = 3


def bell(reply: Sequence[Any]) -> str:
    """Return the line for a reply of the script `read_notifications`."""
    spoken = said_to_all(reply[3])
    parts = [part for part in (waiting(int(reply[1]), reply[2]), spoken) if part]
    return f"AgentBus: {', '.join(parts)}{left(reply[2])}. {_READ_ALL if spoken else READ}"


def stay(reply: Sequence[Any]) -> str:
    """Return the reason why a turn should not end yet."""
    messages = f"{waiting(int(reply[1]), reply[2])}{left(reply[2])}"
    return f"AgentBus: before you stop, look at {messages}. {READ} Answer an ask: agentbus reply ID TEXT."


def wake(reply: Sequence[Any]) -> str:
    """Return the line that wakes an idle agent."""
    messages = f"{waiting(int(reply[1]), reply[2])} came while you were idle{left(reply[2])}"
    return f"AgentBus: {messages}. {READ} Answer an ask: agentbus reply ID TEXT."


def waiting(now: int, counts: Sequence[Any]) -> str:
    """Return a summary of the waiting messages: asks, urgent messages with their senders, others.

    `counts` are the numbers of asks, urgent messages, others and all unread ones, then senders and times.
    """
    asks, urgent, others = map(int, counts[:3])
    parts = []
    if asks:
        parts.append(_many(asks, "ask"))
    if urgent:
        parts.append(_many(urgent, "urgent message"))
    pairs = counts[4:]
    if parts and pairs:
        parts[-1] += f" from {_senders(now, pairs)}"
    if others:
        parts.append(_many(others, "message"))
    return ", ".join(parts)


def left(counts: Sequence[Any]) -> str:
    """Return the number of all unread messages, if it is larger than that of the new ones."""
    asks, urgent, others, unread = map(int, counts[:4])
    return f"; {unread} unread in all" if unread > asks + urgent + others else ""


def said_to_all(spoken: Sequence[Any]) -> str:
    """Return what was spoken, such as `2 spoken on build, by ci`; '' for nothing.

    `spoken` is the reply of the Lua library of that name.
    """
    if not spoken:
        return ""
    topics: dict[str, int] = {}
    authors: dict[str, int] = {}
    for topic, author, number in spoken[2:]:
        names = topic.decode("utf-8", "replace"), author.decode("utf-8", "replace")
        if names[0]:
            shown = checked(names[0], "another topic")
            topics[shown] = topics.get(shown, 0) + int(number)
        authors.setdefault(checked(names[1]), 0)
    text = f"{int(spoken[0])}{'+' if int(spoken[1]) else ''} spoken"
    if len(topics) == 1 and sum(topics.values()) == int(spoken[0]):
        text += f" on {next(iter(topics))}"
    elif topics:
        text += f" on {_few([f'{topic} ({number})' for topic, number in topics.items()])}"
    return f"{text}, by {_few([*authors])}"


def _few(names: Sequence[str]) -> str:
    """Return the first three names."""
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} and others"
    return " and ".join([part for part in (", ".join(names[:-1]), names[-1]) if part])


def checked(name: str, unchecked: str = "another agent") -> str:
    """Return a name of plain characters; any other name could be read as a sentence."""
    return name if is_plain(name) and len(name) <= _LONGEST_NAME else unchecked


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
    shown = [f"{name} ({age((now - sent) / 1000)} ago)" for name, sent in last[:2]]
    return " and ".join(shown) + (" and others" if len(last) > 2 else "")


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
