"""The run of an archiver that is known to be wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentbus.torture.archive import controls, writing
from agentbus.torture.archive.checks import ArchiveEvidence
from agentbus.torture.archive.reading import archived
from agentbus.torture.archive.site import ARCHIVER, ArchiveSite
from agentbus.torture.history import DIES, INVOKE, OK, HistoryEntry
from agentbus.torture.nemesis import KILL, Client, Fault

# Whether ids as text do harm depends on the last ones before a death.
_DEATHS = 8
_A_SECOND = 600.0
_ENOUGH = 20_000


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
        known = [x for x in self.reader.entries if x.phase == INVOKE or _meant(x)]
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


def _meant(entry: HistoryEntry) -> bool:
    if (entry.op, entry.phase) != (writing.WRITE, OK):
        return False
    return all(name.rpartition(" ")[0] in controls.STREAMS for name in entry.of["ids"])
