"""The pages of a server's other projects, one application each, below `/p/NAME`."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from starlette.responses import HTMLResponse

from agentbus.admin.projects import described, listed
from agentbus.client.aio import AsyncBus
from agentbus.core import names
from agentbus.core.errors import AgentBusError, NotFound
from agentbus.dashboard.web.guard import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from agentbus.admin.projects import Project
    from agentbus.dashboard.web.live import LiveFeed

# Applications of other projects that are open at once; above it the one unused for longest is closed.
MOST_OPEN = 8
# Names in the switcher, keys examined for them, the seconds for which they are kept, and those for which
# a page waits for new ones.
_MOST_NAMES, _EXAMINED, _KEPT, _WAIT = 100, 100_000, 30.0, 0.5
# Browsers resolve these in the paths of addresses.
_NOT_IN_PATHS = frozenset((".", ".."))


@dataclass(slots=True)
class _Opened:
    """The open pages of a project, and the number of their requests in progress."""

    bus: AsyncBus
    app: ASGIApp
    feed: LiveFeed
    requests: int = 0


class OtherProjects:
    """Serves the projects of a server that its user may read, opened at first use.

    `pages` returns the application of a bus and its feed, `message` renders a page without a project.
    Requests are accepted by the guard of the application around it, which has one session for all.
    """

    def __init__(
        self,
        bus: AsyncBus,
        pages: Callable[[AsyncBus], tuple[ASGIApp, LiveFeed]],
        message: Callable[[str, str, str], str],
    ) -> None:
        self._bus = bus
        self._pages = pages
        self._message = message
        self._names: tuple[str, ...] = ()
        self._until = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._opened: dict[str, _Opened] = {}
        self._opening = asyncio.Lock()

    async def names(self) -> tuple[str, ...]:
        """Return the projects that may be read, by name; none if this is only the bus's own."""
        if self._reading is None and monotonic() > self._until:
            self._reading = asyncio.create_task(self._read())
        if self._reading is not None:
            await asyncio.wait((self._reading,), timeout=_WAIT)
        return self._names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to a page of a project."""
        try:
            opened = await self._open(scope["path_params"]["project"])
        except AgentBusError as error:
            text = self._message(scope[ROOT], "Not found", error.message)
            await HTMLResponse(text, 404)(scope, receive, send)
            return
        opened.requests += 1
        try:
            await opened.app(scope, receive, send)
        finally:
            opened.requests -= 1

    async def aclose(self) -> None:
        """End all streams, and close the connections."""
        if self._reading is not None:
            self._reading.cancel()
        while self._opened:
            await _close(self._opened.popitem()[1])

    async def _open(self, project: str) -> _Opened:
        async with self._opening:
            opened = self._opened.pop(project, None)
            if opened is None:
                opened = await self._made(names.project(project))
                unused = [name for name, other in self._opened.items() if not other.requests]
                for name in unused[: max(0, len(self._opened) + 1 - MOST_OPEN)]:
                    await _close(self._opened.pop(name))
            self._opened[project] = opened
            return opened

    async def _made(self, project: str) -> _Opened:
        """Return the pages of a project. Raises `NotFound` unless the user may read it."""
        known = await self._bus.runner.run(described([project]), verb="projects")
        if not any(map(_is_readable, known)):
            raise NotFound(
                f"there is no project {project!r} that this user of the server may read",
                hint="choose one of the switcher",
            )
        settings = copy.copy(self._bus.settings)
        settings.project = project
        bus = AsyncBus(settings)
        return _Opened(bus, *self._pages(bus))

    async def _read(self) -> None:
        try:
            listing = await self._bus.runner.run(
                listed(self._bus.scope, one_shard=self._bus.backend.wraps, most=_EXAMINED),
                verb="projects",
            )
        except AgentBusError:
            self._names = ()
        else:
            newest = [row.project for row in listing.projects if _is_readable(row)][:_MOST_NAMES]
            shown = sorted({*newest, self._bus.project} - _NOT_IN_PATHS)
            self._names = tuple(shown) if len(shown) > 1 else ()
        self._until = monotonic() + _KEPT
        self._reading = None


def _is_readable(project: Project) -> bool:
    return project.agents is not None and project.queues is not None


async def _close(opened: _Opened) -> None:
    await opened.feed.aclose()
    await opened.bus.aclose()
