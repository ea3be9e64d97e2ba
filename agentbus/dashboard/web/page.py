"""The declaration of a page of `agentbus web`, and the objects that it is loaded with.

To add a page `flags`:

1. `pages/flags.py` has `async def load(view: PageView) -> dict[str, Any]`, which returns the values of
   the template, and `PAGE = WebPage("flags", "Flags", load, live=("list",))`. It reads by `view.bus` (an
   `AsyncBus`) and `view.snapshot`; the query of the URL has the filter, the page number and names
   (`view.param`, `view.rows`). It may raise any `AgentBusError`: `NotFound` becomes a page with 404.
2. `templates/flags.html` begins with `{% extends "base.html" %}` and fills `{% block main %}`. Values are
   escaped. What is live lies in `<section id="list" data-live>{% block list %}…{% endblock %}</section>`
   for each id in `live`: the block is rendered again each second, and the browser replaces what changed.
   Give rows an `id` (`view.id(name)`), so that each is replaced by itself. The macros are in `parts.html`
   as `ui`, the functions that format values are filters (`templates.py`). No `style` attributes nor scripts
   in templates: the Content-Security-Policy refuses them.
3. `pages/__init__.py` lists it in `PAGES`; navigation shows the pages without `under`, in that order.
4. A button: `ui.action(view, "queue.pause", "Pause", "Pause the queue mail?", {"queue": name})`, and a
   function of that name in `actions.py`. It is shown only with `--write`.

Names are in the query, never in the path: `view.link("queue", name=queue)` is `/queue?name=…`. Browsers
resolve `..` in paths, escaped or not.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from dataclasses import dataclass
from hashlib import blake2s
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import orjson

from agentbus.core.oplog import write
from agentbus.dashboard.dashboard import Dashboard
from agentbus.dashboard.figures import RowRange
from agentbus.dashboard.project_pages import Pages
from agentbus.dashboard.web.forms import PICK
from agentbus.dashboard.web.shared import REST, SharedReads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agentbus.client.aio import AsyncBus
    from agentbus.coordination.message import Message
    from agentbus.dashboard.figures import Snapshot
    from agentbus.store.verb import Awaiting

T = TypeVar("T")

# The path below which the projects of the switcher are.
PROJECTS = "/p"
# Rows per page of a table.
ROWS = 100
_MOST_PAGES = 1_000_000
# Number of newest messages that are kept.
RECENT = 100


class WebContext:
    """The objects that all pages of one application share.

    `recent` are the newest messages, oldest first; `paths` the paths of pages, texts and actions by name;
    `assets` the digests of the static files; `reports` the directory of pages that `agentbus report` wrote.
    """

    def __init__(
        self, bus: AsyncBus, *, write: bool, person: str, reports: str | None = None
    ) -> None:
        self.bus = bus
        self.reports = reports
        self.write = write
        # Browsers have a session to leave.
        self.leaves = False
        self.person = person
        self.dashboard: Dashboard[Awaiting] = Dashboard(bus)
        self.reader: Pages[Awaiting] = Pages(bus, self.dashboard)
        # The dashboard has one reader at a time.
        self.reading = asyncio.Lock()
        self.shared = SharedReads()
        self.recent: deque[Message] = deque(maxlen=RECENT)
        self.paths: dict[str, str] = {}
        self.assets: dict[str, str] = {}
        self.pages: tuple[WebPage, ...] = ()

    def failed(self, error: Exception, page: str) -> None:
        """Log that a page failed unexpectedly, without the error's text, which may be secret."""
        settings = self.bus.settings
        fields = {"verb": "web", "agent": self.person, "project": self.bus.project, "page": page}
        outcome = f"failed unexpectedly ({type(error).__name__})"
        write("error", settings.log_level, {**fields, "outcome": outcome})


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page: its name, which is its path and its template, its title, and how its values are loaded.

    `live` are the ids of the regions that are rendered again each second or, with `every`, more
    often. `under` is the page in the navigation to which a page outside the navigation belongs.
    `hears` tells whether a message belongs in the page's list `data-stream="channel"`.
    """

    name: str
    title: str
    load: Callable[[PageView], Awaitable[dict[str, Any]]]
    live: tuple[str, ...] = ()
    under: str = ""
    every: float = 1.0
    hears: Callable[[PageView, Message], bool] | None = None

    @property
    def path(self) -> str:
        """The path below the application's root."""
        return "/" if self.name == "overview" else f"/{self.name}"


@dataclass(frozen=True, slots=True)
class TextFile:
    """A text that is too long for a page, served as a download; `load` returns its name and the text."""

    name: str
    load: Callable[[PageView], Awaitable[tuple[str, str]]]

    @property
    def path(self) -> str:
        """The path below the application's root."""
        return f"/text/{self.name}"


