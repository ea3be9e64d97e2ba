"""Writers and archivers, their command lines, and where their files lie."""

from __future__ import annotations

import functools
import pathlib
import time
from collections.abc import Callable, Sequence

from agentbus.core.clock import rfc3339
from agentbus.core.settings import Settings
from agentbus.torture.archive import command, writing
from agentbus.torture.archive.checks import CHECKS
from agentbus.torture.archive.reading import Look
from agentbus.torture.history import OK, HistoryEntry
from agentbus.torture.mode import Trial
from agentbus.torture.nemesis import Client, Nemesis
from agentbus.torture.server import DisposableServer
from agentbus.torture.site import through
from agentbus.torture.workload import Workload

ARCHIVER, WRITER, REPLAYER = "archiver", "writer", "replayer"
AGAIN = "again"
_GLANCE = 0.5
_TWO_DAYS = 172_800.0


class ArchiveSite(Workload):
    """Writers and archivers, and the archive at `path`; a step may take `patience` seconds.

    When the limit is over, writers end.
    """

    mode, checks = "archive", CHECKS
    patience = 0.0

    def __init__(self, trial: Trial, server: DisposableServer | None) -> None:
        super().__init__(trial, server)
        self.path = trial.place / "archive"
        self.acknowledged = 0
        self.problems["unfinished"] = []
        self._scratch = trial.place / "scratch"
        self._compactions: list[Client] = []
        self._looked = 0.0
        # Past all faults of clients.
        self.look = Look(self.url, self.project)
        self._scratch.mkdir(parents=True)
        (self.place / "said").mkdir()
        (self.place / writing.CONFIG).write_text(writing.POLICIES)

    # -- processes --

    def writer(self, number: int, a_second: float, enough_of: int) -> Client:
        """Start a process that writes `a_second` entries a second; after `enough_of`, fewer."""
        return self.hire(
            f"{WRITER}-{number}",
            lambda one: self.assign(one, writing.__name__, a_second=a_second, enough_of=enough_of),
        )

    def worker(self) -> Client:
        """Start the process that works."""
        return self.hire(
            f"{WRITER}-that-works", lambda one: self.assign(one, writing.__name__, writing.WORKER)
        )

    def archiver(self, which: str = "") -> Client:
        """Start a continuous archiver; `which` names it beside another."""
        line = ["archive", str(self.path), "--continuous", "--interval", "0.1", "--hold", "--json"]
        return self.commands(self._named(which), [line])

    def compact(self) -> bool:
        """Start a compaction of all that is archived by then; False if nothing is."""
        if not any(self.path.glob("kind=*")):
            return False
        later = rfc3339(time.time() + _TWO_DAYS)[:10]
        line = ["archive", "compact", str(self.path), "--before", later, "--json"]
        self._compactions.append(self.commands(self._named("compacts"), [line, command.DONE]))
        return True

    def _named(self, which: str) -> str:
        return f"{ARCHIVER}-{which}-{len(self.clients)}" if which else ARCHIVER

    @property
    def compacted(self) -> bool:
        """Whether no compaction is under way: plain readers see fewer rows for a moment then."""
        return all(each.done for each in self._compactions)

    def replayer(self, rate: float) -> Client:
        """Start a replay of all queues at `rate` rows a second, which verifies the archive afterwards."""
        line = ["replay", str(self.path), "--to-queue", AGAIN, "--rate", f"{rate:g}", "--json"]
        # A server that is restarted meanwhile has to load all its data.
        line += ["--deadline", "60"]
        return self.commands(REPLAYER, [line, self.verify(), command.DONE])

    def verify(self) -> Sequence[str]:
        """Return the command line that verifies the archive."""
        return ["archive", "verify", str(self.path), "--json"]

    def commands(self, name: str, lines: Sequence[Sequence[str]]) -> Client:
        """Start a process that runs these command lines; it is replaced if the last one fails."""

        def words(client: Client) -> Sequence[str]:
            url = through(client.proxies[0], self.trial.url)
            reached = ["--url", url, "--project", self.project]
            reached += ["--config", str(self.place / writing.CONFIG)]
            whole = [line if line == command.DONE else [*line, *reached] for line in lines]
            said, scratch = str(self.said(name)), str(self._scratch)
            return self.assign(client, command.__name__, lines=whole, said=said, scratch=scratch)

        return self.hire(name, words)

    def said(self, name: str) -> pathlib.Path:
        """Return the file with a process's stdout."""
        return self.place / "said" / name

    @property
    def settings(self) -> Settings:
        """The judge's settings."""
        return writing.settings_of("judge", self.url, self.project, str(self.place))

    # -- what happens --

    def saw(self, entry: HistoryEntry) -> None:
        if (entry.op, entry.phase) == (writing.WRITE, OK):
            self.acknowledged += len(entry.of["ids"])

    def step(self, what: str, over: Callable[[], bool], nemesis: Nemesis | None = None) -> None:
        """Run until it is over and the faults are done; a step that takes too long is a violation."""
        self.trial.tell(what)

        def now() -> bool:
            # To look is expensive, and done for each tick.
            if time.monotonic() < self._looked + _GLANCE:
                return False
            self._looked = time.monotonic()
            return over()

        run = functools.partial(self.suffer, nemesis) if nemesis else self.quietly
        if not run(now, self.patience):
            self.problems["unfinished"].append(f"{what}: not over after {self.patience:.0f} s")
