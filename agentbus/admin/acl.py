"""ACL rules that confine a user of the server to one project: its keys, and the commands it needs.

A server with several projects has a user for each, created from `rule`. A rule allows exactly the
commands that this package sends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agentbus.core.errors import InvalidName, InvalidPayload, UsageError
from agentbus.core.keys import Keys
from agentbus.core.names import KEY_KINDS, MAX_NAME_BYTES, project as checked_project
from agentbus.queues.shards import MARK

# Scripts run with the permissions of their caller, so their commands are on these lists, too.
READS = frozenset(
    [
        *("ping", "select", "time", "info", "dbsize", "scan", "client|setname"),
        *("eval", "evalsha", "script|exists"),
        *("exists", "type", "pttl", "get", "mget", "wait"),
        *("hget", "hgetall", "hkeys", "hlen", "hmget", "hscan", "hvals"),
        *("scard", "sismember", "smismember", "sscan"),
        *("zcard", "zlexcount", "zmscore", "zrange", "zrangebylex", "zrangebyscore"),
        *("zrevrange", "zscan", "zscore"),
        *("xinfo|consumers", "xinfo|groups", "xinfo|stream"),
        *("xlen", "xpending", "xrange", "xread", "xrevrange"),
    ]
)
WRITES = frozenset(
    [
        *("set", "setex", "del", "unlink", "expire", "pexpire", "incr"),
        *("hdel", "hincrby", "hset", "hsetnx", "sadd", "srem"),
        *("zadd", "zincrby", "zrem", "zremrangebyrank", "zremrangebyscore"),
        *("xack", "xadd", "xclaim", "xgroup|create", "xgroup|delconsumer"),
        *("xgroup|destroy", "xgroup|setid", "xreadgroup", "xsetid", "xtrim"),
    ]
)
# Kinds of keys that a publisher may write, besides those that it needs to add tasks to queues.
TALK = frozenset(
    [
        *("ch", "last", "heard", "once", "agents", "topics", "jot", "jots", "jots_by_tag"),
        *("flag", "done", "failed", "fence"),
        *("who", "inbox", "leases"),
    ]
)
_OF_GROUPS = frozenset(command for command in WRITES if command.startswith("xgroup")) | {
    *("xack", "xclaim", "xreadgroup")
}
# XTRIM removes entries that every group has finished, and replies that no caller waits for.
_ADDED = {
    "q": ("xadd", "xtrim"),
    "order": ("zadd",),
    # No HSET: a stored task is not replaced.
    "delayed": ("hsetnx", "xadd", "zadd"),
    "after": ("hsetnx", "zadd"),
    # Nothing that sets it: an id is given once.
    "ids": ("incr",),
    "seen": ("set",),
    "stats": ("hincrby", "hset"),
}
_NOTED = {
    "queues": ("zadd",),
    "metrics": ("xadd",),
    "replies": ("xtrim",),
    "sinks": ("expire", "zadd", "zremrangebyscore"),
    "flows": ("hsetnx", "zadd", "zremrangebyscore"),
    "sessions": ("hdel", "hset"),
}
ROLES = ("publisher", "worker")
# Commands that run scripts, and the command that calls the functions that replace scripts.
SCRIPTS = frozenset(["eval", "evalsha", "script|exists"])
FUNCTIONS = frozenset(["fcall"])
# Servers before Redis 7.2 refuse a rule with this command; an administrator adds it by hand for
# `durable="disk"`.
BY_HAND = frozenset(["waitaof"])
# Commands that find a project's shard.
CLUSTER = frozenset(["cluster|slots", "command"])

_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:@-")
_SHORTEST_PASSWORD = 16


@dataclass(frozen=True, slots=True)
class AccessRule:
    """The permissions of a user: `words` are the arguments of Redis's `ACL SETUSER`, in order.

    They contain a digest of the password (`#…`), never the password.
    """

    user: str
    project: str
    read_only: bool
    words: tuple[str, ...]
    role: str | None = None
    functions: bool = False

    def command(self) -> str:
        """Return the command that creates or changes the user on a running server."""
        return " ".join(("ACL", "SETUSER", self.user, *self.words))

    def line(self) -> str:
        """Return the user's line in an ACL file."""
        return " ".join(("user", self.user, *self.words))


