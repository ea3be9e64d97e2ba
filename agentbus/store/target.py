"""The address of a server, and the commands that open a connection to it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from agentbus.store.steps import Arg


class Server:
    """A server by its name in messages, without secrets.

    `find` locates it, and `revive`, if given, starts it; each takes a limit in seconds.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[float], Target],
        *,
        revive: Callable[[float], None] | None = None,
    ) -> None:
        self.name = name
        self.find = find
        self.revive = revive


class Target:
    """The address and login of a server; `tls` is an `ssl.SSLContext`."""

    __slots__ = ("database", "host", "password", "path", "port", "tls", "username")

    def __init__(
        self,
        *,
        path: str | None = None,
        host: str = "localhost",
        port: int = 6379,
        username: str | None = None,
        password: str | None = None,
        database: int = 0,
        tls: Any = None,
    ) -> None:
        self.path = path
        self.host = host
        self.port = port
        self.username = username
        self.password = password
        self.database = database
        self.tls = tls

    def greeting(self) -> list[tuple[Arg, ...]]:
        """Return the commands that open a connection; they are sent with the first request."""
        commands: list[tuple[Arg, ...]] = []
        if self.password is not None:
            user = () if self.username is None else (self.username,)
            commands.append(("AUTH", *user, self.password))
        if self.database:
            commands.append(("SELECT", self.database))
        return commands
