"""Decides which files of an archive are kept: those of versions that may still be read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentbus.pipeline.archives.places import FileInfo, Place
from agentbus.pipeline.archives.versions import DATA, State
from agentbus.pipeline.rows import schema

# Seconds for which a version can be read after the next one replaced it, with all of its data files.
RETENTION = 86_400.0
# Seconds after which what is half written is of a writer that was killed.
_ABANDONED = 3600.0


@dataclass(slots=True)
class LogFiles:
    """The commits and the states of a log by their versions, and packs of commits by the last one's."""

    commits: dict[int, FileInfo] = field(default_factory=dict)
    states: dict[int, FileInfo] = field(default_factory=dict)
    packs: dict[int, FileInfo] = field(default_factory=dict)


def disposable(
    log: LogFiles, before: float, landmarks: int, *, least: int = 1, settled: float = 0.0
) -> Iterator[str]:
    """Yield the names that may go, oldest first: a process that is killed over it leaves no hole.

    A version is needed while the one that replaced it is younger than `before` (unix time). To read it
    takes a state that is not newer, and all commits from there. States in between go but for the
    last two, those at multiples of `landmarks`, and those that are younger than `settled`, if given;
    the last `least` states are left with all that follows them.
    """
    states = sorted(log.states)
    if len(states) < least:
        return
    young = [version for version, entry in log.commits.items() if entry.modified >= before]
    oldest = min(young) - 1 if young else max(log.commits, default=0)
    # The state from which the oldest version is read.
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
        # An attempt at a version that is taken can never win.
        if state.removed.get(path, 0) < before:
            place.delete(entry.name)