def rule(
    project: str,
    *,
    user: str | None = None,
    read_only: bool = False,
    role: str | None = None,
    functions: bool = False,
    cluster: bool = False,
    password: str | None = None,
) -> AccessRule:
    """Return the rule for a user with full access to one project and none to others.

    `user` is by default the project's name. With `read_only` the user can read and wait, and cannot write;
    it runs no scripts, as with `functions`: a script also changes state that all users of a server share.
    With the `role` "publisher" the user talks, takes flags, publishes and reads results, but cannot take or
    settle tasks, nor add to the queues of the bus itself; "worker" is the same as None: all.
    With `functions` the user runs no scripts, but calls what `agentbus server load` has loaded.
    With `cluster` the keys have the hash tag of a cluster, or those of the project's shards, and the user
    may look up the nodes. Without `password` the user's passwords stay as they are; a new user has none and
    cannot log in. Raises `InvalidName`, and `InvalidPayload` for a password of less than 16 characters,
    which could be guessed from its digest.
    """
    if role not in (None, *ROLES) or (role and read_only):
        raise UsageError(
            f"a user cannot have the role {role!r}" + (" and read only" if read_only else ""),
            hint=f"give one of {', '.join(ROLES)}, or read_only",
        )
    prefix = checked_project(project)
    bare = prefix.strip("{}")
    if cluster:
        prefix = f"{{{bare}}}"
    writes = WRITES if role != "publisher" and not read_only else frozenset()
    allowed = READS | writes | (CLUSTER if cluster else frozenset())
    functions = functions or read_only
    if functions:
        allowed = allowed - SCRIPTS | FUNCTIONS
    words = (
        "on",
        *(() if password is None else ("resetpass", f"#{_digest(password)}")),
        # Revoke the rights of an earlier rule. The bus does not use pub/sub channels.
        *("resetchannels", "clearselectors", "resetkeys"),
        *(f"~{pattern}" for pattern in _patterns(prefix, KEY_KINDS)),
        "-@all",
        *(f"+{command}" for command in sorted(allowed)),
        *(_publishing(prefix) if role == "publisher" else ()),
    )
    return AccessRule(
        _user(bare if user is None else user), prefix, read_only, words, role, functions
    )


def _publishing(prefix: str) -> Iterator[str]:
    """Yield the words that allow a publisher to write: a selector for each group of keys."""
    yield from _selector(_patterns(prefix, TALK), WRITES - _OF_GROUPS)
    for kind, commands in _ADDED.items():
        own = Keys(prefix).open_pattern(kind)
        yield from _selector(_with_shards(prefix, [own]), commands)
    for kind, commands in _NOTED.items():
        yield from _selector(_patterns(prefix, [kind]), commands)


def _patterns(prefix: str, kinds: Iterable[str]) -> list[str]:
    return _with_shards(prefix, Keys(prefix).patterns(kinds))


def _with_shards(prefix: str, patterns: list[str]) -> list[str]:
    """Add the same patterns for the shards of a project with a hash tag, whose prefix is `{P~<number>}`."""
    if not prefix.startswith("{"):
        return patterns
    # No project's name contains the mark, so no other project has such keys.
    shards = f"{prefix[:-1]}{MARK}[0-9]*}}"
    return [*patterns, *(shards + pattern.removeprefix(prefix) for pattern in patterns)]


def _selector(patterns: Iterable[str], commands: Iterable[str]) -> list[str]:
    """Return the words of a selector, which Redis accepts as one argument or as several."""
    words = [*(f"~{one}" for one in patterns), *(f"+{one}" for one in sorted(commands))]
    return [f"({words[0]}", *words[1:-1], f"{words[-1]})"]


def _user(name: str) -> str:
    if not name or len(name) > MAX_NAME_BYTES or not _NAME.issuperset(name):
        raise InvalidName(
            f"{name[:60]!a} is not a valid name of a server's user",
            hint="use letters, digits, '_', '.', ':', '@' and '-'",
        )
    return name


def _digest(password: str) -> str:
    if len(password) < _SHORTEST_PASSWORD or not password.isprintable():
        raise InvalidPayload(
            f"the password has fewer than {_SHORTEST_PASSWORD} characters, or unprintable ones",
            hint="generate one, such as with 'openssl rand -hex 32'",
        )
    return hashlib.sha256(password.encode()).hexdigest()


# Public name of the class: `agentbus.acl.Rule`.
Rule = AccessRule
