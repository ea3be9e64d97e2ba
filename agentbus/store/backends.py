"""Picks what runs the commands, by the scheme of a URL; no URL means the embedded server."""

from __future__ import annotations

from agentbus.core.keys import Scope
from agentbus.core.settings import socket_path
from agentbus.store.connection import PlainLink, Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.core.settings import Settings
    from agentbus.store.async_driver import AsyncLink
    from agentbus.store.operation import Link


_EMBEDDED_ADVICE = (
    "see 'agentbus server status' and its log; 'agentbus server repair' mends a damaged file"
)


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


def enter(settings: Settings) -> tuple[Backend, Scope]:
    """Return the backend that the settings name, and the scope that operations on it work in."""
    project = settings.project
    if settings.url is None:
        target = Target(path=socket_path())
        chosen = Backend("the embedded server", lambda _within: target, revive=_start)
        chosen.advice = _EMBEDDED_ADVICE
    else:
        from agentbus.store.schemes import backend

        chosen = backend(settings.url, project)
    if chosen.wraps and not project.startswith("{"):
        project = f"{{{project}}}"
    return chosen, Scope(
        project, settings.agent, max_body=settings.max_body, webhooks=settings.webhooks
    )


def _start(within: float) -> None:
    from agentbus.store.embedded.launch import ensure

    ensure(within)
