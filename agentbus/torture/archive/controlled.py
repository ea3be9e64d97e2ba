"""Runs of archivers that are known to be wrong, until the checks have caught them."""

from __future__ import annotations

import collections
import time
from collections.abc import Collection
from typing import Any

from agentbus.torture.archive import controls, writing
from agentbus.torture.archive.faults import ARCHIVER, KILL_AT_WORK, Faults
from agentbus.torture.archive.judging import CHECKS, Story
from agentbus.torture.archive.reading import archived
from agentbus.torture.archive.scene import Scene, scene_of
from agentbus.torture.history import Entry
from agentbus.torture.order import Order
from agentbus.torture.verdict import Verdict, found_by

_KILLS, _LEAST = 4, 24
_GAP = 0.2
_A_SECOND = 600.0
_ENOUGH = 20_000
_WITHIN = 45.0
_PATIENCE = 300.0


def torture(order: Order) -> Verdict:
    """Kill a wrong archiver, judge what it leaves, and go on until it is caught or the time is up."""
    began = time.monotonic()
    with scene_of(order) as scene:
        control = _Control(scene)
        found = control.go_on(order.seed)
        # On a machine that is busy a minute may be too short for enough deaths.
        while not found and (time.monotonic() < began + _WITHIN or control.kills < _LEAST):
            found = control.go_on(order.seed + control.kills)
    return Verdict(
        "archive",
        order.seed,
        time.monotonic() - began,
        {KILL_AT_WORK: control.kills},
        {KILL_AT_WORK: control.kills},
        {"acknowledged": scene.acknowledged},
        found,
        scene.place,
        order.control,
    )


class _Control:
    """One wrong archiver, killed again and again."""

    def __init__(self, scene: Scene) -> None:
        self.kills = 0
        self._scene = scene
        self._rounds: collections.Counter[int] = collections.Counter()
        self._idle: dict[str, str] = {}
        self._read = 0
        how = scene.order.control or ""

        def words(client: Any) -> list[str]:
            url = scene.url_for(client)
            history = scene.site.histories / ARCHIVER
            return [controls.__name__, how, url, scene.project, str(scene.path), str(history)]

        self._archiver = scene.site.hire(ARCHIVER, words)

    def go_on(self, seed: int) -> dict[str, Collection[Any]]:
        """Kill it some more times while somebody writes, let it come to an end, and judge."""
        scene = self._scene
        enough = scene.place / "enough"
        enough.unlink(missing_ok=True)
        writer = scene.writer(self.kills, _A_SECOND, _ENOUGH)
        wanted = {KILL_AT_WORK: _KILLS}
        clients = scene.site.clients
        nemesis = Faults(wanted, _GAP, seed, clients, None, seen=self._seen)
        scene.run("a wrong archiver is killed", nemesis, lambda: True, _PATIENCE)
        self.kills += nemesis.done
        enough.touch()
        scene.quietly("its writer ends", lambda: scene.done(writer), _PATIENCE)
        scene.quietly("it comes to an end", self._at_end, _PATIENCE)
        entries = scene.site.reader.entries
        rows, _ = archived(scene.path)
        # It does not mean to archive more than these.
        meant = [entry for entry in entries if _meant(entry)]
        asked = [entry for entry in entries if entry.phase == "invoke"]
        story = Story([*asked, *meant], rows, ended=scene.site.ended, unfinished=scene.unfinished)
        return found_by(story, CHECKS)

    def _seen(self, pid: int) -> int:
        self._look()
        return self._rounds[pid]

    def _look(self) -> None:
        entries = self._scene.site.reader.entries
        for entry in entries[self._read :]:
            if entry.op == controls.ROUND:
                self._rounds[entry.of["pid"]] += 1
                self._idle = {}
            elif entry.op == controls.IDLE:
                self._idle = entry.of["ids"]
        self._read = len(entries)

    def _at_end(self) -> bool:
        """Tell whether it has found nothing more after the last entry of each stream."""
        self._look()
        with self._scene.look() as look:
            ends = {stream: look.last(stream) for stream in controls.STREAMS}
        return all(self._idle.get(stream) == last for stream, last in ends.items() if last)


def _meant(entry: Entry) -> bool:
    if (entry.op, entry.phase) != (writing.WRITE, "ok"):
        return False
    return all(name.rpartition(" ")[0] in controls.STREAMS for name in entry.of["ids"])
