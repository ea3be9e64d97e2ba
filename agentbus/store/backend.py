"""Backends: servers, and the links that connect to them."""

from __future__ import annotations

from agentbus.store.connection import PlainLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.store.async_driver import AsyncLink
    from agentbus.store.steps import Link
    from agentbus.store.target import Target


class Backend:
    """A server, from which blocking and asynchronous links are made.

    `name` stands for it in messages, without secrets. `find` locates the server, `revive` starts it; each
    takes a limit in seconds. With `wraps`, a project's keys share one hash tag and so one shard. `advice`
    is a hint for when the server does not answer.
    """

    wraps = False
    advice: str | None = None

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

    def link(self) -> Link:
        """Return a blocking link, which connects on first use."""
        return PlainLink(self.name, self.find, revive=self.revive)

    def alink(self) -> AsyncLink:
        """Return an asynchronous link, which connects on first use."""
        from agentbus.store.async_connection import AsyncPlainLink

        return AsyncPlainLink(self.name, self.find, revive=self.revive)
