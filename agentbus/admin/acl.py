"""ACL rules that confine a user of the server to one project: its keys, and the commands it needs.

A server with several projects has a user for each, created from `rule`. A rule allows exactly the commands
that this package sends: one test collects them from the source, another runs every verb as such a user.
"""

from __future__ import annotations

from agentbus.core.errors import InvalidName, InvalidPayload
from agentbus.core.keys import Keys
from agentbus.core.names import MAX_NAME_BYTES, project as checked_project
from agentbus.core.record import Record

# Scripts run with the permissions of their caller, so their commands are on these lists, too.
READS = frozenset(
    [
        *("ping", "select", "time", "info", "dbsize", "scan", "eval", "evalsha", "client|setname"),
        *("exists", "type", "pttl", "get", "mget"),
        *("hget", "hgetall", "hkeys", "hlen", "hmget", "hscan", "hvals"),
        *("scard", "sismember", "smismember", "sscan"),
        *("zcard", "zmscore", "zrange", "zrangebylex", "zrangebyscore"),
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
        *("xgroup|destroy", "xreadgroup", "xtrim"),
    ]
)
# Commands that find a project's shard.
CLUSTER = frozenset(["cluster|slots", "command"])

_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:@-")
_SHORTEST_PASSWORD = 16


class AccessRule(Record):
    """The permissions of a user: `words` are the arguments of Redis's `ACL SETUSER`, in order.

    They contain a digest of the password (`#…`), never the password.
    """

    user: str
    project: str
    read_only: bool
    words: tuple[str, ...]

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
    cluster: bool = False,
    password: str | None = None,
) -> AccessRule:
    """Return the rule for a user with full access to one project and none to others.

    `user` is by default the project's name. With `read_only` the user can read and wait, and cannot write.
    With `cluster` the keys have the hash tag of a cluster, and the user may look up the shard. Without
    `password` the user's passwords stay as they are; a new user has none and cannot log in. Raises
    `InvalidName`, and `InvalidPayload` for a password of less than 16 characters, which could be guessed
    from its digest.
    """
    prefix = checked_project(project)
    bare = prefix.strip("{}")
    if cluster:
        prefix = f"{{{bare}}}"
    allowed = READS | (frozenset() if read_only else WRITES) | (CLUSTER if cluster else frozenset())
    words = (
        "on",
        *(() if password is None else ("resetpass", f"#{_digest(password)}")),
        # Removes what an earlier rule allowed; pub/sub channels are not used.
        *("resetchannels", "clearselectors", "resetkeys"),
        *(f"~{pattern}" for pattern in Keys(prefix).patterns()),
        "-@all",
        *(f"+{command}" for command in sorted(allowed)),
    )
    return AccessRule(_user(bare if user is None else user), prefix, read_only, words)


def _user(name: str) -> str:
    if not name or len(name) > MAX_NAME_BYTES or not _NAME.issuperset(name):
        raise InvalidName(
            f"{name[:60]!a} is not a valid name of a server's user",
            hint="use letters, digits, '_', '.', ':', '@' and '-'",
        )
    return name


def _digest(password: str) -> str:
    import hashlib

    if len(password) < _SHORTEST_PASSWORD or not password.isprintable():
        raise InvalidPayload(
            f"the password has fewer than {_SHORTEST_PASSWORD} characters, or unprintable ones",
            hint="generate one, such as with 'openssl rand -hex 32'",
        )
    return hashlib.sha256(password.encode()).hexdigest()


# The name that `agentbus.acl` exports.
Rule = AccessRule
