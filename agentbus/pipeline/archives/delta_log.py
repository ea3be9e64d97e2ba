"""The Delta log beside an archive's own log: each commit, and a checkpoint for each state.

Delta's version 0 is version 1 of the archive. The archive's commit is decisive; its twin in the
Delta log is created exclusively right afterwards, or by the next writer if the first writer died in
between.
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
# Seconds for which a new checkpoint is kept: other engines do not look for another if the one that
# they found is gone.
_SLOW = 60.0
# If more commits than this lack a Delta version, the Delta log was deleted.
_MOST = 100


class DeltaLog:
    """The Delta log of the archive at a place; one object serves one thread."""

    def __init__(self, place: Place) -> None:
        self._place = place
        # The version of the archive up to which the Delta log is complete.
        self._whole = 0

    def lacks(self, version: int) -> bool:
        """Tell whether the Delta commit of a version, or of an earlier one, may be missing."""
        return self._whole < version

    def ahead(self, version: int) -> bool:
        """Tell whether the twin of the next version exists, whose commit must exist then."""
        return self._place.read(_commit_name(version + 1)) is not None

    def publish(self, commit: Commit, made: State, read: Callable[[int], Commit | None]) -> None:
        """Add the twin of the commit that led to a state, and earlier ones that are missing.

        `read` returns a commit by its version. Idempotent, and safe in several processes. If the
        Delta log has no earlier commit, it begins with this commit and a checkpoint.
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
        """Return the commits up to this one without a twin, oldest first; None if too many."""
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
        """Write a checkpoint of a state, so that readers can begin there."""
        data, actions = checkpoint_bytes(state, self._place.data)
        self._place.create(_checkpoint_name(state.version), data)
        last = {"version": state.version - 1, "size": actions, "sizeInBytes": len(data)}
        self._place.replace(_LAST, orjson.dumps(last))

    def tidy(self, seconds: float, landmarks: int) -> None:
        """Delete files needed only by versions that were replaced long enough ago.

        `seconds` is the minimum time since the replacement. Of the remaining checkpoints, those at
        multiples of `landmarks` and the last two are kept.
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
