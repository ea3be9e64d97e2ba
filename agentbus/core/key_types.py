"""The Redis types of a project's keys: another program may have stored a key as another type."""

from __future__ import annotations

from agentbus.core.names import KEY_KINDS

# By the kind of a key.
_TYPES = {
    **dict.fromkeys(("ch", "inbox", "q", "dlq", "metrics", "replies", "ev"), "stream"),
    **dict.fromkeys(("jot", "heard", "sessions", "who", "leases", "tokens", "paused"), "hash"),
    **dict.fromkeys(("quarantined", "positions", "stats", "readers", "replays"), "hash"),
    **dict.fromkeys(("agents", "topics", "jots", "jots_by_tag", "queues", "beat"), "zset"),
    **dict.fromkeys(("schedules", "flows", "delayed", "order", "triggers", "rate"), "zset"),
    **dict.fromkeys(("once", "seen", "results", "tidied", "last"), "string"),
    **dict.fromkeys(("flag", "done", "failed", "fence", "ids", "salt"), "string"),
    **dict.fromkeys(("after", "limits", "shards"), "hash"),
    "sinks": "zset",
    "attempts": "stream",
}
# With further parts.
_OTHER = {"beat": "hash", "after": "zset", "attempts": "hash"}
# Kinds with a name that is not encoded: it may look like further parts.
_LITERAL = frozenset(("flag", "done", "failed", "fence", "jot", "jots_by_tag"))
# By the kind, the number of parts that follow it, and the first or the last of them.
_PARTS = {
    **dict.fromkeys(("agents 1 sessions", "agents 1 waiting"), "zset"),
    **dict.fromkeys(("inbox 2 at", "inbox 2 answers", "leases 1 refused"), "hash"),
    **dict.fromkeys(("delayed 2 bodies", "dlq 3 replayed", "schedules 2 of"), "hash"),
    **dict.fromkeys(("flows 2 of", "ev 2 relay", "ev 2 readers"), "hash"),
    **dict.fromkeys(
        ("inbox 2 bell", "leases 1 bell", "delayed 2 bell", "schedules 1 bell"), "stream"
    ),
    **dict.fromkeys(("leases 1 fence", "attempts 1 fence"), "string"),
    **dict.fromkeys(
        ("after 2 of", "attempts 4 due", "limits 3 waiting", "inbox 2 asks"),
        "zset",
    ),
    "shards 1 awaited": "zset",
    "after 2 bodies": "hash",
    "attempts 2 retry": "stream",
    "dlq 3 purged": "set",
}


def type_of(key: str) -> str | None:
    """Return the Redis type that the bus gives a key of any project; None for a key that is not known."""
    _, *parts = key.split(":")
    at = next((number for number, part in enumerate(parts) if part in KEY_KINDS), None)
    if at is None:
        return None
    kind, *rest = parts[at:]
    if rest and kind not in _LITERAL:
        for part in (rest[0], rest[-1]):
            if known := _PARTS.get(f"{kind} {len(rest)} {part}"):
                return known
        if kind in _OTHER:
            return _OTHER[kind]
    return _TYPES.get(kind)


def spoilt(key: str, kind: str) -> str | None:
    """Return a sentence about a key if its type is not the one that the bus gives it."""
    wanted = type_of(key)
    if wanted is None or kind in (wanted, "none"):
        return None
    return f"the key {key!r} is a {kind}, and should be a {wanted}: another program wrote it"
