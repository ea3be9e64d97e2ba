"""Accepts only requests from the application's own pages, by host, origin, session and form token.

A page of another site must not read the dashboard (DNS rebinding is prevented by the Host check),
nor act through it (Origin, SameSite cookie, form token), nor frame it (headers). A refused request
is answered with a sentence.
"""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from agentbus.dashboard.web.sessions import WebSessions

LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Keys in the scope of accepted requests: the session's cookie, the fields of a form, and the path below
# which the application is mounted, of which the path of a project is a part in `root_path`.
SESSION, FORM, ROOT = "agentbus.session", "agentbus.form", "agentbus.root"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With no-referrer, browsers would send the Origin of a form as null.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
# Maximum bytes and fields of a form, and the seconds to receive it.
_MOST_BYTES, _LOGIN_BYTES, _MOST_FIELDS, _SECONDS = 1_000_000, 4_000, 200, 10.0
_LOGIN, LEAVE, MCP = "/session", "/leave", "/mcp"
_STATIC = "/static/"


class WebGuard:
    """The middleware around the pages.

    `hosts` are the names in a Host header that are accepted, beside the address that the client has
    reached; `origins` those of POST requests, beside the Host. A host that only an https origin names is
    behind a proxy with TLS, whatever the proxy says. `page` renders a message with a status, a title, a
    text, and the values of the page's form or refresh; `log` is called for a wrong token. With `tools` the
    path of MCP is passed on, where each request has a token instead of a session.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        sessions: WebSessions,
        hosts: Collection[str],
        origins: Collection[str],
        write: bool,
        page: Callable[[str, str, str, str, str], str],
        log: Callable[[str], None],
        tools: bool = False,
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._hosts = {host.lower().strip("[]") for host in hosts}
        self._origins = {origin.lower().rstrip("/") for origin in origins}
        parts = [origin.partition("://") for origin in self._origins]
        plain = {_host_name(host) for scheme, _, host in parts if scheme == "http"}
        self._secure = {_host_name(host) for scheme, _, host in parts if scheme == "https"} - plain
        self._write = write
        self._page = page
        self._log = log
        self._tools = tools

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    # Keep a header that the page has set: a report has a stricter policy.
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = await self._examine(scope, receive, guarded)
        if answer is not None:
            await answer(scope, receive, guarded)

    async def _examine(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Return the answer to a request that is not passed to the application."""
        headers, base = Headers(scope=scope), scope.get("root_path", "")
        path = scope["path"].removeprefix(base)
        scope[ROOT] = base
        host = headers.getlist("host")
        is_of_tools = self._tools and path == MCP
        if len(host) != 1 or not self._is_ours(host[0], scope):
            text = "This is not an address of this dashboard; --public-url names another one."
            return refusal(text, 403) if is_of_tools else self._refuse(base, text)
        if _host_name(host[0]) in self._secure:
            scope["scheme"] = "https"
        if is_of_tools:
            # Only browsers send an Origin.
            origins = headers.getlist("origin")
            if not all(self._is_own_origin(origin, scope, host[0]) for origin in origins):
                return refusal("This request comes from a page of another site.", 403)
            await self._app(scope, receive, send)
            return None
        if scope["method"] == "POST":
            return await self._post(scope, receive, send, headers, base, path)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("use GET or POST\n", 405)
        if path.startswith(_STATIC):
            await self._app(scope, receive, send)
            return None
        name = _cookie_name(host[0])
        cookie = _cookie(headers, name)
        known = self._sessions.is_valid(cookie)
        code = parse_qs(scope["query_string"].decode("latin-1")).get("code", [""])[0]
        if code and ((scope["method"] == "GET" and self._sessions.redeem(code)) or known):
            return self._entered(scope, name, "" if known else self._sessions.start())
        if not known and self._sessions.needed:
            return self._unknown(scope, headers, base)
        fresh = self._sessions.renewed(cookie) if known else self._sessions.start()
        scope[SESSION] = cookie if known else fresh
        await self._app(scope, receive, _with_cookie(send, scope, name, fresh) if fresh else send)
        return None

    async def _post(
        self, scope: Scope, receive: Receive, send: Send, headers: Headers, base: str, path: str
    ) -> Response | None:
        origin = headers.getlist("origin")
        if len(origin) != 1 or not self._is_own_origin(origin[0], scope, headers["host"]):
            return self._refuse(base, "This form comes from another site.")
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return self._refuse(base, "This form comes from another site.")
        name = _cookie_name(headers["host"])
        cookie, entering = _cookie(headers, name), path == _LOGIN
        # Check the session before reading the form: a stranger could send it endlessly.
        if not (entering or self._sessions.is_valid(cookie)):
            return self._refuse(base, "This browser has no session here.")
        if not (entering or self._write or path == LEAVE):
            return self._refuse(
                base, "This dashboard is read-only: it was started without --write."
            )
        try:
            form = await _form(headers, receive, _LOGIN_BYTES if entering else _MOST_BYTES)
        except ValueError as error:
            return self._refuse(base, f"This form cannot be read: {error}.", 400)
        if entering:
            return self._enter(scope, base, name, form.get("token", ""))
        if not self._sessions.is_csrf(cookie, form.get("csrf", "")):
            return self._refuse(base, "This form is not of this session: reload the page.")
        if path == LEAVE:
            return self._leave(scope, base, name, cookie)
        scope[SESSION], scope[FORM] = cookie, form
        await self._app(scope, receive, send)
        return None

    def _is_ours(self, host: str, scope: Scope) -> bool:
        """Tell whether a Host header names this server, by a known name or its address."""
        name = _host_name(host)
        if name in self._hosts:
            return True
        try:
            return ip_address(name) == ip_address((scope.get("server") or ("", None))[0])
        except ValueError:
            return False

    def _is_own_origin(self, origin: str, scope: Scope, host: str) -> bool:
        host, origin = host.lower(), origin.lower()
        # A proxy with TLS may not say that it has it.
        plain = scope["scheme"] != "https" and origin == f"http://{host}"
        return origin in self._origins or origin == f"https://{host}" or plain

    def _enter(self, scope: Scope, base: str, name: str, token: str) -> Response:
        """Begin a session if the token is right."""
        address = (scope.get("client") or ("",))[0]
        if not self._sessions.examines(address):
            text = "Too many wrong tokens have come: try again in a minute."
            return self._refuse(base, text, 429)
        if not self._sessions.is_token(token, address):
            self._log(address)
            return self._refuse(base, "This is not the token.")
        return self._entered(scope, name, self._sessions.start())

    def _leave(self, scope: Scope, base: str, name: str, cookie: str) -> Response:
        """End a session."""
        self._sessions.end(cookie)
        answer = HTMLResponse(
            self._page(base, "Left", "The session of this browser has ended.", "", "")
        )
        _set_cookie(answer.headers, scope, name, "", "; Max-Age=0")
        return answer

    def _entered(self, scope: Scope, name: str, cookie: str) -> Response:
        """Begin a session, and go from a page of ours to the page without the code.

        A redirect would count as a request from the site whose link was followed, for which
        browsers do not send a strict cookie.
        """
        base = scope.get("root_path", "")
        path = scope["path"].removeprefix(base)
        to = _target(scope, base, "/" if path == _LOGIN else path)
        answer = HTMLResponse(self._page(base, "Opening", "", to, ""))
        if cookie:
            _set_cookie(answer.headers, scope, name, cookie)
        return answer

    def _unknown(self, scope: Scope, headers: Headers, base: str) -> Response:
        """Answer a browser without a session."""
        path = scope["path"].removeprefix(base)
        if headers.get("sec-fetch-mode") == "navigate" and (
            headers.get("sec-fetch-site") == "cross-site"
        ):
            # The browser followed another site's link, and so sent no strict cookie; from our own
            # page it sends one.
            return HTMLResponse(self._page(base, "Opening", "", _target(scope, base, path), ""))
        if self._sessions.has_token:
            text = "Enter the token that agentbus web has printed, or that its file holds."
            return HTMLResponse(self._page(base, "Token", text, "", f"{base}{_LOGIN}"), 401)
        return self._refuse(
            base,
            "Open the address that agentbus web has printed; it works once, within 10 minutes, in one"
            " browser. Start it again for another one, or with --token-file, whose token any number of"
            " browsers can enter.",
        )

    def _refuse(self, base: str, text: str, status: int = 403) -> Response:
        return HTMLResponse(self._page(base, "Refused", text, "", ""), status)


