"""Counts the dead letters of a group that were neither replayed nor purged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentbus.core.keys import Keys


def requests(keys: Keys, name: str, group: str) -> tuple[tuple[str, str], ...]:
    """Return the commands that count a group's dead letters stored under a name."""
    return (
        ("XLEN", keys.dead_letters(name, group)),
        # A purged letter stays in the stream until it is the oldest entry.
        ("SCARD", keys.purged(name, group)),
        ("HLEN", keys.replayed(name, group)),
    )


def left(replies: Iterator[Any]) -> int:
    """Return the number of letters from the next replies to these commands."""
    # The reply is an error if the key has another type.
    numbers = (reply if isinstance(reply, int) else 0 for reply in islice(replies, 3))
    return max(0, next(numbers) - sum(numbers))
