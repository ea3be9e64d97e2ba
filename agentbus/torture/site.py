"""Client processes that work while a nemesis is at them; who dies is replaced."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Sequence
from typing import IO, Self

from agentbus.core.errors import UsageError
from agentbus.torture.history import Entry, Reader
from agentbus.torture.nemesis import Client, Nemesis
from agentbus.torture.network import Proxy
from agentbus.torture.server import Server

_GLANCE = 0.01
_SAID = 1500
Words = Callable[[Client], Sequence[str]]
# A unix socket's path, or a host and a port.
Upstream = str | tuple[str, int]


class Site:
    """The processes of one run, their histories (`histories/`) and what they said (`errors/`).

    `upstream` is where their proxies lead: a unix socket's path, or a host and a port. Those who end
    without being made to are written down in `ended`, unless they exit with 0, which means: done.
    """

    def __init__(self, place: pathlib.Path, upstream: Upstream) -> None:
        self.place = place
        self.histories, self.errors = place / "histories", place / "errors"
        for each in (self.histories, self.errors):
            each.mkdir(parents=True, exist_ok=True)
        self.clients: list[Client] = []
        self.reader = Reader(self.histories)
        self.ended: list[str] = []
        self.deaths = 0
        self._upstream = upstream
        self._words: dict[str, Words] = {}
        self._finished: set[str] = set()
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for client in self.clients:
            if client.process is not None:
                client.process.kill()
                client.process.communicate()
        self._open.close()

    def proxy(self, upstream: Upstream | None = None) -> Proxy:
        """Return a proxy of its own, for as long as the site is open; without an upstream to the site's."""
        return self._open.enter_context(Proxy(upstream or self._upstream))

    def hire(self, name: str, words: Words, upstreams: Sequence[Upstream] | None = None) -> Client:
        """Start a process in a role; `words` is its command line, asked for again when it is replaced.

        It gets a proxy to each of `upstreams`, without these one to the site's.
        """
        wanted = [self._upstream] if upstreams is None else upstreams
        client = Client(name, [self.proxy(each) for each in wanted])
        self._words[name] = words
        self.clients.append(client)
        self.reader.follow(name)
        self._start(client)
        return client

    def run(
        self,
        nemesis: Nemesis,
        over: Callable[[], bool],
        seconds: float,
        saw: Callable[[Entry], None] = lambda _entry: None,
    ) -> bool:
        """Go on until it is over, the faults are done and everybody is, or the time is up: then False."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for entry in self.reader.news():
                saw(entry)
            nemesis.tick()
            self._replace(saw)
            if nemesis.finished and over():
                break
            time.sleep(_GLANCE)
        in_time = time.monotonic() < until
        nemesis.end()
        for entry in self.reader.news():
            saw(entry)
        return in_time

    @property
    def finished(self) -> bool:
        """Whether every process has said that it is done."""
        return len(self._finished) == len(self.clients)

    def meant(self, client: Client) -> bool:
        """Tell whether a process that has just ended was made to; some sites' clients kill themselves."""
        return client.killed

    def _replace(self, saw: Callable[[Entry], None]) -> None:
        for client in self.clients:
            process = client.process
            if process is None or client.name in self._finished or process.poll() is None:
                continue
            process.communicate()
            # What it wrote last may tell that it had to die.
            for entry in self.reader.news():
                saw(entry)
            if process.returncode == 0:
                self._finished.add(client.name)
                continue
            self.deaths += 1
            if not self.meant(client):
                said = (self.errors / client.name).read_text(errors="replace")[-_SAID:]
                self.ended.append(f"{client.name} ended with {process.returncode}: {said}")
            self._start(client)

    def _start(self, client: Client) -> None:
        with (self.errors / client.name).open("ab") as errors:
            client.begin(spawn(self._words[client.name](client), errors))


def spawn(words: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a Python module (`words`: its name and arguments) that ends with us; see `end_with_parent`."""
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        stdin=subprocess.PIPE,
        # What is said on our own stdout is data.
        stdout=errors,
        stderr=errors,
        # A Ctrl-C is for us, who end them.
        process_group=0,
    )


def upstream_of(server: Server | None, url: str | None) -> Upstream:
    """Return where proxies lead: to a server of one's own, or to the one at a URL.

    Raises `UsageError` for a URL whose connections a proxy cannot hand on: by TLS, or to several servers.
    """
    if server is not None:
        return server.socket
    found = urllib.parse.urlsplit(url or "")
    if found.scheme == "unix":
        return urllib.parse.unquote(found.path)
    if found.scheme != "redis":
        raise UsageError(
            f"{found.scheme}:// cannot be led through a network that fails",
            hint="give a URL that begins with redis:// or unix://",
        )
    return (found.hostname or "localhost", found.port or 6379)


def through(proxy: Proxy, url: str | None) -> str:
    """Return a proxy's URL, with the user and the database of the URL of a server that is not ours."""
    found = urllib.parse.urlsplit(url or "")
    user, at, _ = found.netloc.rpartition("@")
    database = dict(urllib.parse.parse_qsl(found.query)).get("db", "")
    if not database and found.scheme != "unix":
        database = found.path.strip("/")
    return f"redis://{user}{at}127.0.0.1:{proxy.port}" + (f"/{database}" if database else "")
