"""The browsers that show a page: the data sent to each, and the data not received yet."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import orjson

from agentbus.dashboard.web.page import WebPage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from agentbus.dashboard.web.page import PageView

# Maximum number of bytes that a browser may be behind.
_BEHIND = 2_000_000
# Seconds without output after which a comment is sent, which detects a browser that has gone.
_QUIET = 15.0


class Viewer:
    """A browser that shows a page; `since` is the last message that it has seen."""

    def __init__(self, view: PageView, since: str) -> None:
        self.view = view
        self.since = since
        # Set when the browser is too far behind.
        self.dropped = asyncio.Event()
        self._shown: dict[str, int] = {}
        self._ended = False
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._came = asyncio.Event()

    @property
    def key(self) -> tuple[object, ...]:
        """The key of the page: viewers with the same key see the same content."""
        view = self.view
        return view.page.name, tuple(view.query.items()), view.base, view.csrf

    def show(self, regions: Mapping[str, str]) -> None:
        """Send the regions that have changed."""
        changed = {one: html for one, html in regions.items() if self._shown.get(one) != hash(html)}
        if changed:
            self._shown |= {one: hash(html) for one, html in changed.items()}
            self.send("regions", changed)

    def forget(self) -> None:
        """Send all regions next time, changed or not."""
        self._shown.clear()

    def send(self, event: str, data: object, entry: str = "") -> None:
        """Queue an event; a browser that is too far behind is dropped."""
        head = f"id: {entry}\n" if entry else ""
        said = f"{head}event: {event}\ndata: ".encode() + orjson.dumps(data) + b"\n\n"
        self._size += len(said)
        self._waiting.append(said)
        if self._size > _BEHIND and len(self._waiting) > 1:
            self.drop()
        self._came.set()

    def drop(self) -> None:
        """Disconnect the browser, and discard its queued data."""
        self.dropped.set()
        self._waiting.clear()
        self.end()

    def end(self) -> None:
        """End the stream."""
        self._ended = True
        self._came.set()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the queue as server-sent events, until the stream ends."""
        yield b"retry: 1000\n\n"
        while True:
            try:
                async with asyncio.timeout(_QUIET):
                    await self._came.wait()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            self._came.clear()
            while self._waiting:
                said = self._waiting.popleft()
                self._size -= len(said)
                yield said
            if self._ended:
                return


class ViewerGroup:
    """The viewers of the same content, for whom a page is rendered once."""

    def __init__(self, view: PageView) -> None:
        self.view = view
        # Seconds between two renderings.
        self.every = view.page.every if isinstance(view.page, WebPage) else 1.0
        self.viewers: set[Viewer] = set()
        # `soon` is set to render the page after its rest, `now` to end the rest.
        self.soon, self.now = asyncio.Event(), asyncio.Event()
        # A time of the event loop's clock.
        self.rests_until = 0.0
        self.task: asyncio.Task[None] | None = None
        self._regions: dict[str, str] = {}

    def join(self, viewer: Viewer) -> None:
        """Add a viewer, and send it what the others see."""
        self.viewers.add(viewer)
        viewer.show(self._regions)
        self.soon.set()

    def hurry(self) -> None:
        """Render the page at once."""
        self.rests_until = 0.0
        self.soon.set()
        self.now.set()

    def show(self, regions: Mapping[str, str]) -> None:
        """Send each viewer the regions that have changed for it."""
        self._regions |= regions
        for viewer in self.viewers:
            viewer.show(regions)
