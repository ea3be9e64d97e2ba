"""Decides which files of an archive to keep: those of versions that may still be read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentbus.pipeline.archives.places import FileInfo, Place
from agentbus.pipeline.archives.versions import DATA, State
from agentbus.pipeline.rows import schema

# Seconds for which a replaced version can still be read, with all of its data files.
RETENTION = 86_400.0
# Seconds after which a partly written file is attributed to a writer that was killed.
_ABANDONED = 3600.0


@dataclass(slots=True)
class LogFiles:
    """The commits and states of a log by version, and packs of commits by their last version."""

    commits: dict[int, FileInfo] = field(default_factory=dict)
    states: dict[int, FileInfo] = field(default_factory=dict)
    packs: dict[int, FileInfo] = field(default_factory=dict)


def disposable(
    log: LogFiles, before: float, landmarks: int, *, least: int = 1, settled: float = 0.0
) -> Iterator[str]:
    """Yield the names to delete, oldest first, so that a killed process leaves no gap.

    A version is needed while the one that replaced it is younger than `before` (unix time). Reading
    it needs a state that is not newer, and all later commits up to it. States in between are
    deleted, except the last two, those at multiples of `landmarks`, and those younger than
    `settled`, if given; the last `least` states and all later files are kept.
    """
    states = sorted(log.states)
    if len(states) < least:
        return
    young = [version for version, entry in log.commits.items() if entry.modified >= before]
    oldest = min(young) - 1 if young else max(log.commits, default=0)
    # The state from which the oldest kept version is built.
    base = max((v for v in states if v <= min(oldest, states[-least])), default=0)
    for version in sorted({*log.commits, *log.states, *log.packs}):
        if version < base:
            for kind in (log.commits, log.states, log.packs):
                if version in kind:
                    yield kind[version].name
    for version in states[:-2]:
        between = version > base and version % landmarks
        if between and (not settled or log.states[version].modified < settled):
            yield log.states[version].name


def sweep_data(place: Place, state: State, grace: float) -> None:
    """Delete data files that are not part of a state, unless a writer or an old version needs them."""
    place.tidy(time.time() - _ABANDONED)
    before = (time.time() - grace) * 1000
    folders = [place.data(f"kind={kind}") for kind in schema.KINDS]
    for entry in (entry for folder in folders for entry in place.listing(folder)):
        path = entry.name.removeprefix("_data/")
        found = DATA.fullmatch(path)
        # A file of a version that is not committed yet may belong to the next commit.
        if not found or path in state.files or int(found["version"]) > state.version:
            continue
        # A writer whose version was taken can never commit its file.
        if state.removed.get(path, 0) < before:
            place.delete(entry.name)
