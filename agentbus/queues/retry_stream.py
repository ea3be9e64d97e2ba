"""The stream of retries: tasks put aside that kept done ones from being trimmed are moved there.

An entry has the fields of the one before it, and the place of that one, which names the task. Nobody reads
this stream: the script that writes an entry gives it to its group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentbus.core import envelope
from agentbus.core.errors import ConfigError
from agentbus.core.stream import text
from agentbus.queues.ids import ASIDE, MOVED_FROM, PRIORITIES, RETRY, ROUTER, split, suffix
from agentbus.store.steps import Batch, Command, Script, ServerReply

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_PLACE = r"\d{1,20}-\d{1,20}@[^\n]*"
_AT_ONCE = 100


def decode(flat: Sequence[bytes]) -> tuple[Any, dict[str, Any]]:
    """Return the payload and the envelope of an entry; raises `ValueError` if it is malformed."""
    named = dict(zip(flat[::2], flat[1::2], strict=False))
    place = named.pop(MOVED_FROM.encode(), b"").decode()
    if not re.fullmatch(_PLACE, place) or split(place)[2] not in PRIORITIES:
        raise ValueError("the entry does not say from where its task was moved")
    payload, meta = envelope.decode([word for pair in named.items() for word in pair])
    meta.setdefault("id", place)
    return payload, {**meta, MOVED_FROM: place}


def make_room(scope: Scope, queue: str, priority: str, full: Sequence[Any]) -> Op[bool]:
    """Move the tasks put aside for which a full stream keeps done ones; return whether there were any.

    `full` is the reply of the script that was refused. A user who may only publish moves nothing.
    """
    group = text(full[2])
    if not full[3] or not group or group == ROUTER:
        return False
    try:
        return bool((yield from move_aside(scope, queue, group, priority)))
    except ConfigError:
        # By this user's rules; the caller is refused, as it was before.
        return False


def move_aside(scope: Scope, queue: str, group: str, priority: str) -> Op[int]:
    """Move the tasks put aside at the old end of a group's stream; return how many."""
    moved, number, crowded = 0, _AT_ONCE, 0
    while number == _AT_ONCE:
        number, crowded = yield _move(scope, queue, group, priority)
        moved += number
    while moved and crowded:
        number, crowded = yield _move(scope, queue, group, RETRY)
        crowded = number and crowded
    return moved


def _move(scope: Scope, queue: str, group: str, source: str) -> Script:
    keys = scope.keys
    places = [
        key
        for priority in (source, RETRY)
        for key in (
            keys.queue(queue, priority),
            keys.attempts(queue, group, priority),
            keys.retries(queue, group, priority),
        )
    ]
    return Script(
        "move_retries",
        (*places, keys.moved(queue), keys.bell(queue)),
        (group, ASIDE, _AT_ONCE, suffix(queue, source)),
        writes=True,
    )


def entry_of(scope: Scope, queue: str, place: str, group: str) -> Op[str | None]:
    """Return the entry of a task that was moved from a place; None if the group has done it."""
    moved = yield Command("HGET", scope.keys.moved(queue), f"{place}\n{group}")
    if moved is None:
        return None
    stream, entry = scope.keys.queue(queue, RETRY), text(moved)
    (held,) = yield Batch([("XPENDING", stream, group, entry, entry, 1)])
    return entry if held and not isinstance(held, ServerReply) else None
