"""One run: writers are archived while all goes wrong, then the archive is verified and replayed."""

from __future__ import annotations

import collections
import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import redis

from agentbus.core.errors import AgentBusError, EpochMismatch
from tests.torture.archive import command, controls, counting, site, writing
from tests.torture.archive.checks import (
    ArchivedRow,
    ArchiveEvidence,
    Hole,
    falsely_lost,
    lost,
    miscounted,
    replayable,
)
from tests.torture.archive.failover import (
    FAILOVER,
    LOST,
    MORE,
    LateReplica,
    OutgrownArchive,
    add,
)
from tests.torture.archive.reading import Look, archived, counted
from tests.torture.archive.site import (
    AGAIN,
    ARCHIVER,
    REPLAYER,
    RESTORE,
    WRITER,
    ArchiveSite,
)
from tests.torture.history import DIES, HistoryEntry
from tests.torture.mode import Trial
from tests.torture.nemesis import KILL, Client, Fault
from tests.torture.server import DisposableServer
from tests.torture.verdict import Verdict, found_by
from tests.torture.workload import server_of

_WRITERS = 3
_A_MINUTE = 12_000
# A third of the time is for starting archivers and for what comes after.
_WRITING = 0.7
_GLANCE = 0.1
_REPLAY_GAP, _REPLAY_LEAST = 0.3, 6.0
_REPLAYED = ("q:again", "q:again:high", "q:again:low")
_RESTORED, _BEFORE, _PROMOTED = "restored", "before_failover", "promoted"
# How many bytes before the replay's are cut off the server's log, again and again, until it is behind the
# archive.
_TAIL = 20_000
# Whether ids as text do harm depends on the last ones before a death.
_DEATHS = 8
_A_SECOND = 600.0
_ENOUGH = 20_000


def torture(trial: Trial) -> Iterator[Verdict]:
    """Torture archivers and a replay, and judge the archive."""
    made: type[ArchiveSite] = ArchiveRun
    if trial.control is not None:
        made = OutgrownArchive if trial.control == counting.COUNTS_ALONE else ControlledArchive
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
        self._replay(len(replayable(evidence)))
        replayed = self.look.replayed(_REPLAYED)
        if self.server is not None and self.trial.minutes >= 1:
            self._restore(self.server, self.server.written - written + _TAIL, evidence.rows)
        if self.server is not None:
            self._fail_over(self.server, evidence)
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
        writers.append(self.start(f"{WRITER}-that-works", writing, writing.WORKER))
        # An archiver that is at work finds a new stream only after a minute.
        self.step("writing begins", lambda: all(map(self.look.length, writing.STREAMS)))
        archiver = self.archiver()
        wanted = site.wanted(self.trial)
        nemesis = self.new_nemesis(wanted, seconds / sum(wanted.values()))
        self.step("archivers are killed", lambda: self.acknowledged >= self._entries, nemesis)
        self.allow(0, over=True)
        self.step("writers end", lambda: all(each.done for each in writers))
        self.step("compactions end", lambda: all(one.done for one in self.compactions))
        # Stopped before it has begun, the last archiver would end like any program.
        before = self.versions()
        with self.connect() as bus:
            bus.speak("the end")
        self.step("the last archiver is at work", lambda: self.versions() > before)
        self.step("the archive is complete", self._complete)
        self.stop([archiver])
        self._figures |= {"versions": self.versions(), "killed_at_work": self.at_work}

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
        log, missing = counted(self.path)
        server = self.look.rows(log)
        self._figures |= {"acknowledged": self.acknowledged, "archived": len(rows)}
        self._figures["gone_and_counted"] = sum(hole.lost for hole in holes)
        self.problems["missing_files"] = sorted(missing)
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

    def _replay(self, rows: int) -> None:
        wanted = site.wanted_of_replay(self.trial)
        rate = rows / (sum(wanted.values()) * _REPLAY_GAP * 2 + _REPLAY_LEAST)
        line = ["replay", str(self.path), "--to-queue", AGAIN, "--rate", f"{rate:g}", "--json"]
        # A server that is restarted meanwhile has to load all its data.
        line += ["--deadline", "60"]
        client = self.commands(REPLAYER, [line, self.verify(), command.DONE])
        self.seen = self._published
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
        after, _ = archived(self.path)
        there = {row.name for row in after}
        self._went_on += [f"lost: {row.name}" for row in rows if row.name not in there]
        self._went_on += _doubled(after)

    def _behind(self) -> bool:
        from agentbus.pipeline.archives.verify import status

        try:
            status(self.settings, str(self.path))
        except EpochMismatch:
            return True
        return False

    # -- failed over --

    def _fail_over(self, server: DisposableServer, evidence: ArchiveEvidence) -> None:
        """Fail over to a replica that lacks what was archived last, and has grown past it since."""
        self.wanted[FAILOVER] = 1
        once = ["archive", str(self.path), "--json"]
        again = [*once, "--new-epoch"]
        with LateReplica(self.place / "replica", server) as replica:
            self.step("a replica follows", replica.follows)
            replica.lag()
            # The server went back before: it may have lost other entries of these ids.
            add(server.url, self.project, LOST, evidence.rows)
            client = self.commands(_BEFORE, [once, command.DONE])
            self.step("the replica lags", lambda: client.done)
            before, holes = archived(self.path)
            server.kill()
            replica.promote()
            self.faults[FAILOVER] = 1
            add(replica.server.url, self.project, MORE, before)
            lines = [once, self.verify(), again, self.verify(), once, command.DONE]
            client = self.commands(_PROMOTED, lines, replica.server.socket)
            self.step("the replica was promoted", lambda: client.done)
            log, _ = counted(self.path)
            there = Look(replica.server.url, self.project).rows(log)
        self._judge_failover(
            evidence._replace(entries=self.reader.entries), before, holes, there, log
        )

    def _judge_failover(
        self,
        evidence: ArchiveEvidence,
        before: Sequence[ArchivedRow],
        holes: Sequence[Hole],
        there: Sequence[ArchivedRow],
        log: Mapping[str, tuple[int, int]],
    ) -> None:
        wrong = self.problems["wrong_after_a_failover"] = []
        codes, said = self._codes[_PROMOTED], (self.errors / _PROMOTED).read_text(errors="replace")
        if [*self._codes[_BEFORE], *codes] != [0, 1, 6, 0, 0, 0] or "went back in time" not in said:
            wrong.append(
                f"archive, verify, archive --new-epoch, … ended with {codes}: {said[-500:]}"
            )
        lines = self.said(_PROMOTED).read_text().splitlines()
        gone = sum(json.loads(line)["gone"] for line in lines if '"gone"' in line)
        if gone != LOST * len(controls.STREAMS):
            wrong.append(f"verify names {gone} entries that are gone")
        rows, found = archived(self.path)
        # What was archived before is on either of the two.
        seen = {row.name: row for row in (*before, *there)}
        after = evidence._replace(rows=rows, holes=found, log=log, server=list(seen.values()))
        checks = (lost, miscounted, falsely_lost)
        wrong += [f"{name}: {first}" for name, first in found_by(after, checks).items()]
        wrong += _doubled(rows)
        if sum(hole.lost for hole in found) != sum(hole.lost for hole in holes):
            wrong.append("the failover was counted as a loss")


