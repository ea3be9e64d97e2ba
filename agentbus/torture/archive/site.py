"""Writers and archivers, their command lines, and where their files lie."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Sequence

from agentbus.core.clock import rfc3339
from agentbus.core.settings import Settings
from agentbus.torture.archive import command, writing
from agentbus.torture.archive.checks import CHECKS
from agentbus.torture.archive.nemesis import ARCHIVER, REPLAYER, WRITER
from agentbus.torture.archive.reading import Look
from agentbus.torture.history import OK, HistoryEntry
from agentbus.torture.mode import Trial
from agentbus.torture.nemesis import Client, Nemesis
from agentbus.torture.server import DisposableServer
from agentbus.torture.site import through
from agentbus.torture.workload import Workload

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
        self._others = 0
        self._compactions: list[Client] = []
        self._looked = 0.0
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

    def archiver(self, name: str = ARCHIVER) -> Client:
        """Start a continuous archiver."""
        line = ["archive", str(self.path), "--continuous", "--interval", "0.1", "--hold", "--json"]
        return self.commands(name, [line])

    def second(self) -> Callable[[], None]:
        """Start another archiver by mistake, and return what ends it."""
        self._others += 1
        client = self.archiver(f"{ARCHIVER}-too-{self._others}")

        def end() -> None:
            self.clients.remove(client)
            client.end()

        return end

    def compact(self) -> bool:
        """Start a compaction of all that is archived by then; False if nothing is."""
        if not any(self.path.glob("kind=*")):
            return False
        self._others += 1
        later = rfc3339(time.time() + _TWO_DAYS)[:10]
        line = ["archive", "compact", str(self.path), "--before", later, "--json"]
        name = f"{ARCHIVER}-compacts-{self._others}"
        self._compactions.append(self.commands(name, [line, command.DONE]))
        return True

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

    def look(self) -> Look:
        """Return what reads the server, past all faults of clients."""
        return Look(self.settings)

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

        nemesis = nemesis or Nemesis({}, 1.0, 0, [], None)
        if not self.suffer(nemesis, now, self.patience):
            self.problems["unfinished"].append(f"{what}: not over after {self.patience:.0f} s")
