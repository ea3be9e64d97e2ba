"""Counts the dead letters of a group that were neither replayed nor purged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentbus.core.keys import Keys


def requests(keys: Keys, name: str, group: str) -> tuple[tuple[str, str], ...]:
    """Return the requests about the letters of a group that are stored under a name."""
    return (
        ("XLEN", keys.dead_letters(name, group)),
        # The stream keeps a purged letter until it is the oldest one.
        ("SCARD", keys.purged(name, group)),
        ("HLEN", keys.replayed(name, group)),
    )


def left(replies: Iterator[Any]) -> int:
    """Return the number of letters by the next replies to these requests."""
    # A key of another type answers with an error.
    numbers = (reply if isinstance(reply, int) else 0 for reply in islice(replies, 3))
    return max(0, next(numbers) - sum(numbers))