def _target(scope: Scope, base: str, path: str) -> str:
    """Return the path and query of a request without the one-time code."""
    kept = [
        (name, value)
        for name, value in parse_qsl(
            scope["query_string"].decode("latin-1"), keep_blank_values=True
        )
        if name != "code"
    ]
    # Keep one leading slash: `//` or `/\` would begin the name of another host.
    return f"{base}/{quote(path.lstrip('/'))}" + (f"?{urlencode(kept)}" if kept else "")


def _host_name(host: str) -> str:
    """Return the name or the address of a Host header, without its port."""
    host = host.lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]


def _cookie_name(host: str) -> str:
    """Return the name of the cookie, with the port: all ports of a host share their cookies."""
    port = host.rpartition(":")[2]
    return f"agentbus_{port if port.isascii() and port.isdigit() else 'web'}"


def _cookie(headers: Headers, name: str) -> str:
    # Do not use `http.cookies`, which stops at another program's cookie that it cannot parse.
    found = (cookie_parser(header).get(name) for header in headers.getlist("cookie"))
    return next((value for value in found if value), "")


def _set_cookie(
    headers: MutableHeaders, scope: Scope, name: str, value: str, age: str = ""
) -> None:
    rest = "HttpOnly; SameSite=Strict" + ("; Secure" if scope.get("scheme") == "https" else "")
    path = scope.get("root_path", "") + "/"
    headers.append("set-cookie", f"{name}={value}; Path={path}{age}; {rest}")


def _with_cookie(send: Send, scope: Scope, name: str, value: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            _set_cookie(MutableHeaders(scope=message), scope, name, value)
        await send(message)

    return sending


async def _form(headers: Headers, receive: Receive, most: int) -> Mapping[str, str]:
    """Read a form. Raises `ValueError` if it is too long, too slow, or not a form."""
    if headers.get("content-type", "").partition(";")[0].strip() != (
        "application/x-www-form-urlencoded"
    ):
        raise ValueError("it is not of the type application/x-www-form-urlencoded")
    text = (await received(receive, most)).decode("utf-8")
    return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))


async def received(receive: Receive, most: int) -> bytes:
    """Read the body of a request. Raises `ValueError` if it is too long or too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ValueError("it ended early")
                body += message.get("body", b"")
                if len(body) > most:
                    raise ValueError(f"it has more than {most} bytes")
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise ValueError(f"it did not come within {_SECONDS:.0f} s") from None


async def left(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def refusal(text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a refused request of MCP."""
    error = {"code": -32000, "message": text}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status, headers)


__all__ = [
    *("FORM", "HEADERS", "LEAVE", "LOOPBACK", "MCP", "ROOT", "SESSION", "WebGuard"),
    *("left", "received", "refusal"),
]
