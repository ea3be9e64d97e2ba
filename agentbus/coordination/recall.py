"""Reads one note with few imports, because a hook may do so at every turn."""

from __future__ import annotations

from agentbus.core import names
from agentbus.store.steps import Script, ServerReply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.core.errors import NotFound
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


def read(scope: Scope, key: str) -> Op[list[bytes]]:
    """Return the fields and values of a note, alternating. Raises `NotFound`."""
    title = names.name("key", key)
    reply = yield Script("recall", (scope.keys.jot(title),))
    if reply[0] is None:
        key = scope.keys.jot(title)
        raise ServerReply(f"WRONGTYPE the key {key!r} is not a hash: another program wrote it")
    if not reply[0]:
        raise missing(title)
    flat: list[bytes] = reply[0]
    return flat


def value(scope: Scope, key: str) -> Op[bytes]:
    """Return the stored value of a note; empty if it has none. Raises `NotFound`."""
    flat = yield from read(scope, key)
    # join() raises TypeError for a reply of the wrong type, which is then reported as a server
    # error.
    return b"".join((flat[flat.index(b"value") + 1],)) if b"value" in flat[::2] else b""


def missing(title: str) -> NotFound:
    """Return the error for a note that does not exist."""
    from agentbus.core.errors import NotFound

    return NotFound(
        f"there is no note {title!r}",
        hint="bus.list_() returns the notes",
        shell_hint="see 'agentbus list'",
    )
