"""Client processes behind proxies, while a nemesis attacks them; one that dies is replaced."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Sequence
from typing import IO, Self

from agentbus.store.url import read
from tests.torture.history import DIES, HistoryEntry, HistoryReader
from tests.torture.nemesis import Client, Nemesis
from tests.torture.network import Proxy
from tests.torture.server import DisposableServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
_GLANCE = 0.01
_SHOWN = 1500
Words = Callable[[Client], Sequence[str]]
# A unix socket's path, or a host and a port.
Upstream = str | tuple[str, int]


class Site:
    """The processes of one run, their histories (`histories/`) and their output (`errors/`).

    `upstream` is where their proxies lead. A process that exits with 0 is done. One that ends in any other
    way without having been made to is listed in `ended`, and replaced.
    """

    def __init__(self, place: pathlib.Path, upstream: Upstream) -> None:
        self.place = place
        self.histories, self.errors = place / "histories", place / "errors"
        for each in (self.histories, self.errors):
            each.mkdir(parents=True, exist_ok=True)
        self.clients: list[Client] = []
        self.reader = HistoryReader(self.histories)
        self.ended: list[str] = []
        self.deaths = 0
        self._upstream = upstream
        self._commands: dict[str, Words] = {}
        self._finished: set[str] = set()
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for client in self.clients:
            client.end()
        self._open.close()

    def hire(self, name: str, words: Words, upstreams: Sequence[Upstream] | None = None) -> Client:
        """Start a process in a role; `words`, its command line, is asked for at each start.

        It gets a proxy to each of `upstreams`, by default to the site's. No role gets the name of another
        of the run, even of one that is over: names tell which processes are done, and whose a history is.
        """
        if name in self._commands:
            raise ValueError(f"there was a {name!r} before")
        wanted = [self._upstream] if upstreams is None else upstreams
        client = Client(name, [self._open.enter_context(Proxy(each)) for each in wanted])
        self._commands[name] = words
        self.clients.append(client)
        self.reader.follow(name)
        self._start(client)
        return client

    def run(
        self,
        nemesis: Nemesis,
        over: Callable[[], bool],
        seconds: float,
        saw: Callable[[HistoryEntry], None] = lambda _entry: None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> bool:
        """Run until all faults are done and it is over, or the time is up: then return False.

        `saw` takes each line of a history as it is written; `meanwhile` is called at each tick.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.read(saw)
            nemesis.tick()
            meanwhile()
            self._replace(saw)
            if nemesis.finished and over():
                break
            time.sleep(_GLANCE)
        in_time = time.monotonic() < until
        nemesis.end()
        self.read(saw)
        return in_time

    def read(self, saw: Callable[[HistoryEntry], None]) -> None:
        """Take what was written since."""
        for entry in self.reader.news():
            if entry.op == DIES:
                self.client(entry.who).killed = True
            saw(entry)

    @property
    def hired(self) -> int:
        """How many roles there were."""
        return len(self._commands)

    @property
    def finished(self) -> bool:
        """Whether every process is done."""
        return len(self._finished) == len(self.clients)

    def client(self, name: str) -> Client:
        """Return the client of this name."""
        return next(one for one in self.clients if one.name == name)

    def _replace(self, saw: Callable[[HistoryEntry], None]) -> None:
        for client in self.clients:
            process = client.process
            if process is None or client.name in self._finished or process.poll() is None:
                continue
            process.communicate()
            # Its last lines may say that it had to die.
            self.read(saw)
            if process.returncode == 0:
                self._finished.add(client.name)
                continue
            self.deaths += 1
            if not client.killed:
                said = (self.errors / client.name).read_text(errors="replace")[-_SHOWN:]
                self.ended.append(f"{client.name} ended with {process.returncode}: {said}")
            self._start(client)

    def _start(self, client: Client) -> None:
        with (self.errors / client.name).open("ab") as errors:
            client.begin(spawn(self._commands[client.name](client), errors))


def spawn(words: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a Python module (`words`: its name and arguments); see `end_with_parent`."""
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        stdin=subprocess.PIPE,
        # Our own stdout is data.
        stdout=errors,
        stderr=errors,
        # Whatever lies in the directory of the user, its modules are not ours.
        cwd=ROOT,
        # A Ctrl-C is for us, who end them.
        process_group=0,
    )


def upstream_of(server: DisposableServer | None, url: str | None) -> Upstream:
    """Return where proxies lead: to our own server, or to the one at a URL (`redis://`)."""
    if server is not None:
        return server.socket
    host, port = read(str(url)).hosts[0]
    return (host, port or 6379)


def through(proxy: Proxy, url: str | None) -> str:
    """Return a proxy's URL, with the user and the database of the server's URL."""
    found = urllib.parse.urlsplit(url or "")
    user, at, _ = found.netloc.rpartition("@")
    database = dict(urllib.parse.parse_qsl(found.query)).get("db", "")
    database = database or found.path.strip("/")
    return f"redis://{user}{at}127.0.0.1:{proxy.port}" + (f"/{database}" if database else "")
