"""Follows the project for all browsers together, and sends each of them what changed on its page.

One task reads a snapshot each second and renders the regions of the pages that somebody looks at; another
waits for messages of the channel. Both run only while somebody looks. What a browser has not taken yet is
bounded: a slow one is dropped, connects again, and gets its page as it is then.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core.clock import rfc3339
from agentbus.core.errors import AgentBusError
from agentbus.core.stream import position
from agentbus.dashboard.figures import RowRange
from agentbus.dashboard.person import TOPIC
from agentbus.dashboard.web.page import RECENT
from agentbus.dashboard.web.templates import FOLDED

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from agentbus.coordination.message import Message
    from agentbus.dashboard.figures import Snapshot
    from agentbus.dashboard.web.page import PageView, WebContext
    from agentbus.dashboard.web.templates import PageTemplates

# Seconds between two snapshots, and between two looks at a page that a notice makes earlier.
EVERY, _SOONER = 1.0, 0.3
# Seconds for which messages are collected before they are sent, and the newest of them that are.
_GATHER, _MESSAGES = 0.05, 100
# Seconds to wait for a message before a look whether the channel is still there.
_WAIT = 4.0
# The bytes that a browser may be behind.
_BEHIND = 2_000_000
# A comment is sent after this time without anything else, so that who has gone is noticed.
_QUIET = 15.0
MOST_VIEWERS = 200
# A page that failed unexpectedly is rendered again after this time.
_FAILED = 30.0
# A page rests for this multiple of the time that its regions took.
_REST = 10.0
_ROWS = RowRange(limit=10)


class Viewer:
    """A browser that looks at a page: what it has been sent, and what it has not taken yet."""

    def __init__(self, view: PageView, since: str) -> None:
        self.view = view
        self.since = since
        self.shown: dict[str, int] = {}
        # Set when the browser is too far behind.
        self.dropped = asyncio.Event()
        self._ended = False
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._came = asyncio.Event()

    @property
    def key(self) -> tuple[object, ...]:
        """What two viewers have in common who see the same."""
        view = self.view
        return view.page.name, tuple(view.query.items()), view.base, view.csrf

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
        """Give the browser up, and what it has not taken."""
        self.dropped.set()
        self._waiting.clear()
        self.end()

    def end(self) -> None:
        """End the stream."""
        self._ended = True
        self._came.set()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield what is queued, as server-sent events, until the stream ends."""
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