class PageView:
    """One request for a page: the bus, the newest snapshot, the query, and the application's links.

    `base` is the path below which the pages of the project are, `root` the one below which the
    application is mounted, `csrf` the token of the viewer's session, `write` tells whether actions are
    allowed, and `person` is the agent that performs them.
    """

    def __init__(
        self,
        context: WebContext,
        page: WebPage | TextFile,
        query: Mapping[str, str],
        base: str,
        root: str,
        csrf: str,
        snapshot: Snapshot | None,
    ) -> None:
        self.context = context
        self.page = page
        self.query = query
        self.base = base
        self.root = root
        self.csrf = csrf
        # Parameters that the page has chosen itself, which its stream keeps.
        self.chosen: dict[str, str] = {}
        self._snapshot = snapshot
        self._is_live = False

    @property
    def bus(self) -> AsyncBus:
        """The bus from which pages read."""
        return self.context.bus

    @property
    def dashboard(self) -> Dashboard[Awaiting]:
        """The dashboard that all pages share; use it within `async with view.reading`."""
        return self.context.dashboard

    @property
    def reader(self) -> Pages[Awaiting]:
        """The reader of the pages' lists and objects; concurrent calls are allowed."""
        return self.context.reader

    @property
    def reading(self) -> asyncio.Lock:
        """The lock of the dashboard, which supports one reader at a time."""
        return self.context.reading

    @property
    def write(self) -> bool:
        """Tell whether actions are allowed."""
        return self.context.write

    @property
    def person(self) -> str:
        """The agent that performs actions."""
        return self.context.person

    @property
    def project(self) -> str:
        """The name of the project."""
        return self.context.bus.project

    @property
    def has_snapshot(self) -> bool:
        """Tell whether the server has ever been reached."""
        return self._snapshot is not None

    @property
    def snapshot(self) -> Snapshot:
        """The figures of the project, at most a second old; its messages are in `talk`."""
        assert self._snapshot is not None
        return self._snapshot

    @property
    def now(self) -> float:
        """The server's time at the snapshot, in unix seconds."""
        return self.snapshot.at

    @property
    def talk(self) -> list[Message]:
        """The newest messages of the channel, newest first, each cut to a few kilobytes."""
        return [*reversed(self.context.recent)]

    def param(self, name: str, default: str = "") -> str:
        """Return a parameter of the query."""
        return self.query.get(name, default)

    @property
    def match(self) -> str | None:
        """The text of the filter, the parameter `q`."""
        return self.param("q").strip() or None

    @property
    def number(self) -> int:
        """The page number of a list, the parameter `page`, from 1."""
        text = self.param("page", "1")
        good = text.isascii() and text.isdigit() and len(text) < 8
        return min(max(1, int(text)), _MOST_PAGES) if good else 1

    @property
    def rows(self) -> RowRange:
        """The requested rows of the list: 100 that match the filter, in the order `sort`."""
        return RowRange(self.match, (self.number - 1) * ROWS, ROWS, self.param("sort"))

    def link(self, to: str, /, **query: object) -> str:
        """Return the link to a page, text or action, omitting parameters that are None or empty."""
        path = self.context.paths[to]
        given = {name: str(value) for name, value in query.items() if value not in (None, "")}
        return f"{self.base}{path}" + (f"?{urlencode(given)}" if given else "")

    def here(self, **query: object) -> str:
        """Return the link to this page with some parameters of its query changed."""
        return self.link(self.page.name, **{**self.query, **query})

    def of(self, project: str) -> str:
        """Return the link to the pages of a project of the switcher."""
        return f"{self.root}{PROJECTS}/{quote(project)}/"

    @property
    def back(self) -> str:
        """The address of this page, below `base`, to which an action returns."""
        return self.here().removeprefix(self.base)

    @property
    def followed(self) -> str:
        """The address of this page for its stream, with what the page has chosen."""
        return self.here(**self.chosen).removeprefix(self.base)

    def pick(self, *parts: str | None) -> str:
        """Return the name of the checkbox of a row, from which its action reads the names again."""
        return PICK + orjson.dumps(parts).decode()

    def asset(self, name: str) -> str:
        """Return the link to a file of `static`."""
        return f"{self.root}/static/{name}?v={self.context.assets[name]}"

    def id(self, *parts: object) -> str:
        """Return an HTML id for a row, from names that may be any text."""
        text = "\0".join(map(str, parts))
        return f"r{blake2s(text.encode('utf-8', 'replace'), digest_size=8).hexdigest()}"

    def again(self, snapshot: Snapshot | None) -> PageView:
        """Return this view with a newer snapshot, for the live regions."""
        view = copy.copy(self)
        view._snapshot = snapshot
        view._is_live = True
        return view

    async def shared(
        self,
        key: tuple[object, ...],
        read: Callable[[], Awaitable[T]],
        rest: float = REST,
        *,
        behind: bool = False,
        turn: asyncio.Lock | None = None,
    ) -> T:
        """Return the result of `read`, cached for the live regions of all browsers.

        The value is cached for `rest` times the duration of its reading, at most 5 seconds. With
        `behind`, the page gets the cached value while a new one is read. The lock `turn` is held
        during the reading.
        """
        fresh = not self._is_live
        return await self.context.shared.get(
            key, read, rest=rest, fresh=fresh, behind=behind, turn=turn
        )
