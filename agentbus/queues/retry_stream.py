"""The retry stream: holds deferred tasks that would keep done tasks from being trimmed.

An entry has the fields of the original entry, and its place, which identifies the task. Nobody reads this
stream: the script that writes an entry claims it for its group.
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
    """Move the deferred tasks that fill a stream with done ones; return whether there were any.

    `full` is the reply of the refused script. For a user who may only publish, nothing is moved.
    """
    group = text(full[2])
    if not full[3] or not group or group == ROUTER:
        return False
    try:
        return bool((yield from move_aside(scope, queue, group, priority)))
    except ConfigError:
        # The server's ACL forbids this user to move tasks: the publish is refused as before.
        return False


def move_aside(scope: Scope, queue: str, group: str, priority: str) -> Op[int]:
    """Move the deferred tasks at the old end of a group's stream; return their number."""
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
    """Return the entry of a task that was moved from a place; None if the group has done the task."""
    moved = yield Command("HGET", scope.keys.moved(queue), f"{place}\n{group}")
    if moved is None:
        return None
    stream, entry = scope.keys.queue(queue, RETRY), text(moved)
    (held,) = yield Batch([("XPENDING", stream, group, entry, entry, 1)])
    return entry if held and not isinstance(held, ServerReply) else None
