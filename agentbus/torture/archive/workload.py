"""One run: writers are archived while all goes wrong, then the archive is verified and replayed."""

from __future__ import annotations

import collections
import contextlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from agentbus.core.errors import AgentBusError, EpochMismatch
from agentbus.torture.archive import command, site, writing
from agentbus.torture.archive.checks import ArchivedRow, ArchiveEvidence
from agentbus.torture.archive.controlled import ControlledArchive
from agentbus.torture.archive.reading import archived, counted, kind_of
from agentbus.torture.archive.site import AGAIN, ARCHIVER, REPLAYER, RESTORE, ArchiveSite, Versions
from agentbus.torture.history import HistoryEntry
from agentbus.torture.mode import Trial
from agentbus.torture.nemesis import Client
from agentbus.torture.server import DisposableServer
from agentbus.torture.verdict import Verdict
from agentbus.torture.workload import server_of

_WRITERS = 3
_A_MINUTE = 12_000
# A third of the time is for starting archivers and for what comes after.
_WRITING = 0.7
_ENDS_WITHIN = 120.0
_GLANCE = 0.1
_REPLAY_GAP, _REPLAY_LEAST = 0.3, 6.0
_REPLAYED = ("q:again", "q:again:high", "q:again:low")
_RESTORED = "restored"
# How many bytes before the replay's are cut off the server's log, again and again, until it is behind the
# archive.
_TAIL = 20_000


def torture(trial: Trial) -> Iterator[Verdict]:
    """Torture archivers and a replay, and judge the archive."""
    made = ControlledArchive if trial.control else ArchiveRun
    with contextlib.ExitStack() as stack:
        # The restore at the end cuts one log.
        server = stack.enter_context(server_of(trial, "--auto-aof-rewrite-percentage", "0"))
        # What Spark leaves is not part of a failure's history.
        stack.callback(shutil.rmtree, trial.place / "scratch", ignore_errors=True)
        yield stack.enter_context(made(trial, server)).verdict()


