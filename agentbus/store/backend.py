"""Backends: servers, and the links that connect to them."""

from __future__ import annotations

from agentbus.store.connection import PlainLink, Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.store.async_driver import AsyncLink
    from agentbus.store.steps import Link


class Backend(Server):
    """A server, from which blocking and asynchronous links are made.

    With `wraps`, a project's keys share one hash tag and so one shard. `advice`
    is a hint for when the server does not answer.
    """

    wraps = False
    advice: str | None = None

    def link(self) -> Link:
        """Return a blocking link, which connects on first use."""
        return PlainLink(self)

    def alink(self) -> AsyncLink:
        """Return an asynchronous link, which connects on first use."""
        from agentbus.store.async_connection import AsyncPlainLink

        return AsyncPlainLink(self)
