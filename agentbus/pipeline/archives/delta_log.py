"""The Delta log beside an archive's own: each commit again, and a checkpoint where there is a state.

Delta's version 0 is version 1 of the archive. The commit of the archive decides; its twin here is created
exclusively right after it, or by the next writer if the first one died in between.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import orjson

from agentbus.pipeline.archives.delta import checkpoint_bytes, commit_text
from agentbus.pipeline.archives.places import Place
from agentbus.pipeline.archives.retention import LogFiles, disposable
from agentbus.pipeline.archives.versions import Commit, State

DELTA = "_delta_log"
_COMMIT = re.compile(rf"{DELTA}/(\d{{20}})\.json")
_CHECKPOINT = re.compile(rf"{DELTA}/(\d{{20}})\.checkpoint\.parquet")
_LAST = f"{DELTA}/_last_checkpoint"
# Other engines do not look again for a checkpoint that they found and that is gone: seconds.
_SLOW = 60.0
# More commits without their twins mean that the Delta log was deleted.
_MOST = 100


class DeltaLog:
    """The Delta log of the archive at a place; one object serves one thread."""

    def __init__(self, place: Place) -> None:
        self._place = place
        # The archive's version up to which nothing is missing.
        self._whole = 0

    def lacks(self, version: int) -> bool:
        """Tell whether the twin of an archive's version, or one before it, may be missing."""
        return self._whole < version

    def ahead(self, version: int) -> bool:
        """Tell whether there is the twin of a version after this one: its commit was there before."""
        return self._place.read(_commit_name(version + 1)) is not None

    def publish(self, commit: Commit, made: State, read: Callable[[int], Commit | None]) -> None:
        """Add a commit, which made this state, and those before it that a killed writer left out.

        `read` returns a commit by its version. Idempotent, and safe in several processes. Where the
        Delta log has none of the commits before, it begins with this one, and a checkpoint.
        """
        if not self.lacks(commit.version):
            return
        missing = self._missing(commit, read)
        if missing is None:
            self.checkpoint(made)
            missing = [commit]
        for each in missing:
            self._place.create(_commit_name(each.version), commit_text(each, self._place.data))
        self._whole = commit.version

    def _missing(self, commit: Commit, read: Callable[[int], Commit | None]) -> list[Commit] | None:
        """Return the commits up to this one without a twin, oldest first; None if all may be."""
        missing = [commit]
        while (oldest := missing[-1]).version > 1:
            before = oldest.version - 1
            if len(missing) > _MOST:
                return None
            if before == self._whole or self._place.read(_commit_name(before)) is not None:
                break
            found = read(before)
            if found is None:
                return None
            missing.append(found)
        return missing[::-1]

    def checkpoint(self, state: State) -> None:
        """Write all that the log adds up to at a state, so that readers can begin there."""
        data, actions = checkpoint_bytes(state, self._place.data)
        self._place.create(_checkpoint_name(state.version), data)
        last = {"version": state.version - 1, "size": actions, "sizeInBytes": len(data)}
        self._place.replace(_LAST, orjson.dumps(last))

    def tidy(self, seconds: float, landmarks: int) -> None:
        """Delete what only versions need that were replaced more than this many seconds ago.

        Of the checkpoints that are left, those at multiples of `landmarks` stay, and the last two.
        """
        now = time.time()
        for name in disposable(self._files(), now - seconds, landmarks, settled=now - _SLOW):
            self._place.delete(name)

    def _files(self) -> LogFiles:
        found = LogFiles()
        for entry in self._place.listing(DELTA):
            if match := _COMMIT.fullmatch(entry.name):
                found.commits[int(match[1]) + 1] = entry
            elif match := _CHECKPOINT.fullmatch(entry.name):
                found.states[int(match[1]) + 1] = entry
        return found


def _commit_name(version: int) -> str:
    return f"{DELTA}/{version - 1:020d}.json"


def _checkpoint_name(version: int) -> str:
    return f"{DELTA}/{version - 1:020d}.checkpoint.parquet"
