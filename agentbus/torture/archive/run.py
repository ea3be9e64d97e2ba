"""One run: writers are archived while all goes wrong, then what there is is verified and replayed."""

from __future__ import annotations

import collections
import json
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import agentbus
from agentbus.core.errors import AgentBusError, BackendUnavailable, EpochMismatch
from agentbus.torture.archive import command, faults, writing
from agentbus.torture.archive.faults import RESTORE, Faults, Versions
from agentbus.torture.archive.judging import CHECKS, Row, Story
from agentbus.torture.archive.reading import archived, counted, kind_of
from agentbus.torture.archive.scene import AGAIN, Scene, scene_of
from agentbus.torture.nemesis import Client, possible
from agentbus.torture.order import Order
from agentbus.torture.server import Server
from agentbus.torture.verdict import Verdict, found_by

_WRITERS = 3
_A_MINUTE = 12_000
# A third of the time is for the start of the archivers and for what comes after.
_WRITING = 0.7
_SLACK = 900.0
_GLANCE = 0.1
_REPLAY_GAP, _REPLAY_LEAST = 0.3, 6.0
_REPLAYED = ("q:again", "q:again:high", "q:again:low")
_RESTORED = "restored"
# So many bytes before what the replay wrote are cut off the log, and then more, until the server is behind
# the archive.
_TAIL = 20_000


def torture(order: Order) -> Verdict:
    """Torture archivers and a replay, and judge what came of it."""
    began = time.monotonic()
    with scene_of(order) as scene:
        run = _Run(scene)
        story = run.through()
    return Verdict(
        "archive",
        order.seed,
        time.monotonic() - began,
        run.counts,
        run.wanted,
        run.figures,
        found_by(story, CHECKS),
        order.place,
    )


