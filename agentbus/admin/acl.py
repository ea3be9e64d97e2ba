"""The rule by which a server confines a user to one project: the keys and the commands it needs.

A server that holds several projects has a user for each, made from `rule`. What a rule allows is
what this package sends: a test reads it out of the source, and another one has such a user do
every verb.
"""

from __future__ import annotations

from agentbus.core.errors import InvalidName, InvalidPayload
from agentbus.core.keys import Keys
from agentbus.core.names import MAX_NAME_BYTES, project as checked_project
from agentbus.core.record import Record

# Scripts run with the rights of whoever calls them: of what they do, nothing is allowed unseen.
READS = frozenset(
    [
        *("ping", "select", "time", "info", "dbsize", "scan", "eval", "evalsha"),
        *("exists", "type", "pttl", "get", "mget"),
        *("hget", "hgetall", "hkeys", "hlen", "hmget", "hscan", "hvals"),
        *("scard", "sismember", "smismember", "sscan"),
        *(
            "zcard",
            "zmscore",
            "zrange",
            "zrangebylex",
            "zrangebyscore",
            "zrevrange",
            "zscan",
            "zscore",
        ),
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
        *("xreadgroup", "xtrim"),
    ]
)
# What finds a project's shard.
CLUSTER = frozenset(["cluster|slots", "command"])

_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:@-")
_SHORTEST_PASSWORD = 16


class AccessRule(Record):
    """What a user may do: `words` are those of Redis's `ACL SETUSER`, in their order.

    They hold no password; at most a digest of one, as `#…`.
    """

    user: str
    project: str
    read_only: bool
    words: tuple[str, ...]

    def command(self) -> str:
        """Return the command that makes the user on a running server, or changes it."""
        return " ".join(("ACL", "SETUSER", self.user, *self.words))

    def line(self) -> str:
        """Return the user's line for a server's ACL file."""
        return " ".join(("user", self.user, *self.words))


def rule(
    project: str,
    *,
    user: str | None = None,
    read_only: bool = False,
    cluster: bool = False,
    password: str | None = None,
) -> AccessRule:
    """Return the rule for a user who can do everything in one project and nothing in another.

    `user` is the project's name where none is given. A reader (`read_only`) can look and wait, and
    changes nothing. With `cluster` the keys have the hash tag that they have on a cluster, and the
    shard can be asked for. Without a password the user's passwords stay as they are; a new user has
    none, and nobody can log in as it. Raises `InvalidName`; `InvalidPayload` for a password of
    less than 16 characters: its digest would tell it to whoever tries them all.
    """
    prefix = checked_project(project)
    bare = prefix.strip("{}")
    if cluster:
        prefix = f"{{{bare}}}"
    allowed = READS | (frozenset() if read_only else WRITES) | (CLUSTER if cluster else frozenset())
    words = (
        "on",
        *(() if password is None else ("resetpass", f"#{_digest(password)}")),
        # Whatever an earlier rule allowed goes; there are no channels to listen to.
        *("resetchannels", "clearselectors", "resetkeys"),
        *(f"~{pattern}" for pattern in Keys(prefix).patterns()),
        "-@all",
        *(f"+{command}" for command in sorted(allowed)),
    )
    return AccessRule(_user(bare if user is None else user), prefix, read_only, words)


def _user(name: str) -> str:
    if not name or len(name) > MAX_NAME_BYTES or not _NAME.issuperset(name):
        raise InvalidName(
            f"{name[:60]!a} is no name for a user of the server",
            hint="use letters, digits, '_', '.', ':', '@' and '-'",
        )
    return name


def _digest(password: str) -> str:
    import hashlib

    if len(password) < _SHORTEST_PASSWORD or not password.isprintable():
        raise InvalidPayload(
            f"the password has fewer than {_SHORTEST_PASSWORD} characters, or some that are no"
            " printable ones",
            hint="make one, such as with 'openssl rand -hex 32'",
        )
    return hashlib.sha256(password.encode()).hexdigest()


# The name that `agentbus.acl` exports.
Rule = AccessRule
