"""web: the figures of a whole project in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import html
import os
import pathlib
import secrets
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentbus.client.aio import AsyncBus
from agentbus.commands import _signals, _together, _tools, _views
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.commands._output import Out
from agentbus.commands._tool_call import Links
from agentbus.core.errors import ConfigError, Refused, UsageError

if TYPE_CHECKING:
    from agentbus.agents.mcp import ToolResult
    from agentbus.core.settings import Settings

_LOOPBACK = "127.0.0.1"
# Seconds after which the browsers are notified of a server that does not reply.
_PATIENCE = 2.0
_LEAST_TOKEN = 16


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65_536):
        raise ValueError(f"{text!r} is not a port")
    return int(text)


VERB = Verb(
    "web",
    Param("--host ADDRESS", "The address to listen on (127.0.0.1).", default=_LOOPBACK),
    Param("--port N", "The port to listen on (7070; 0: any).", convert=_port, default=7070),
    Param("--write", "Let the pages act: pause, resume, halt, replay, tell."),
    Param("--as NAME", "With --write: act as human:NAME (default: the user).", dest="person"),
    Param("--token-file F", "Let browsers enter the token that the file holds.", values="file"),
    Param(
        "--public-url URL",
        "The address under which a proxy shows the pages, with its path.",
    ),
    Param("--reports DIR", "Show the pages that report --html wrote into DIR.", values="file"),
    Param("--all-projects", "With a token, too, lead to the server's other projects."),
    Param(
        "--mcp",
        "Serve the tools of 'agentbus mcp' at /mcp, to agents elsewhere with a token ('agentbus token').",
    ),
    Param("--open", "Open the address in a browser."),
    Param("--timeout S", "Stop after S seconds.", convert=seconds),
    text="Prints the address to open. It holds a code that works once, within 10 minutes, in one browser,"
    " which then keeps a session; start it again for another browser. With --token-file the address holds"
    " no code, and any number of browsers can enter the token of the file. Elsewhere than on the loopback"
    " address, and with --public-url, a token is always needed: without --token-file one is made and"
    " printed. A switcher leads to the server's other projects that its ACL lets this user read; where a"
    " token lets others in, only with --all-projects. The pages only read, unless --write is given;"
    " then the channel and the log say who did what. Ctrl-C and SIGTERM end it, with 0. JSON: url, project,"
    " token, and with --mcp mcp, the address of the tools.",
    examples=(
        "agentbus web",
        "agentbus web --write --open",
        "agentbus web --token-file ~/.web-token",
        "agentbus web --mcp --token-file ~/.web-token --public-url https://bus.example.com",
    ),
    goes_with={"--as": ("--write",)},
    waits="",
)


def run(call: Call) -> None:
    """Serve the pages until a signal arrives."""
    _together.check(VERB, call.args)
    try:
        import agentbus.dashboard.web.serve  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"web needs {error.name}, which is not installed: it comes with an extra",
            hint="pip install 'agentbus-toolkit[web]'",
        ) from None
    args = call.args
    if args.reports is not None and not os.path.isdir(args.reports):
        raise UsageError(
            f"there is no directory {args.reports!a}",
            hint="make it, and write reports into it with 'agentbus report --html'",
        )
    public = _public(args.public_url)
    listening = _listen(args.host, args.port)
    try:
        port = listening.getsockname()[1]
        token = _token(args.token_file, call.out)
        generated = token is None and (public is not None or not _is_loopback(listening))
        if generated:
            token = secrets.token_urlsafe(24)
        code = secrets.token_urlsafe(24) if args.token_file is None or args.open else None
        shown = _shown(args.host, listening)
        base = args.public_url.rstrip("/") if public is not None else f"http://{shown}:{port}"
        # A journal keeps what is printed; the file's token is there for browsers.
        url = f"{base}/?code={code}" if args.token_file is None else f"{base}/"
        record = {"url": url, "project": call.settings.project}
        record |= {"mcp": f"{base}/mcp"} if args.mcp else {}
        call.out.record(record | ({"token": token} if generated else {}), url)
        if generated and not call.out.json:
            call.out.warn(f"token, for more browsers: {token}")
        if args.mcp and not call.out.json:
            call.out.warn(f"tools of agents elsewhere: {base}/mcp, with tokens of 'agentbus token'")
        _views.warn_if_empty(call.out, call.bus)
        with _browser(f"{base}/?code={code}") if args.open else contextlib.nullcontext():
            asyncio.run(_serve(call, listening, token, code, public, base))
    finally:
        listening.close()


async def _serve(
    call: Call,
    listening: socket.socket,
    token: str | None,
    code: str | None,
    public: tuple[str, str, str] | None,
    address: str,
) -> None:
    """Serve until a signal arrives, or until the timeout."""
    from agentbus.dashboard.web import application  # needs the extra `web`
    from agentbus.dashboard.web.guard import LOOPBACK  # needs the extra `web`
    from agentbus.dashboard.web.serve import serve  # needs the extra `web`

    args, loop, ended = call.args, asyncio.get_running_loop(), asyncio.Event()
    settings = copy.copy(call.settings)
    settings.deadline = min(settings.deadline, _PATIENCE)
    host, origin, prefix = public or ("", "", "")
    hosts = {*LOOPBACK, args.host, host} - {""}
    if not _is_loopback(listening):
        hosts.add(socket.gethostname())
    if args.timeout is not None:
        loop.call_later(args.timeout, ended.set)
    with _signals.heard(lambda *_: loop.call_soon_threadsafe(ended.set)):
        async with AsyncBus(settings) as bus:
            app = application(
                bus,
                write=args.write,
                person=args.person,
                token=token,
                code=code,
                hosts=hosts,
                origins=(origin,) if origin else (),
                reports=args.reports,
                all_projects=args.all_projects or token is None,
                address=address,
                tools=partial(_AgentTools, call.settings) if args.mcp else None,
            )
            await serve(app, listening, ended=ended, prefix=prefix, say=call.out.warn)


class _AgentTools:
    """The tools of an agent elsewhere: a token names it, and nothing of this process or of a call does."""

    def __init__(self, settings: Settings, agent: str) -> None:
        own = copy.copy(settings)
        own.agent, own.peers, own.remote = agent, "", True
        self._links = Links(own)

    def perform(
        self,
        name: str,
        given: dict[str, Any],
        meta: Mapping[str, Any],
        wanted: Callable[[], bool],
    ) -> ToolResult:
        """Run a tool."""
        return _tools.perform(self._links, name, given, wanted)

    def close(self) -> None:
        """Close the connections."""
        self._links.close()


@contextlib.contextmanager
def _browser(url: str) -> Iterator[None]:
    """Open an address in a browser while the pages are served, by a file that only this user can read.

    Everybody can read the arguments of the browser's process. And a browser in this terminal runs until its
    user quits it.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".html") as file:
        target = html.escape(url)
        file.write(
            f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">Open</a>'
        )
        file.flush()
        place = pathlib.Path(file.name).as_uri()
        threading.Thread(target=webbrowser.open, args=(place,), daemon=True).start()
        yield


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `Refused` if the port is in use."""
    try:
        (family, kind, proto, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, kind, proto)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{host!a} is not an address to listen on ({error})", hint="use 127.0.0.1"
        ) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise Refused(
            f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}",
            hint="choose another one with --port, or 0 for any",
        ) from None
    return listener


def _shown(host: str, listening: socket.socket) -> str:
    """Return the host of the address to open; for all addresses of a machine, its name."""
    if ip_address(listening.getsockname()[0].partition("%")[0]).is_unspecified:
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _is_loopback(listening: socket.socket) -> bool:
    return ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def _token(path: str | None, out: Out) -> str | None:
    """Return the token in a file. Raises `ConfigError`."""
    if path is None:
        return None
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                out.warn(f"others may read the token file {path!a}: chmod 600 prevents it")
            token = file.read(4_096).strip()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(
            f"the token file {path!a} cannot be read: {why}", hint="check it"
        ) from None
    if len(token) < _LEAST_TOKEN:
        raise ConfigError(
            f"the token in {path!a} has {len(token)} characters",
            hint=f"use at least {_LEAST_TOKEN}, for example of: openssl rand -hex 24",
        )
    return token


def _public(url: str | None) -> tuple[str, str, str] | None:
    """Return the host, the origin and the path of the address at which a proxy serves it."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        named = parts.hostname or ""
    except ValueError:
        named = ""
    if not named or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise UsageError(
            f"{url!a} is not the address of a site",
            hint="give it as https://www.example.com/agentbus",
        )
    return named, f"{parts.scheme}://{parts.netloc}".lower(), parts.path.rstrip("/")
