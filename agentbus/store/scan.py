"""Finds keys of a project by SCAN."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from agentbus.core.names import unescape
from agentbus.core.stream import text
from agentbus.store.steps import Command, floor

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op, Step


# Keys, or members of a set, that one request examines; it blocks the server for about a
# millisecond.
AT_ONCE = 1_000


def queues(scope: Scope) -> Op[list[str]]:
    """Return the names of the project's queues."""
    names = set()
    keys = yield from scan(scope, "q")
    prefix = f"{scope.keys.project}:q:"
    for key in keys:
        names.add(unescape(text(key_bytes(key[len(prefix) :])).partition(":")[0]))
    return sorted(names)


def scan(
    scope: Scope, *kinds: str | None, of: str | None = None, count: int = AT_ONCE
) -> Generator[Step, Any, set[str]]:
    """Return the keys with this project's prefix (of these kinds, unless None), in one SCAN.

    A SCAN passes over all keys of the server, including those of other projects. `of` is a Redis type;
    `count` is how many keys one request examines.
    """
    yield floor()
    keys: set[str] = set()
    # The pattern for several kinds also matches others with the same first letters.
    heads = tuple(f"{scope.keys.project}:{kind}:" for kind in kinds)
    cursor: bytes | int = 0
    while True:
        cursor, page = yield Command(
            *("SCAN", cursor, "MATCH", scope.keys.pattern(*kinds), "COUNT", count),
            *(() if of is None else ("TYPE", of)),
        )
        names = (key.decode("utf-8", "surrogateescape") for key in page)
        keys.update(key for key in names if kinds == (None,) or key.startswith(heads))
        if int(cursor) == 0:
            return keys


def members(key: str) -> Generator[Step, Any, list[str]]:
    """Return the members of a sorted set, by ZSCAN, once each; new members may be missing."""
    distinct: dict[bytes, None] = {}
    cursor: bytes | int = 0
    while True:
        cursor, flat = yield Command("ZSCAN", key, cursor, "COUNT", AT_ONCE)
        distinct.update(dict.fromkeys(flat[::2]))
        if int(cursor) == 0:
            return [text(member) for member in distinct]


def hash_fields(key: str, most: int) -> Generator[Step, Any, dict[bytes, bytes]]:
    """Return the fields and values of a hash, about `most` at most, by HSCAN."""
    fields: dict[bytes, bytes] = {}
    cursor: bytes | int = 0
    while True:
        cursor, flat = yield Command("HSCAN", key, cursor, "COUNT", AT_ONCE)
        fields.update(zip(flat[::2], flat[1::2], strict=True))
        if int(cursor) == 0 or len(fields) >= most:
            return fields


def key_bytes(key: str) -> bytes:
    """Return a scanned key as the server stores it."""
    # Another program may have written titles that are not UTF-8.
    return key.encode("utf-8", "surrogateescape")
