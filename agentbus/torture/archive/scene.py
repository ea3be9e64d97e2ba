"""The processes of one run, their command lines, and where their files lie."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

from agentbus.client.bus import Bus
from agentbus.core.clock import rfc3339
from agentbus.core.settings import Settings
from agentbus.torture.archive import command, faults, writing
from agentbus.torture.archive.faults import ARCHIVER, REPLAYER, WRITER
from agentbus.torture.archive.reading import Look
from agentbus.torture.history import Entry
from agentbus.torture.nemesis import Client, Nemesis
from agentbus.torture.order import Order
from agentbus.torture.server import Server
from agentbus.torture.site import Site, through, upstream_of

AGAIN = "again"
_ENDS_WITHIN = 120.0
_GLANCE = 0.5
_TWO_DAYS = 172_800.0


@contextlib.contextmanager
def scene_of(order: Order) -> Iterator[Scene]:
    """Have a scene, with a server of its own unless the order names one."""
    with contextlib.ExitStack() as stack:
        server = None
        if order.url is None:
            server = stack.enter_context(
                # What it is to forget in the end lies in one log.
                Server(order.place / "server", "--auto-aof-rewrite-percentage", "0", clock=True)
            )
        # What Spark leaves is no part of a failure's history.
        stack.callback(shutil.rmtree, order.place / "scratch", ignore_errors=True)
        site = stack.enter_context(Site(order.place, upstream_of(server, order.url)))
        scene = Scene(order, server, site)
        if server is None:
            stack.enter_context(scene.cleared())
        yield scene


class Scene:
    """A site with writers and archivers, and the archive that these keep at `path`."""

    def __init__(self, order: Order, server: Server | None, site: Site) -> None:
        self.order = order
        self.server = server
        self.site = site
        self.place = order.place
        self.path = order.place / "archive"
        self.project = order.project
        self.unfinished: list[str] = []
        self.acknowledged = 0
        self._scratch = order.place / "scratch"
        self._seconds = 0
        self._compactions: list[Client] = []
        self._looked = 0.0
        self._scratch.mkdir(parents=True)
        (self.place / "said").mkdir()
        (self.place / "agentbus.yaml").write_text(writing.POLICIES)

    @contextlib.contextmanager
    def cleared(self) -> Iterator[None]:
        """Have the project to oneself, on a server that is not ours."""
        with Bus(self.settings) as bus:
            bus.clear()
            try:
                yield
            finally:
                bus.clear()

    # -- who takes part --

    def writer(self, number: int, a_second: float, enough_of: int) -> Client:
        """Start a process that writes so many entries a second, and after so many fewer."""
        return self._writes(f"{WRITER}-{number}", a_second, enough_of)

    def worker(self) -> Client:
        """Start the process that works."""
        return self._writes(f"{WRITER}-that-works")

    def _writes(self, name: str, *pace: float) -> Client:
        def words(client: Client) -> Sequence[str]:
            url = self.url_for(client)
            told = (name, url, self.project, str(self.place), *pace)
            return [writing.__name__, json.dumps(told)]

        return self.site.hire(name, words)

    def archiver(self, name: str = ARCHIVER) -> Client:
        """Start an archiver that goes on."""
        line = ["archive", str(self.path), "--continuous", "--interval", "0.1", "--hold", "--json"]
        return self.commands(name, [line])

    def second(self) -> Callable[[], None]:
        """Start another archiver by mistake, and return what ends it."""
        self._seconds += 1
        client = self.archiver(f"{ARCHIVER}-too-{self._seconds}")

        def end() -> None:
            self.site.clients.remove(client)
            if client.process is not None:
                client.process.kill()
                client.process.communicate()

        return end

    def compact(self) -> bool:
        """Start a compaction of all that is archived by then, if anything is."""
        if not any(self.path.glob("kind=*")):
            return False
        self._seconds += 1
        later = rfc3339(time.time() + _TWO_DAYS)[:10]
        line = ["archive", "compact", str(self.path), "--before", later, "--json"]
        name = f"{ARCHIVER}-compacts-{self._seconds}"
        self._compactions.append(self.commands(name, [line, command.DONE]))
        return True

    def replayer(self, rate: float) -> Client:
        """Start a replay of all queues at so many rows a second, which verifies the archive then."""
        line = ["replay", str(self.path), "--to-queue", AGAIN, "--rate", f"{rate:g}", "--json"]
        # It may be started anew while the server is away, and reads all that it has before it serves.
        line += ["--deadline", "60"]
        return self.commands(REPLAYER, [line, self.verify(), command.DONE])

    def verify(self) -> Sequence[str]:
        """Return the command line that verifies the archive."""
        return ["archive", "verify", str(self.path), "--json"]

    def commands(self, name: str, lines: Sequence[Sequence[str]]) -> Client:
        """Start a process that runs these command lines; it is replaced if the last one fails."""

        def words(client: Client) -> Sequence[str]:
            reached = ["--url", self.url_for(client), "--project", self.project]
            reached += ["--config", str(self.place / "agentbus.yaml")]
            whole = [
                [*line, *reached] if line != list(command.DONE) else list(line) for line in lines
            ]
            history, said = self.site.histories / name, self.said(name)
            return command.Lines(str(history), str(said), str(self._scratch), whole).words

        return self.site.hire(name, words)

    def said(self, name: str) -> pathlib.Path:
        """Return the file that holds what a process says on stdout."""
        return self.place / "said" / name

    def url_for(self, client: Client) -> str:
        """Return how a client reaches the server: through its own proxy."""
        return through(client.proxies[0], self.order.url)

    @property
    def settings(self) -> Settings:
        """How the judge reaches the server: past all proxies."""
        url = self.server.url if self.server is not None else self.order.url or ""
        return writing.Words("judge", url, self.project, str(self.place)).settings

    def look(self) -> Look:
        """Return what looks at the server past all that goes wrong for its clients."""
        return Look(self.settings)

    # -- what happens --

    def saw(self, entry: Entry) -> None:
        """Count what was acknowledged."""
        if (entry.op, entry.phase) == (writing.WRITE, "ok"):
            self.acknowledged += len(entry.of["ids"])

    def run(self, what: str, nemesis: Nemesis, over: Callable[[], bool], seconds: float) -> None:
        """Go on until it is over and the faults are done; what is not in time is a violation."""
        self.order.tell(what)

        def now() -> bool:
            # To look costs something, and is done between all faults.
            if time.monotonic() < self._looked + _GLANCE:
                return False
            self._looked = time.monotonic()
            return over()

        if not self.site.run(nemesis, now, seconds, self.saw):
            self.unfinished.append(f"{what}: not over after {seconds:.0f} s")

    def quietly(self, what: str, over: Callable[[], bool], seconds: float) -> None:
        """Go on without faults until it is over."""
        self.run(what, faults.Faults({}, 1.0, 0, [], None, seen=lambda _pid: 0), over, seconds)

    @property
    def compacted(self) -> bool:
        """Whether no compaction is under way: for a moment plain readers see fewer rows then."""
        return all(self.done(each) for each in self._compactions)

    @staticmethod
    def done(client: Client) -> bool:
        """Tell whether a process has come to its end."""
        return client.process is not None and client.process.poll() == 0

    def dismiss(self, client: Client, how: signal.Signals) -> int:
        """End a process, which is not replaced, and return what it ended with."""
        self.site.clients.remove(client)
        process = client.process
        assert process is not None
        process.send_signal(how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_WITHIN)
        process.kill()
        process.communicate()
        return process.returncode
