"""Picks what runs the commands, by the scheme of a URL; no URL means the embedded server."""

from __future__ import annotations

from agentbus.keys import Scope
from agentbus.settings import socket_path
from agentbus.store.wire import PlainLink, Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.settings import Settings
    from agentbus.store import Link
    from agentbus.store.adrive import AsyncLink


class Backend:
    """A server that can be reached, blocking or asynchronously; nothing is opened yet.

    `name` is how messages call it, without secrets. `find` says where it is now; `revive` starts it,
    within so many seconds. `wraps` says that a project's keys need one hash tag, so that they lie
    on one shard.
    """

    wraps = False

    def __init__(
        self,
        name: str,
        find: Callable[[], Target],
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
        from agentbus.store.asynchronous import AsyncPlainLink

        return AsyncPlainLink(self.name, self.find, revive=self.revive)


def enter(settings: Settings) -> tuple[Backend, Scope]:
    """Return the backend that the settings name, and the scope that operations on it work in."""
    project = settings.project
    if settings.url is None:
        target = Target(path=socket_path())
        chosen = Backend("the embedded server", lambda: target, revive=_start)
    else:
        from agentbus.schemes import backend

        chosen = backend(settings.url, project)
    if chosen.wraps and not project.startswith("{"):
        project = f"{{{project}}}"
    return chosen, Scope(project, settings.agent)


def _start(within: float) -> None:
    from agentbus.server.launch import ensure

    ensure(within)