def _doubled(rows: Sequence[ArchivedRow]) -> list[str]:
    """Return what is archived twice under one id; a replayed entry has its token under another one."""
    names = collections.Counter(row.name for row in rows)
    return [f"doubled: {name}" for name, number in names.items() if number > 1]


class ControlledArchive(ArchiveSite):
    """A wrong archiver, which kills itself again and again at its worst moment."""

    def own_faults(self) -> Mapping[str, Fault]:
        return {KILL: lambda: False}

    def evidence(self) -> ArchiveEvidence:
        """Let it die while entries are written, and come to an end."""
        nemesis = self.new_nemesis({KILL: _DEATHS}, 1.0)
        self.hire(ARCHIVER, self._words)
        writer = self.writer(0, _A_SECOND, _ENOUGH)
        self.step("a wrong archiver dies", lambda: True, nemesis)
        self.allow(0, over=True)
        self.step("its writer ends", lambda: writer.done)
        self.step("it comes to an end", self._at_end)
        # It is not meant to archive other streams.
        known = list(filter(controls.meant, self.reader.entries))
        return ArchiveEvidence(known, archived(self.path)[0])

    def figures(self, evidence: ArchiveEvidence) -> dict[str, Any]:
        return {"acknowledged": self.acknowledged}

    def saw(self, entry: HistoryEntry) -> None:
        super().saw(entry)
        if entry.op == DIES:
            self.nemesis.happened(KILL)

    def _words(self, client: Client) -> list[str]:
        dies_after = self.nemesis.chance.randint(2, 6) if self.nemesis.left(KILL) else 0
        return self.assign(
            *(client, controls.__name__, str(self.trial.control)),
            path=str(self.path),
            dies_after=dies_after,
        )

    def _at_end(self) -> bool:
        """Tell whether it has gone on to the last entry of each stream."""
        saved = self.path / controls.SAVED
        ends = {name: self.look.last(name) or controls.BEGIN for name in controls.STREAMS}
        return saved.exists() and json.loads(saved.read_bytes()) == ends