class LiveFeed:
    """The snapshots of a project that all pages share, and the browsers to which changes are sent."""

    def __init__(self, context: WebContext, templates: PageTemplates) -> None:
        self._context = context
        self._dashboard = context.dashboard
        # Since when the server is away, and why.
        self.blind: tuple[float, str] | None = None
        self._templates = templates
        self._newest: Snapshot | None = None
        self._at = float("-inf")
        self._viewers: set[Viewer] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._soon = asyncio.Event()
        self._due: dict[tuple[object, ...], float] = {}
        self._ended = False

    @property
    def newest(self) -> Snapshot | None:
        """The newest snapshot, of whatever age."""
        return self._newest

    @property
    def viewers(self) -> int:
        """The number of browsers that look."""
        return len(self._viewers)

    async def snapshot(self, oldest: float = EVERY) -> Snapshot:
        """Return a snapshot that is at most `oldest` seconds old. Raises `BackendUnavailable`."""
        async with self._context.reading:
            if self._newest is None or time.monotonic() - self._at > oldest:
                found = await self._dashboard.snapshot(
                    queues=_ROWS, agents=_ROWS, flags=_ROWS, leases=_ROWS, messages=RECENT
                )
                self._context.recent.extend(_short(one) for one in found.messages)
                self._newest = found.__replace__(messages=())
                self._at = time.monotonic()
            return self._newest

    def forget(self) -> None:
        """Read everything again, after an action that has changed it."""
        self._dashboard.forget()
        self._context.reader.forget()
        self._at = float("-inf")
        self._soon.set()

    async def watch(self, viewer: Viewer) -> AsyncGenerator[bytes]:
        """Yield the events of a viewer's page, until it leaves."""
        self._viewers.add(viewer)
        try:
            if self.blind is not None:
                self._say_blind([viewer])
            if not self._tasks:
                self._tasks = [
                    asyncio.create_task(self._tick()),
                    asyncio.create_task(self._follow()),
                ]
            else:
                self._due.pop(viewer.key, None)
                self._soon.set()
            if viewer.since:
                await self._catch_up(viewer)
            async for said in viewer.events():
                yield said
        finally:
            self._viewers.discard(viewer)
            if not self._viewers:
                await self._rest()

    async def aclose(self) -> None:
        """End all streams."""
        self._ended = True
        for viewer in self._viewers:
            viewer.end()
        await self._rest()

    @property
    def ended(self) -> bool:
        """Whether no more streams are served."""
        return self._ended

    async def _rest(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._due.clear()

    async def _tick(self) -> None:
        while True:
            began = time.monotonic()
            sooner = self._soon.is_set()
            self._soon.clear()
            try:
                await self.snapshot(_SOONER if sooner else EVERY * 0.9)
                self._see()
                await self._draw(hurry=sooner)
            except AgentBusError as error:
                self._lose(error)
            took = time.monotonic() - began
            await self._pause(max(_SOONER, EVERY - took))

    async def _pause(self, seconds: float) -> None:
        """Wait for the next look, or for a notice, which makes it earlier."""
        await asyncio.sleep(_SOONER)
        try:
            async with asyncio.timeout(max(0.0, seconds - _SOONER)):
                await self._soon.wait()
        except TimeoutError:
            return

    def _lose(self, error: AgentBusError) -> None:
        if self.blind is None:
            self.blind = time.time(), error.message
            self._say_blind([*self._viewers])

    def _say_blind(self, viewers: Sequence[Viewer]) -> None:
        assert self.blind is not None
        since, why = self.blind
        for viewer in viewers:
            viewer.send("blind", {"since": rfc3339(since), "why": why})

    def _see(self) -> None:
        if self.blind is not None:
            self.blind = None
            for viewer in self._viewers:
                viewer.shown.clear()
                viewer.send("sighted", {})

    async def _draw(self, *, hurry: bool) -> None:
        """Render the pages that are due, each once for all who see the same."""
        groups: dict[tuple[object, ...], list[Viewer]] = {}
        for viewer in self._viewers:
            groups.setdefault(viewer.key, []).append(viewer)
        self._due = {key: at for key, at in self._due.items() if key in groups}
        for key, viewers in groups.items():
            began = time.monotonic()
            if not hurry and began < self._due.get(key, 0.0):
                continue
            try:
                regions = await self._regions(viewers[0].view)
            except AgentBusError:
                raise
            except Exception as error:  # noqa: BLE001 (the pages of others go on)
                self._context.failed(error, viewers[0].view.page.name)
                self._due[key] = began + _FAILED
                continue
            took = time.monotonic() - began
            self._due[key] = began + max(EVERY * 0.5, _REST * took)
            for viewer in viewers:
                changed = {
                    one: html
                    for one, html in regions.items()
                    if viewer.shown.get(one) != hash(html)
                }
                if changed:
                    viewer.shown |= {one: hash(html) for one, html in changed.items()}
                    viewer.send("regions", changed)

    async def _regions(self, view: PageView) -> dict[str, str]:
        """Return the regions of a page as they are now."""
        view = view.again(self._newest)
        page: Any = view.page
        try:
            values = await page.load(view) if page.live else {}
        except AgentBusError as error:
            if self._lost(error):
                raise
            return self._templates.regions("base.html", (), {"view": view})
        return self._templates.regions(f"{page.name}.html", page.live, {"view": view, **values})

    @staticmethod
    def _lost(error: AgentBusError) -> bool:
        """Tell whether the server is away, rather than what the page shows."""
        return error.exit_code in (1, 7)

    async def _follow(self) -> None:
        """Send messages as they come."""
        # From the newest that pages have, which the browsers leave out if they have it, too.
        after = self._context.recent[-1].id if self._context.recent else ""
        while True:
            try:
                if not after:
                    after = await self._dashboard.talk_end()
                found, left = await self._dashboard.talk(after, limit=_MESSAGES, wait=_WAIT)
                if not found:
                    # The server may have lost data, or the project was cleared.
                    end = await self._dashboard.talk_end()
                    after = min(after, end, key=position)
                    continue
            except AgentBusError as error:
                # What is spoken before it is there again is sent then.
                self._lose(error)
                await asyncio.sleep(EVERY)
                continue
            after = found[-1].id
            for viewer in [*self._viewers]:
                self._tell(viewer, found, left)
            if any(one.event or one.topic == TOPIC for one in found):
                self._soon.set()
            await asyncio.sleep(_GATHER)

    def _tell(self, viewer: Viewer, found: Sequence[Message], left: int) -> None:
        """Send a viewer the messages that belong on its page."""
        view = viewer.view
        page: Any = view.page
        if page.hears is None:
            return
        shown = [one for one in found if page.hears(view, one)]
        if shown or left:
            entries = [
                [view.id(one.id), self._templates.part("message", view, _short(one))]
                for one in shown
            ]
            viewer.send("entry", {"channel": entries, "left": left}, found[-1].id)

    async def _catch_up(self, viewer: Viewer) -> None:
        """Send the messages since the one that the browser has seen last."""
        try:
            found, left = await self._dashboard.talk(viewer.since, limit=_MESSAGES)
        except AgentBusError as error:
            self._lose(error)
            return
        if found:
            self._tell(viewer, found, left)


def _short(one: Message) -> Message:
    """Return a message of which a page keeps no more than it shows."""
    return one if len(one.text) <= FOLDED else one.__replace__(text=one.text[:FOLDED] + "…")
