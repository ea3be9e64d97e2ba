"""A browser without a screen: sends requests to an ASGI application, keeps cookies, parses what comes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

HOST = "127.0.0.1:7070"
TOKEN = "a-token-of-the-user-1234"
CODE = "the-one-time-code"
PATIENCE = 60.0
# Elements without an end tag.
VOID = {"meta", "link", "input", "br", "hr", "img", "wbr"}


class Answer(NamedTuple):
    """What came for a request."""

    status: int
    headers: list[tuple[str, str]]
    text: str

    def header(self, name: str) -> str:
        """Return the one header of a name."""
        (found,) = (value for key, value in self.headers if key == name)
        return found

    @property
    def page(self) -> HtmlPage:
        """The parsed page."""
        return HtmlPage(self.text)


class StreamedEvent(NamedTuple):
    """A server-sent event."""

    name: str
    id: str
    data: Any


class HtmlPage(HTMLParser):
    """The elements of a page, its text, and whether its tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.unbalanced: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.unbalanced += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.unbalanced.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        """The text between the tags, with single spaces."""
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        """Return the attributes of the elements that have these."""
        return [
            attrs
            for name, attrs in self.elements
            if name == tag and all(attrs.get(key) == value for key, value in wanted.items())
        ]


class Browser:
    """Sends requests from one origin and keeps the cookies."""

    def __init__(self, app: Any, *, host: str = HOST, scheme: str = "http", path: str = "") -> None:
        self.app = app
        self.host = host
        self.scheme = scheme
        self.path = path
        self.cookies: dict[str, str] = {}

    async def get(self, target: str, **headers: str) -> Answer:
        """Request a page."""
        return await self._exchange("GET", target, headers)

    async def post(self, target: str, fields: Mapping[str, str], **headers: str) -> Answer:
        """Send a form, as a page of the same origin does."""
        named = {
            "origin": f"{self.scheme}://{self.host}",
            "content-type": "application/x-www-form-urlencoded",
            **headers,
        }
        return await self._exchange("POST", target, named, urlencode(fields).encode())

    async def press(self, page: HtmlPage, action: str, **fields: str) -> Answer:
        """Send the form of an action as it is on a page, with some fields filled in."""
        at = next(
            number
            for number, (tag, attrs) in enumerate(page.elements)
            if tag == "form" and attrs.get("action", "").endswith(action)
        )
        hidden = {}
        for tag, attrs in page.elements[at + 1 :]:
            if tag == "form":
                break
            if tag == "input" and attrs.get("type") != "checkbox":
                hidden[attrs["name"]] = attrs.get("value", "")
        return await self.post(page.elements[at][1]["action"], {**hidden, **fields})

    async def _exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Answer:
        sent: list[dict[str, Any]] = []
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return waiting.pop() if waiting else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async with asyncio.timeout(PATIENCE):
            await self.app(self._scope(method, target, headers), receive, send)
        named = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
        self._keep(named)
        text = b"".join(message.get("body", b"") for message in sent[1:]).decode()
        return Answer(sent[0]["status"], named, text)

    @contextlib.asynccontextmanager
    async def stream(self, target: str, **headers: str) -> AsyncIterator[Stream]:
        """Open a stream of server-sent events."""
        found = Stream()
        scope = self._scope("GET", target, headers)
        task = asyncio.create_task(self.app(scope, found.receive, found.send))
        try:
            yield found
        finally:
            found.left.set()
            async with asyncio.timeout(PATIENCE):
                await task

    def _scope(self, method: str, target: str, headers: Mapping[str, str]) -> dict[str, Any]:
        parts = urlsplit(target)
        named = {"host": self.host, **{key.replace("_", "-"): v for key, v in headers.items()}}
        if self.cookies:
            named["cookie"] = "; ".join(f"{key}={value}" for key, value in self.cookies.items())
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": self.scheme,
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": self.path,
            "headers": [(key.encode(), value.encode()) for key, value in named.items()],
            "server": ("127.0.0.1", 7070),
            "client": ("127.0.0.1", 50_000),
        }

    def _keep(self, headers: list[tuple[str, str]]) -> None:
        for name, value in headers:
            if name != "set-cookie":
                continue
            for key, found in SimpleCookie(value).items():
                if found["max-age"] == "0":
                    self.cookies.pop(key, None)
                else:
                    self.cookies[key] = found.value


class Stream:
    """The events of a stream, one after the other."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.status = 0
        self._came: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._text = ""

    async def receive(self) -> dict[str, Any]:
        """Wait until the browser leaves."""
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Take a part of the stream."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message.get("body"):
            self._came.put_nowait(message["body"])
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._came.put_nowait(None)

    async def event(self, name: str | None = None) -> StreamedEvent:
        """Return the next event, or the next of a name. Raises `EOFError` at the end of the stream."""
        async with asyncio.timeout(PATIENCE):
            while True:
                head, found, rest = self._text.partition("\n\n")
                if not found:
                    part = await self._came.get()
                    if part is None:
                        raise EOFError
                    self._text += part.decode()
                    continue
                self._text = rest
                lines = dict(line.split(": ", 1) for line in head.split("\n") if line[:1] != ":")
                if "data" not in lines:
                    continue
                event = StreamedEvent(
                    lines["event"], lines.get("id", ""), json.loads(lines["data"])
                )
                if name in (None, event.name):
                    return event


async def opened(made: Any, **options: Any) -> Browser:
    """Return a browser with a session."""
    browser = Browser(made, **options)
    assert (await browser.get(f"/?code={CODE}")).status == 200
    return browser


async def halting(browser: Browser, **headers: str) -> Answer:
    """Press the button that halts the project, with other headers."""
    page = (await browser.get("/")).page
    form = page.all("input", name="csrf")[0]["value"]
    return await browser.post("/act/project.halt", {"csrf": form, "back": "/"}, **headers)