class _Run:
    """Goes through one run, step by step."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._order = scene.order
        self._entries = scene.order.number(_A_MINUTE)
        self._disagreed: list[str] = []
        self._went_on: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.wanted: collections.Counter[str] = collections.Counter()
        self.figures: dict[str, Any] = {}
        self._looked, self._there = 0.0, 0
        # How long the server's log was when all was archived.
        self._replayed_from = 0

    def through(self) -> Story:
        """Do all steps, and return what is known in the end."""
        self._archive()
        story = self._look()
        self._replay()
        with self._scene.look() as look:
            replayed = look.published(_REPLAYED)
        if self._scene.server is not None and self._order.minutes >= 1:
            self._restore(self._scene.server, story.rows)
        self.figures["replayed"] = len(replayed)
        return story._replace(
            replayed=replayed,
            disagreed=self._disagreed,
            went_on=self._went_on,
            ended=[*self._scene.site.ended, *self._failed()],
            unfinished=self._scene.unfinished,
        )

    @property
    def _patience(self) -> float:
        """How long a step may take: three times as long as on two idle cores, and more."""
        return self._order.minutes * 180 + _SLACK

    # -- archived --

    def _archive(self) -> None:
        scene, order = self._scene, self._order
        pace = self._entries / (order.minutes * 60 * _WRITING) / _WRITERS
        writers = [
            scene.writer(number, pace, self._entries // _WRITERS) for number in range(_WRITERS)
        ]
        writers.append(scene.worker())
        # What comes after an archiver has looked for streams it finds a minute later.
        scene.quietly("writing begins", self._all_streams, self._patience)
        archiver = scene.archiver()
        versions = Versions(scene.path)
        wanted = possible(faults.wanted(order), scene.server)
        nemesis = Faults(
            wanted,
            order.minutes * 60 * _WRITING / sum(wanted.values()),
            order.seed,
            scene.site.clients,
            scene.server,
            seen=versions.of,
            second=scene.second,
            compact=scene.compact,
        )
        scene.run(
            "archivers are killed",
            nemesis,
            lambda: scene.acknowledged >= self._entries,
            self._patience,
        )
        self._add(nemesis, wanted)
        (scene.place / "enough").touch()
        scene.quietly(
            "writers end", lambda: all(scene.done(each) for each in writers), self._patience
        )
        scene.quietly("compactions end", lambda: scene.compacted, self._patience)
        self._last_word(archiver, versions)
        scene.quietly("the archive is complete", self._complete, self._patience)
        if code := scene.dismiss(archiver, signal.SIGTERM):
            scene.site.ended.append(f"{archiver.name} was stopped, and ended with {code}")
        versions.look()
        self.figures |= {"versions": versions.number, "killed_at_work": nemesis.at_work}

    def _add(self, nemesis: Faults, wanted: Mapping[str, int]) -> None:
        self.counts.update(nemesis.counts)
        self.wanted.update(wanted)

    def _all_streams(self) -> bool:
        with self._scene.look() as look:
            return all(look.length(name) for name in writing.STREAMS)

    def _last_word(self, archiver: Client, versions: Versions) -> None:
        """Have the last archiver commit something, so that it has begun when it is stopped."""
        with agentbus.Bus(self._scene.settings) as bus:
            bus.speak("the end")
        self._scene.quietly(
            "the last archiver is at work",
            lambda: archiver.process is not None and versions.of(archiver.process.pid) > 0,
            self._patience,
        )

    def _complete(self) -> bool:
        from agentbus.pipeline.archives.verify import status

        try:
            return status(self._scene.settings, str(self._scene.path)).lag == 0
        except AgentBusError:
            # There is none yet.
            return False

    def _look(self) -> Story:
        """Read what the archive holds, and the server."""
        rows, holes = archived(self._scene.path)
        log, unshown = counted(self._scene.path)
        with self._scene.look() as look:
            server = look.rows({name: kind_of(name) for name in log})
        lost = sum(hole.lost for hole in holes)
        self.figures |= {"acknowledged": self._scene.acknowledged, "archived": len(rows)}
        self.figures["gone_and_counted"] = lost
        entries = self._scene.site.reader.entries
        return Story(entries, rows, holes, log, server, unshown=unshown)

    # -- verified --

    def _verified(self, name: str) -> list[int]:
        """Learn what a process was told by `archive verify`, and return its command lines' exit codes."""
        scene = self._scene
        codes = self._codes(name)
        told = [
            json.loads(line)
            for line in scene.said(name).read_text().splitlines()
            if "duplicates" in line
        ]
        self._disagreed += [f"{name}: {each}" for each in told if not each["ok"]]
        if codes[-1:] != [0] or not told:
            self._disagreed.append(f"{name}: exit codes {codes}")
        return codes

    def _codes(self, name: str) -> list[int]:
        entries = self._scene.site.reader.entries
        return [
            entry.of["code"] for entry in entries if entry.who == name and entry.op == command.RAN
        ]

    # -- replayed --

    def _replay(self) -> None:
        scene = self._scene
        self._replayed_from = scene.server.written if scene.server is not None else 0
        rows = sum(1 for row in archived(scene.path)[0] if row.kind == "queue")
        wanted = possible(faults.wanted_of_replay(self._order), scene.server)
        seconds = sum(wanted.values()) * _REPLAY_GAP * 2 + _REPLAY_LEAST
        client = scene.replayer(rows / seconds)
        nemesis = Faults(
            wanted,
            _REPLAY_GAP,
            self._order.seed,
            [client],
            scene.server,
            seen=lambda _pid: self._published(),
            over=lambda: bool(self._codes(client.name)),
        )
        # Faults before it publishes anything would only meet the start of Spark.
        scene.quietly("a replay begins", lambda: self._published() > 0, self._patience)
        scene.run("a replay is killed", nemesis, lambda: scene.done(client), self._patience)
        self._add(nemesis, wanted)
        codes = self._verified(client.name)
        if codes[:1] != [0]:
            scene.site.ended.append(f"the replay's command lines ended with {codes}")

    def _published(self) -> int:
        """Return about how much is published; a server that is away publishes nothing."""
        if time.monotonic() < self._looked + _GLANCE:
            return self._there
        self._looked = time.monotonic()
        try:
            with self._scene.look() as look:
                self._there = look.length(f"q:{AGAIN}")
        except BackendUnavailable:
            self._there = 0
        return self._there

    # -- gone back in time --

    def _restore(self, server: Server, rows: Sequence[Row]) -> None:
        """Have the server go back behind the archive: that ends it, until it is told to go on."""
        scene = self._scene
        self.wanted[RESTORE] = 1
        tail = server.written - self._replayed_from + _TAIL
        while not self._behind():
            server.kill()
            left = server.lose_tail(tail)
            server.start()
            if not left:
                scene.unfinished.append("the server forgot all, and was not behind the archive")
                return
            tail = _TAIL
        self.counts[RESTORE] += 1
        path = str(scene.path)
        lines = [["archive", path, "--json"], ["archive", path, "--new-epoch", "--json"]]
        client = scene.commands(_RESTORED, [*lines, scene.verify(), command.DONE])
        scene.quietly("the server went back", lambda: scene.done(client), self._patience)
        codes = self._verified(_RESTORED)
        said = (scene.site.errors / _RESTORED).read_text(errors="replace")
        if codes[:2] != [1, 0] or "went back in time" not in said:
            self._went_on.append(f"archive, archive --new-epoch ended with {codes}: {said[-500:]}")
        there = collections.Counter(row.name for row in archived(scene.path)[0])
        self._went_on += [f"lost: {row.name}" for row in rows if row.name not in there]
        self._went_on += [f"doubled: {name}" for name, number in there.items() if number > 1]

    def _behind(self) -> bool:
        from agentbus.pipeline.archives.verify import status

        try:
            status(self._scene.settings, str(self._scene.path))
        except EpochMismatch:
            return True
        return False

    def _failed(self) -> list[str]:
        """Return the compactions that failed."""
        return [
            f"{entry.who}: {entry.of}"
            for entry in self._scene.site.reader.entries
            if entry.op == command.RAN
            and entry.who.startswith(faults.ARCHIVER)
            and entry.of["code"]
        ]
