"""A server that can be reached, blocking or asynchronously."""

from __future__ import annotations

from agentbus.store.connection import PlainLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.store.async_driver import AsyncLink
    from agentbus.store.steps import Link
    from agentbus.store.target import Target


class Backend:
    """A server that can be reached, blocking or asynchronously; nothing is opened yet.

    `name` is how messages call it, without secrets. `find` says where it is, `revive` starts it, both
    within so many seconds. `wraps` says that a project's keys need one hash tag, so that they lie
    on one shard. `advice` is what to do where it does not serve.
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
        """Return a blocking link, which connects when it is used."""
        return PlainLink(self.name, self.find, revive=self.revive)

    def alink(self) -> AsyncLink:
        """Return an asynchronous link, which connects when it is used."""
        from agentbus.store.async_connection import AsyncPlainLink

        return AsyncPlainLink(self.name, self.find, revive=self.revive)
