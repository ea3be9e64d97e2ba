"""Runs of archivers that are known to be wrong, until the checks have caught them."""

from __future__ import annotations

import collections
import time
from typing import Any

from agentbus.torture.archive import controls, writing
from agentbus.torture.archive.checks import CHECKS, ArchiveEvidence
from agentbus.torture.archive.nemesis import ARCHIVER, KILL_AT_WORK, ArchiveNemesis
from agentbus.torture.archive.reading import archived
from agentbus.torture.archive.site import ArchiveSite
from agentbus.torture.history import INVOKE, OK, HistoryEntry
from agentbus.torture.verdict import found_by

_KILLS, _LEAST = 4, 24
_GAP = 0.2
_A_SECOND = 600.0
_ENOUGH = 20_000
_WITHIN = 45.0


class ControlledArchive(ArchiveSite):
    """A wrong archiver, killed again and again."""

    patience = 300.0
    _kills = 0

    def evidence(self) -> ArchiveEvidence:
        """Kill it, judge what it leaves, and go on until it is caught or the time is up."""
        self._rounds: collections.Counter[int] = collections.Counter()
        self._idle: dict[str, str] = {}
        path = str(self.path)
        self.hire(
            ARCHIVER,
            lambda one: self.assign(one, controls.__name__, self.trial.control or "", path=path),
        )
        found = self._go_on()
        # On a busy machine the time may be too short for enough deaths.
        while not found_by(found, CHECKS) and (
            time.monotonic() < self.began + _WITHIN or self._kills < _LEAST
        ):
            found = self._go_on()
        return found

    def figures(self, evidence: ArchiveEvidence) -> dict[str, Any]:
        return {"acknowledged": self.acknowledged}

    def saw(self, entry: HistoryEntry) -> None:
        super().saw(entry)
        if entry.op == controls.ROUND:
            self._rounds[entry.of["pid"]] += 1
            self._idle = {}
        elif entry.op == controls.IDLE:
            self._idle = entry.of["ids"]

    def _go_on(self) -> ArchiveEvidence:
        """Kill it some more times while entries are written, and let it come to an end."""
        self.allow(0)
        writer = self.writer(self._kills, _A_SECOND, _ENOUGH)
        nemesis = ArchiveNemesis(
            *({KILL_AT_WORK: _KILLS}, _GAP, self.trial.seed + self._kills, self.clients, None),
            seen=self._rounds.__getitem__,
        )
        self.step("a wrong archiver is killed", lambda: True, nemesis)
        self._kills += nemesis.done
        self.allow(0, over=True)
        self.step("its writer ends", lambda: writer.done)
        self.step("it comes to an end", self._at_end)
        entries = self.reader.entries
        rows, _ = archived(self.path)
        # It is not meant to archive other streams.
        known = [entry for entry in entries if entry.phase == INVOKE or _meant(entry)]
        return ArchiveEvidence(known, rows)

    def _at_end(self) -> bool:
        """Tell whether it has found nothing more after the last entry of each stream."""
        with self.look() as look:
            ends = {stream: look.last(stream) for stream in controls.STREAMS}
        return all(self._idle.get(stream) == last for stream, last in ends.items() if last)


def _meant(entry: HistoryEntry) -> bool:
    if (entry.op, entry.phase) != (writing.WRITE, OK):
        return False
    return all(name.rpartition(" ")[0] in controls.STREAMS for name in entry.of["ids"])