class ArchiveRun(ArchiveSite):
    """Archives, verifies, replays, and goes on after the server went back in time."""

    def __init__(self, trial: Trial, server: DisposableServer | None) -> None:
        super().__init__(trial, server)
        self._entries = trial.number(_A_MINUTE)
        self._disagreed = self.problems["verify_disagrees"] = []
        self._went_on = self.problems["went_on_after_a_restore"] = []
        self._figures: dict[str, Any] = {}
        # The exit codes of the command lines that ran, by process.
        self._codes: dict[str, list[int]] = collections.defaultdict(list)
        self._looked_at_replay, self._there = 0.0, 0

    def evidence(self) -> ArchiveEvidence:
        self._archive()
        evidence = self._look()
        # How long the server's log was when all was archived.
        written = self.server.written if self.server is not None else 0
        self._replay()
        replayed = self.look.replayed(_REPLAYED)
        if self.server is not None and self.trial.minutes >= 1:
            self._restore(self.server, self.server.written - written + _TAIL, evidence.rows)
        self._figures["replayed"] = len(replayed)
        # Compactions that failed.
        self.ended += [
            f"{name} ended with {codes}"
            for name, codes in self._codes.items()
            if name.startswith(ARCHIVER) and any(codes)
        ]
        return evidence._replace(replayed=replayed)

    def figures(self, evidence: ArchiveEvidence) -> dict[str, Any]:
        return self._figures

    def saw(self, entry: HistoryEntry) -> None:
        super().saw(entry)
        if entry.op == command.RAN:
            self._codes[entry.who].append(entry.of["code"])

    # -- archived --

    def _archive(self) -> None:
        seconds = self.trial.minutes * 60 * _WRITING
        each = self._entries // _WRITERS
        pace = self._entries / seconds / _WRITERS
        writers = [self.writer(number, pace, each) for number in range(_WRITERS)]
        writers.append(self.worker())
        # An archiver that is at work finds a new stream only after a minute.
        self.step("writing begins", self._all_streams)
        archiver = self.archiver()
        versions = Versions(self.path)
        self.seen = versions.of
        wanted = site.wanted(self.trial)
        nemesis = self.new_nemesis(wanted, seconds / sum(wanted.values()))
        self.step("archivers are killed", lambda: self.acknowledged >= self._entries, nemesis)
        self.allow(0, over=True)
        self.step("writers end", lambda: all(each.done for each in writers))
        self.step("compactions end", lambda: self.compacted)
        # Stopped before it has begun, the last archiver would end like any program.
        with self.connect() as bus:
            bus.speak("the end")
        self.step(
            "the last archiver is at work",
            lambda: archiver.process is not None and versions.of(archiver.process.pid) > 0,
        )
        self.step("the archive is complete", self._complete)
        if code := self._stop(archiver):
            self.ended.append(f"{archiver.name} was stopped, and ended with {code}")
        versions.look()
        self._figures |= {"versions": versions.number, "killed_at_work": self.at_work}

    def _stop(self, client: Client) -> int:
        """Stop a process, which is not replaced, and return its exit code."""
        self.clients.remove(client)
        process = client.process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_WITHIN)
        client.end()
        return process.returncode

    def _all_streams(self) -> bool:
        return all(self.look.length(name) for name in writing.STREAMS)

    def _complete(self) -> bool:
        from agentbus.pipeline.archives.verify import status

        try:
            return status(self.settings, str(self.path)).lag == 0
        except AgentBusError:
            # There is none yet.
            return False

    def _look(self) -> ArchiveEvidence:
        """Read the archive and the server."""
        rows, holes = archived(self.path)
        log, unshown = counted(self.path)
        server = self.look.rows({name: kind_of(name) for name in log})
        self._figures |= {"acknowledged": self.acknowledged, "archived": len(rows)}
        self._figures["gone_and_counted"] = sum(hole.lost for hole in holes)
        self.problems["shown_wrongly"] = sorted(unshown)
        return ArchiveEvidence(self.reader.entries, rows, holes, log, server)

    # -- verified --

    def _verified(self, name: str) -> list[int]:
        """Take what `archive verify` said in a process, and return the exit codes of its command lines."""
        codes = self._codes[name]
        lines = self.said(name).read_text().splitlines()
        told = [json.loads(line) for line in lines if "duplicates" in line]
        self._disagreed += [f"{name}: {each}" for each in told if not each["ok"]]
        if codes[-1:] != [0] or not told:
            self._disagreed.append(f"{name}: exit codes {codes}")
        return codes

    # -- replayed --

    def _replay(self) -> None:
        rows = sum(1 for row in archived(self.path)[0] if row.kind == "queue")
        wanted = site.wanted_of_replay(self.trial)
        client = self.replayer(rows / (sum(wanted.values()) * _REPLAY_GAP * 2 + _REPLAY_LEAST))
        self.seen = lambda _pid: self._published()
        # Earlier faults would only meet the start of Spark.
        self.step("a replay begins", lambda: self._published() > 0)
        nemesis = self.new_nemesis(wanted, _REPLAY_GAP)
        self.step("a replay is killed", lambda: client.done, nemesis)
        codes = self._verified(client.name)
        if codes[:1] != [0]:
            self.ended.append(f"the replay's command lines ended with {codes}")

    def pace(self) -> None:
        if REPLAYER in self._codes:
            # What would still be done to the replay comes too late.
            self.nemesis.give_up()

    def _published(self) -> int:
        """Return about how many entries are published; 0 while the server is away."""
        if time.monotonic() < self._looked_at_replay + _GLANCE:
            return self._there
        self._looked_at_replay, self._there = time.monotonic(), 0
        with contextlib.suppress(redis.RedisError):
            self._there = self.look.length(f"q:{AGAIN}")
        return self._there

    # -- gone back in time --

    def _restore(self, server: DisposableServer, tail: int, rows: Sequence[ArchivedRow]) -> None:
        """Put the server back behind the archive: archiving ends then, until a new epoch is begun."""
        self.wanted[RESTORE] = 1
        while not self._behind():
            server.kill()
            left = server.lose_tail(tail)
            server.start()
            if not left:
                self.problems["unfinished"].append("the empty server was not behind the archive")
                return
            tail = _TAIL
        self.faults[RESTORE] = 1
        path = str(self.path)
        lines = [["archive", path, "--json"], ["archive", path, "--new-epoch", "--json"]]
        client = self.commands(_RESTORED, [*lines, self.verify(), command.DONE])
        self.step("the server went back", lambda: client.done)
        codes = self._verified(_RESTORED)
        said = (self.errors / _RESTORED).read_text(errors="replace")
        if codes[:2] != [1, 0] or "went back in time" not in said:
            self._went_on.append(f"archive, archive --new-epoch ended with {codes}: {said[-500:]}")
        there = collections.Counter(row.name for row in archived(self.path)[0])
        self._went_on += [f"lost: {row.name}" for row in rows if row.name not in there]
        self._went_on += [f"doubled: {name}" for name, number in there.items() if number > 1]

    def _behind(self) -> bool:
        from agentbus.pipeline.archives.verify import status

        try:
            status(self.settings, str(self.path))
        except EpochMismatch:
            return True
        return False
