"""Writers and archivers, their command lines, and the faults that hit them: deaths at chosen moments."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import signal
import time
from collections.abc import Callable, Mapping, Sequence

import psutil  # type: ignore[import-untyped]

from agentbus.core.clock import rfc3339
from agentbus.core.settings import Settings
from tests.torture.archive import command, writing
from tests.torture.archive.checks import CHECKS
from tests.torture.archive.reading import Look
from tests.torture.history import OK, HistoryEntry
from tests.torture.mode import Trial
from tests.torture.nemesis import FREEZE, KILL, Client, Fault, Steps, lasting
from tests.torture.server import DisposableServer
from tests.torture.site import Upstream, through
from tests.torture.workload import Workload

ARCHIVER, WRITER, REPLAYER = "archiver", "writer", "replayer"
AGAIN = "again"
TREE_KILL, WORKER_KILL, WRITER_KILL = "tree_kill", "worker_kill", "writer_kill"
SECOND, COMPACT = "second_archiver", "compaction"
REPLAY_KILL, RESTORE = "replay_kill", "restore"
# How long a new process lives at most, and one that has just done something; in seconds.
_ANY_MOMENT = 8.0
_SOON = 0.4
# A process that does nothing for this long is killed all the same.
_LONGEST = 90.0
_SECOND_LIVES = (15.0, 30.0)

_A_MINUTE_OF_REPLAY = {
    REPLAY_KILL: 0.4,
    "server_kill": 0.3,
    "cut": 0.5,
    "lost_reply": 0.5,
    "lost_request": 0.3,
}


def wanted(trial: Trial) -> dict[str, int]:
    """Return the faults of archiving."""
    number = trial.number
    rare = {SECOND: 0.6, COMPACT: 0.3, FREEZE: 1.0} if trial.minutes >= 1 else {}
    return {
        # Each costs the start of a JVM, for which the short form has time only once.
        KILL: number(1.2, 0),
        TREE_KILL: number(1.0),
        WORKER_KILL: number(0.8),
        WRITER_KILL: number(2),
        **trial.faults(rare),
    }


def wanted_of_replay(trial: Trial) -> dict[str, int]:
    """Return the faults of the replay."""
    return {kind: trial.number(often) for kind, often in _A_MINUTE_OF_REPLAY.items()}


_TWO_DAYS = 172_800.0


class ArchiveSite(Workload):
    """Writers and archivers, and the archive at `path`; when the limit is over, writers end."""

    mode, checks = "archive", CHECKS

    def __init__(self, trial: Trial, server: DisposableServer | None) -> None:
        super().__init__(trial, server)
        self.path = trial.place / "archive"
        self.acknowledged = self._versions = 0
        self._scratch = trial.place / "scratch"
        self.compactions: list[Client] = []
        # Twice as long as on two idle cores, and more, since Spark is started again and again.
        self.patience = 900.0 + 180.0 * trial.minutes
        # How much was done by now, and how many were killed just after that grew.
        self.seen: Callable[[], int] = self.versions
        self.at_work = 0
        self._aimed_at: list[Client] = []
        # Past all faults of clients.
        self.look = Look(self.url, self.project)
        self._scratch.mkdir(parents=True)
        (self.place / "said").mkdir()
        (self.place / writing.CONFIG).write_text(writing.POLICIES)

    # -- processes --

    def writer(self, number: int, a_second: float, enough_of: int) -> Client:
        """Start a process that writes `a_second` entries a second; after `enough_of`, fewer."""
        name = f"{WRITER}-{number}"
        return self.start(name, writing, a_second=a_second, enough_of=enough_of)

    def archiver(self, which: str = "") -> Client:
        """Start a continuous archiver; `which` names it beside another."""
        line = ["archive", str(self.path), "--continuous", "--interval", "0.1", "--hold", "--json"]
        return self.commands(self._named(which), [line])

    def compact(self) -> bool:
        """Start a compaction of all that is archived by then; False if nothing is."""
        if not any((self.path).glob("kind=*")):
            return False
        later = rfc3339(time.time() + _TWO_DAYS)[:10]
        line = ["archive", "compact", str(self.path), "--before", later, "--json"]
        self.compactions.append(self.commands(self._named("compacts"), [line, command.DONE]))
        return True

    def _named(self, which: str) -> str:
        return f"{ARCHIVER}-{which}-{self.hired}" if which else ARCHIVER

    def versions(self) -> int:
        """Return how many versions the archive has."""
        while (self.path / "_delta_log" / f"{self._versions:020d}.json").exists():
            self._versions += 1
        return self._versions

    def verify(self) -> Sequence[str]:
        """Return the command line that verifies the archive."""
        return ["archive", "verify", str(self.path), "--json"]

    def commands(
        self, name: str, lines: Sequence[Sequence[str]], upstream: Upstream | None = None
    ) -> Client:
        """Start a process that runs these command lines; it is replaced if the last one fails.

        `upstream` is where its server is, if that is not the site's.
        """

        def words(client: Client) -> Sequence[str]:
            url = through(client.proxies[0], self.trial.url)
            reached = ["--url", url, "--project", self.project]
            reached += ["--config", str(self.place / writing.CONFIG)]
            whole = [line if line == command.DONE else [*line, *reached] for line in lines]
            said, scratch = str(self.said(name)), str(self._scratch)
            return self.assign(client, command.__name__, lines=whole, said=said, scratch=scratch)

        return self.hire(name, words, None if upstream is None else [upstream])

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

    # -- faults --

    def own_faults(self) -> Mapping[str, Fault]:
        aimed = (KILL, TREE_KILL, WORKER_KILL, REPLAY_KILL)
        return {
            **{kind: functools.partial(self._aim, kind) for kind in aimed},
            FREEZE: self._freeze,
            WRITER_KILL: self._kill_writer,
            SECOND: self._second,
            COMPACT: self.compact,
        }

    def _one(self, role: str) -> Client | None:
        return self.nemesis.one_of(
            [
                one
                for one in self.nemesis.victims()
                if one.name.startswith(role) and one not in self._aimed_at
            ]
        )

    def _freeze(self) -> bool | Steps:
        one = self._one(ARCHIVER)
        return one is not None and self.nemesis.freeze(one)

    def _kill_writer(self) -> bool:
        one = self._one(WRITER)
        return one is not None and self.nemesis.kill(one)

    def _second(self) -> Steps:
        """Start another archiver by mistake, for a while."""
        client = self.archiver("too")

        def end() -> None:
            self.clients.remove(client)
            client.end()

        return lasting(self.nemesis.chance.uniform(*_SECOND_LIVES), end)

    def _aim(self, kind: str) -> Steps:
        """Kill a process: at any moment from its start, or soon after it has done something."""
        one = self._one(REPLAYER if kind == REPLAY_KILL else ARCHIVER)
        if one is None or one.process is None:
            return
        process, chance = one.process, self.nemesis.chance
        aims = kind not in (KILL, TREE_KILL) or chance.random() >= 0.3
        due = time.monotonic() + (_LONGEST if aims else chance.uniform(0, _ANY_MOMENT))
        seen = self.seen()
        self._aimed_at.append(one)
        try:
            while time.monotonic() < due or one.frozen:
                yield False
                if process.poll() is not None or one.process is not process:
                    return
                if aims and self.seen() > seen:
                    aims = False
                    self.at_work += 1
                    due = time.monotonic() + chance.uniform(0, _SOON)
            if _struck(kind, one, process.pid):
                yield True
        finally:
            self._aimed_at.remove(one)


def _struck(kind: str, one: Client, pid: int) -> bool:
    below = descendants(pid)
    if kind == WORKER_KILL:
        daemons = [child for child, words in below if "pyspark" in words and "daemon" in words]
        # All of them: the others would do the work.
        return sum(map(_killed, daemons)) > 0
    one.kill()
    if kind != KILL:
        for child, _ in below:
            _killed(child)
    return True


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def descendants(of: int) -> list[tuple[int, str]]:
    """Return the descendants of a process, with their command lines."""
    below = []
    for process in psutil.Process(of).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            below.append((process.pid, " ".join(process.cmdline())))
    return below
