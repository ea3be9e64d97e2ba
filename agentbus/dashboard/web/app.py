"""The ASGI application of `agentbus web`: its routes and endpoints."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import asynccontextmanager
from hashlib import blake2s
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from agentbus.core.errors import AgentBusError, BackendUnavailable, NotFound, UsageError
from agentbus.dashboard import person as persons, report_files
from agentbus.dashboard.web import actions
from agentbus.dashboard.web.guard import (
    FORM,
    HEADERS,
    LOOPBACK,
    MCP,
    ROOT,
    SESSION,
    WebGuard,
    left,
)
from agentbus.dashboard.web.live import MOST_VIEWERS, LiveFeed
from agentbus.dashboard.web.mcp import McpEndpoint
from agentbus.dashboard.web.page import PROJECTS, PageView, TextFile, WebContext, WebPage
from agentbus.dashboard.web.pages import PAGES, TEXTS, archive
from agentbus.dashboard.web.projects import OtherProjects
from agentbus.dashboard.web.sessions import RENEWED, WebSessions
from agentbus.dashboard.web.templates import page_templates
from agentbus.dashboard.web.viewers import Viewer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping

    from starlette.types import Receive, Scope, Send

    from agentbus.client.aio import AsyncBus
    from agentbus.dashboard.figures import Snapshot
    from agentbus.dashboard.web.mcp import AgentTools

_STATIC = Path(__file__).parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_REPORT = "/report"
_ID = re.compile(r"\d{1,19}-\d{1,19}")
_DONE, _FAILED = "agentbus_done", "agentbus_failed"
# Seconds that a browser may take for each part of a stream, and between two looks at its session.
_TAKES, _LOOK = 20.0, 2.0


class WebSite:
    """The parts of an application: the feed, the templates, the files, and the acting person."""

    def __init__(
        self, bus: AsyncBus, *, write: bool, person: str | None, reports: str | None
    ) -> None:
        self.settings = persons.acting(bus.settings, person, write=write)
        self.templates = page_templates()
        self.files = {path.name: path.read_bytes() for path in sorted(_STATIC.iterdir())}
        self.by_path = {page.path: page for page in PAGES}
        context = self.context = WebContext(
            bus, write=write, person=self.settings.agent, reports=reports
        )
        context.pages = PAGES
        context.paths = {page.name: page.path for page in PAGES}
        context.paths |= {one.name: one.path for one in TEXTS}
        context.paths |= {name: f"/act/{name}" for name in actions.ACTIONS}
        context.paths |= {"report": _REPORT}
        context.assets = {
            name: blake2s(data, digest_size=6).hexdigest() for name, data in self.files.items()
        }
        self.feed = LiveFeed(context, self.templates)

    def refused(self, address: str) -> None:
        """Log a wrong token."""
        persons.log(self.settings, "web", "session", f"wrong token from {address}", level="warning")

    def message(self, base: str, title: str, text: str, refresh: str = "", form: str = "") -> str:
        """Return a page with a message, outside of a session."""
        values = {"base": base, "title": title, "text": text, "refresh": refresh, "form": form}
        return self.templates.render("message.html", {**values, "assets": self.context.assets})


def application(
    bus: AsyncBus,
    *,
    write: bool = False,
    person: str | None = None,
    token: str | None = None,
    code: str | None = None,
    hosts: Collection[str] = LOOPBACK,
    origins: Collection[str] = (),
    reports: str | None = None,
    all_projects: bool = False,
    address: str = "",
    tools: Callable[[str], AgentTools] | None = None,
) -> Starlette:
    """Return the ASGI application of the pages; `agentbus.dashboard.app` describes the arguments.

    `address` is where they are shown: with one token, dashboards of several addresses have sessions apart.
    `tools` returns the tools of an agent elsewhere, which are served at `/mcp`.
    """
    site = WebSite(bus, write=write, person=person, reports=reports)
    settings = site.settings
    apart = (address, settings.url, settings.project, write and settings.agent)
    sessions = WebSessions(token, code, repr(apart))
    site.context.leaves = sessions.needed

    def pages(other: AsyncBus) -> tuple[Starlette, LiveFeed]:
        """Return the pages of another project; the guard around them is shared."""
        theirs = WebSite(other, write=write, person=person, reports=None)
        theirs.context.leaves = sessions.needed
        return _application(_Served(theirs, sessions, projects)), theirs.feed

    projects = OtherProjects(bus, pages, site.message) if all_projects else None

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await app.state.aclose()

    endpoint = None if tools is None else McpEndpoint(bus, tools, site.refused)

    async def aclose() -> None:
        if endpoint is not None:
            endpoint.end()
        await site.feed.aclose()
        if projects is not None:
            await projects.aclose()

    guard = Middleware(
        WebGuard,
        sessions=sessions,
        hosts=hosts,
        origins=origins,
        write=write,
        page=site.message,
        log=site.refused,
        tools=tools is not None,
    )
    app = _application(_Served(site, sessions, projects), middleware=[guard], lifespan=lifespan)
    if projects is not None:
        app.routes.append(Mount(PROJECTS + "/{project}", projects))
    if endpoint is not None:
        app.routes.append(Route(MCP, endpoint))
    app.state.site = site
    app.state.aclose = aclose
    return app


def _application(served: _Served, **options: Any) -> Starlette:
    """Return the pages of one project."""
    return Starlette(
        routes=[
            *(Route(page.path, served.show, name=page.name) for page in PAGES),
            *(Route(one.path, served.text, name=f"text {one.name}") for one in TEXTS),
            Route(_REPORT, served.report, name="report"),
            Route("/live", served.live, name="live"),
            Route("/static/{name}", served.static, name="static"),
            Route("/act/{name}", served.act, methods=["POST"], name="act"),
        ],
        exception_handlers={
            404: served.not_found,
            HTTPException: served.refused,
            Exception: served.failed,
        },
        **options,
    )


class _Served:
    """The endpoints of the routes."""

    def __init__(
        self, site: WebSite, sessions: WebSessions, projects: OtherProjects | None
    ) -> None:
        self._site = site
        self._sessions = sessions
        self._projects = projects

    def _view(
        self,
        request: Request,
        page: WebPage | TextFile,
        query: Mapping[str, str],
        snapshot: Snapshot | None,
    ) -> PageView:
        csrf = self._sessions.csrf(request.scope[SESSION])
        base, root = request.scope.get("root_path", ""), request.scope[ROOT]
        return PageView(self._site.context, page, query, base, root, csrf, snapshot)

    async def show(self, request: Request) -> Response:
        """Answer with a page."""
        site = self._site
        page = site.by_path[_path(request) or "/"]
        query = dict(request.query_params)
        notices = {
            kind: self._sessions.unsealed(request.cookies.get(_notice(request, kind), ""))
            for kind in (_DONE, _FAILED)
        }
        status, view = 200, self._view(request, page, query, site.feed.newest)
        try:
            view = self._view(request, page, query, await site.feed.snapshot())
            values = await page.load(view)
            name = f"{page.name}.html"
        except AgentBusError as error:
            error.name_operation("web")
            status, name, values = _status(error), "error.html", {"error": error}
        shown = {
            "done": notices[_DONE],
            "failed": notices[_FAILED],
            "projects": await self._projects.names() if self._projects is not None else (),
        }
        html = site.templates.render(name, {"view": view, **shown, **values})
        answer = HTMLResponse(html, status)
        for kind, text in notices.items():
            if text:
                answer.delete_cookie(
                    _notice(request, kind), path=view.base + "/", httponly=True, samesite="strict"
                )
        return answer

    async def text(self, request: Request) -> Response:
        """Answer with a long text as a download."""
        (file,) = (one for one in TEXTS if one.path == _path(request))
        view = self._view(request, file, dict(request.query_params), self._site.feed.newest)
        try:
            name, text = await file.load(view)
        except AgentBusError as error:
            return PlainTextResponse(f"{error.message}\n", _status(error))
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:100] or "text"
        headers = {"content-disposition": f'attachment; filename="{plain}.txt"'}
        return PlainTextResponse(text.encode("utf-8", "replace"), headers=headers)

    async def report(self, request: Request) -> Response:
        """Answer with a page of `agentbus report`, in a sandbox since its content is not ours."""
        view = self._view(request, archive.PAGE, dict(request.query_params), None)
        try:
            data = await archive.report(view)
        except AgentBusError as error:
            return PlainTextResponse(f"{error.message}\n", _status(error))
        return HTMLResponse(data, headers={"content-security-policy": report_files.policy()})

    async def live(self, request: Request) -> Response:
        """Answer with the stream of a page's changes."""
        site = self._site
        path, _, query = request.query_params.get("page", "/").partition("?")
        page = site.by_path.get(path)
        if page is None or site.feed.ended:
            return PlainTextResponse("there is no such page\n", 404)
        if site.feed.viewers >= MOST_VIEWERS:
            return PlainTextResponse("too many browsers look at once\n", 503)
        from starlette.datastructures import QueryParams  # needs the extra `web`

        view = self._view(request, page, dict(QueryParams(query)), site.feed.newest)
        since = request.headers.get("last-event-id", request.query_params.get("since", ""))
        viewer = Viewer(view, since if _ID.fullmatch(since) else "")
        return _EventStream(site.feed, viewer, self._sessions, request.scope[SESSION])

    async def static(self, request: Request) -> Response:
        """Answer with the script or the style sheet."""
        name = request.path_params["name"]
        data = self._site.files.get(name)
        if data is None:
            return PlainTextResponse("there is no such file\n", 404)
        kept = request.query_params.get("v") == self._site.context.assets[name]
        how_long = "public, max-age=31536000, immutable" if kept else "no-cache"
        kind = _TYPES[Path(name).suffix]
        return Response(data, headers={"cache-control": how_long}, media_type=kind)

    async def act(self, request: Request) -> Response:
        """Perform an action as the person, and redirect to the page."""
        action: str = request.path_params["name"]
        form: Mapping[str, str] = request.scope[FORM]
        if action not in actions.ACTIONS:
            return await self.not_found(request, None)
        base = request.scope.get("root_path", "")
        back = form.get("back", "")
        path = back.partition("?")[0]
        to = f"{base}{back}" if path in self._site.by_path else f"{base}/"
        answer = RedirectResponse(to, 303)
        kind = _DONE
        try:
            said = await actions.perform(self._site.settings, action, form)
        except AgentBusError as error:
            kind, said = _FAILED, str(error.message)
        self._site.feed.forget()
        answer.set_cookie(
            _notice(request, kind),
            self._sessions.sealed(said[:1_000]),
            max_age=60,
            path=base + "/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def not_found(self, request: Request, _error: Any) -> Response:
        """Answer a request for a page that does not exist."""
        said = self._site.message(request.scope[ROOT], "Not found", "There is no such page.")
        return HTMLResponse(said, 404)

    async def refused(self, request: Request, error: Any) -> Response:
        """Answer a request with an unsupported method."""
        return PlainTextResponse(f"{error.detail}\n", error.status_code)

    async def failed(self, request: Request, error: Exception) -> Response:
        """Answer a request that failed unexpectedly; the server reports it, too."""
        self._site.context.failed(error, _path(request))
        said = (
            "This page failed unexpectedly: this is a defect. The operations log names the error."
        )
        text = self._site.message(request.scope[ROOT], "Failed", said)
        # Add the headers here: this handler runs outside the guard, which adds them to other
        # replies.
        return HTMLResponse(text, 500, HEADERS)


class _EventStream(Response):
    """A stream of server-sent events, which ends with its session, or with a browser that takes nothing."""

    media_type = "text/event-stream"

    def __init__(self, feed: LiveFeed, viewer: Viewer, sessions: WebSessions, session: str) -> None:
        self._feed = feed
        self._viewer = viewer
        self._sessions = sessions
        self._session = session
        super().__init__(None, headers={"cache-control": "no-store", "x-accel-buffering": "no"})

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Set the headers: a stream has no length."""
        super().init_headers({"content-length": "", **(headers or {})})
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the browser leaves or the stream ends."""
        ways = (self._send(send), left(receive), self._ended(), self._viewer.dropped.wait())
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        stream = self._feed.watch(self._viewer)
        try:
            async for said in stream:
                async with asyncio.timeout(_TAKES):
                    await send({"type": "http.response.body", "body": said, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            # The browser receives nothing: the server closes the connection.
            return
        finally:
            await stream.aclose()

    async def _ended(self) -> None:
        """Wait until the session ends, and tell the browser when to renew its cookie meanwhile."""
        renewed = time.monotonic()
        while self._sessions.lasts(self._session):
            await asyncio.sleep(_LOOK)
            if time.monotonic() > renewed + RENEWED:
                renewed = time.monotonic()
                self._viewer.send("renew", None)


def _notice(request: Request, kind: str) -> str:
    """Return the name of the cookie of a notice: a project's is not shown by another's page."""
    project = request.path_params.get("project", "")
    return f"{kind}_{blake2s(project.encode(), digest_size=8).hexdigest()}" if project else kind


def _path(request: Request) -> str:
    return str(request.scope["path"]).removeprefix(request.scope.get("root_path", ""))


def _status(error: AgentBusError) -> int:
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, UsageError):
        return 400
    return 503 if isinstance(error, BackendUnavailable) else 502


__all__ = ["WebSite", "application"]
