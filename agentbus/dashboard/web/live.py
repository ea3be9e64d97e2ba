"""Follows the project for all browsers, and sends each browser the changes of its page.

One task reads a snapshot each second, one waits for messages of the channel, and one for each
watched page renders its regions again. They run only while a browser is connected. The data that a
browser has not received yet is bounded: a slow browser is disconnected, connects again, and gets
its current page.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentbus.core.clock import rfc3339
from agentbus.core.errors import AgentBusError
from agentbus.core.stream import position
from agentbus.dashboard.figures import RowRange
from agentbus.dashboard.person import TOPIC
from agentbus.dashboard.web.cpu_time import Timed
from agentbus.dashboard.web.page import RECENT
from agentbus.dashboard.web.templates import FOLDED
from agentbus.dashboard.web.viewers import ViewerGroup

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from agentbus.coordination.message import Message
    from agentbus.dashboard.figures import Snapshot
    from agentbus.dashboard.web.page import PageView, WebContext
    from agentbus.dashboard.web.templates import PageTemplates
    from agentbus.dashboard.web.viewers import Viewer

# Seconds between two snapshots, and the minimum if a notice requests one earlier.
EVERY, _SOONER = 1.0, 0.3
# Seconds for which messages are collected before they are sent, and the maximum sent at once.
_GATHER, _MESSAGES = 0.05, 100
# Seconds to wait for a message before checking that the channel still exists.
_WAIT = 4.0
MOST_VIEWERS = 200
# Seconds before a page that failed unexpectedly is rendered again.
_FAILED = 30.0
# A page rests for `_REST` times the CPU time of its last rendering, or `_SHARED` times that for
# each watched page with the same interval: together these take at most a quarter of a core. It
# rests at least as long as the rendering took, so that a slow server is not asked all the time.
_REST, _SHARED = 10.0, 4.0
_LEAST_REST, _MOST_REST = 0.1, 5.0
_ROWS = RowRange(limit=10)


class LiveFeed:
    """The snapshots of a project that all pages share, and the browsers that receive changes."""

    def __init__(self, context: WebContext, templates: PageTemplates) -> None:
        self._context = context
        self._dashboard = context.dashboard
        # When the server became unavailable, and the error.
        self.blind: tuple[float, str] | None = None
        self._templates = templates
        self._newest: Snapshot | None = None
        self._at = float("-inf")
        self._groups: dict[tuple[object, ...], ViewerGroup] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._soon = asyncio.Event()
        self._ended = False

    @property
    def newest(self) -> Snapshot | None:
        """The newest snapshot, of any age."""
        return self._newest

    @property
    def viewers(self) -> int:
        """The number of connected browsers."""
        return sum(len(group.viewers) for group in self._groups.values())

    @property
    def idle(self) -> bool:
        """Tell whether no data is read because no browser is connected."""
        return not self._tasks

    async def snapshot(self, oldest: float = EVERY) -> Snapshot:
        """Return a snapshot that is at most `oldest` seconds old. Raises `BackendUnavailable`."""
        # Do not take the lock: a page for which the last snapshot is new enough need not wait for a
        # reader.
        if self._newest is not None and time.monotonic() - self._at <= oldest:
            return self._newest
        async with self._context.reading:
            if self._newest is None or time.monotonic() - self._at > oldest:
                found = await self._dashboard.snapshot(
                    queues=_ROWS, agents=_ROWS, flags=_ROWS, leases=_ROWS, messages=RECENT
                )
                self._context.recent.extend(_short(one) for one in found.messages)
                self._newest = replace(found, messages=())
                self._at = time.monotonic()
                self._see()
            return self._newest

    def forget(self) -> None:
        """Read everything again after an action that changed it."""
        self._dashboard.forget()
        self._context.reader.forget()
        self._context.shared.forget()
        self._at = float("-inf")
        self._soon.set()
        self._hurry()

    async def watch(self, viewer: Viewer) -> AsyncGenerator[bytes]:
        """Yield the events of a viewer's page, until it leaves."""
        group = self._groups.setdefault(viewer.key, ViewerGroup(viewer.view))
        group.join(viewer)
        try:
            if self.blind is not None:
                self._say_blind([viewer])
            if not self._tasks:
                self._tasks = [
                    asyncio.create_task(self._tick()),
                    asyncio.create_task(self._follow()),
                ]
            if group.task is None:
                group.task = asyncio.create_task(self._keep(group))
            if viewer.since:
                await self._catch_up(viewer)
            async for said in viewer.events():
                yield said
        finally:
            group.viewers.discard(viewer)
            if not group.viewers:
                self._groups.pop(viewer.key, None)
                await _cancel(group.task)
            if not self._groups:
                await self._rest()

    async def aclose(self) -> None:
        """End all streams."""
        self._ended = True
        for viewer in self._watching():
            viewer.end()
        await self._rest()

    @property
    def ended(self) -> bool:
        """Tell whether new streams are no longer served."""
        return self._ended

    def _watching(self) -> list[Viewer]:
        return [viewer for group in self._groups.values() for viewer in group.viewers]

    async def _rest(self) -> None:
        tasks, self._tasks = self._tasks, []
        await _cancel(*tasks, *(group.task for group in self._groups.values()))

    async def _tick(self) -> None:
        """Read a snapshot each second, and render the pages again."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            sooner = self._soon.is_set()
            self._soon.clear()
            try:
                await self.snapshot(_SOONER if sooner else EVERY / 2)
            except AgentBusError as error:
                self._lose(error)
            else:
                for group in self._groups.values():
                    group.soon.set()
                    if group.rests_until > loop.time() + EVERY / 2:
                        # The page shows that its figures are older; update the verdict.
                        group.show(self._templates.regions("base.html", (), _values(group, self)))
            await asyncio.sleep(_SOONER)
            await _within(EVERY - (loop.time() - began), self._soon)

    async def _keep(self, group: ViewerGroup) -> None:
        """Render a page repeatedly, with a rest after each time."""
        loop, every = asyncio.get_running_loop(), group.every
        while True:
            group.soon.clear()
            group.now.clear()
            began = loop.time()
            rest = await self._render(group)
            group.rests_until = loop.time() + rest
            await _within(rest, group.now)
            # Wait for the next snapshot.
            await _within(every - (loop.time() - began) if every < EVERY else None, group.soon)

    async def _render(self, group: ViewerGroup) -> float:
        """Send a page's changes, and return the seconds of its rest."""
        began, drawing = time.monotonic(), Timed(self._regions(group.view))
        try:
            group.show(await drawing)
        except AgentBusError as error:
            self._lose(error)
            return _LEAST_REST
        except Exception as error:  # noqa: BLE001 (the pages of others go on)
            self._context.failed(error, group.view.page.name)
            return _FAILED
        # Measure CPU time: on an overloaded machine everything takes long, which should not stop a
        # page.
        alike = sum(one.every == group.every for one in self._groups.values())
        rest = drawing.spent * max(_REST, _SHARED * alike)
        return min(max(_LEAST_REST, time.monotonic() - began, rest), _MOST_REST)

    def _lose(self, error: AgentBusError) -> None:
        if self.blind is None:
            error.name_operation("web")
            self.blind = time.time(), error.message
            self._say_blind(self._watching())

    def _say_blind(self, viewers: Sequence[Viewer]) -> None:
        assert self.blind is not None
        since, why = self.blind
        for viewer in viewers:
            viewer.send("blind", {"since": rfc3339(since), "why": why})

    def _see(self) -> None:
        if self.blind is not None:
            self.blind = None
            for viewer in self._watching():
                viewer.forget()
                viewer.send("sighted", {})
            self._hurry()

    def _hurry(self) -> None:
        for group in self._groups.values():
            group.hurry()

    async def _regions(self, view: PageView) -> dict[str, str]:
        """Return the current regions of a page."""
        view = view.again(await self.snapshot(2 * EVERY))
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
        """Tell whether the server is down, rather than the page's object missing."""
        return error.exit_code in (1, 7)

    async def _follow(self) -> None:
        """Send messages as they arrive."""
        # Start after the newest message that pages have; browsers skip a message that they already
        # show.
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
                # Messages spoken while the server is down are sent when it is back.
                self._lose(error)
                await asyncio.sleep(EVERY)
                continue
            after = found[-1].id
            for viewer in self._watching():
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
        """Send the messages after the last one that the browser has seen."""
        try:
            found, left = await self._dashboard.talk(viewer.since, limit=_MESSAGES)
        except AgentBusError as error:
            self._lose(error)
            return
        if found:
            self._tell(viewer, found, left)


def _short(one: Message) -> Message:
    """Return a message with its text cut to the length that a page shows."""
    return one if len(one.text) <= FOLDED else replace(one, text=one.text[:FOLDED] + "…")


def _values(group: ViewerGroup, feed: LiveFeed) -> dict[str, Any]:
    return {"view": group.view.again(feed.newest)}


async def _within(seconds: float | None, event: asyncio.Event) -> None:
    """Wait for an event, at most for a number of seconds."""
    try:
        async with asyncio.timeout(None if seconds is None else max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        return


async def _cancel(*tasks: asyncio.Task[None] | None) -> None:
    found = [task for task in tasks if task is not None]
    for task in found:
        task.cancel()
    await asyncio.gather(*found, return_exceptions=True)
