"""Commits to an archive as fast as it can, against others that do; run as a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.log import Log, new_batch
from agentbus.pipeline.archives.versions import (
    APPEND,
    CommitConflict,
    File,
    Position,
    State,
    StreamSpan,
    file_path,
)

T = 1_763_640_000_000
DATE = "2025-11-20"


def add(
    log: Log,
    state: State,
    *,
    data: bytes = b"data",
    removed: Sequence[str] = (),
    operation: str = APPEND,
    positions: Mapping[str, Position] | None = None,
) -> State:
    """Commit one data file that is not Parquet, for what does not look into it."""
    batch = new_batch()
    path = file_path("queue", DATE, state.version + 1, batch, 0)
    log.place.replace(log.place.data(path), data)
    streams = {"q:mail": StreamSpan(1, f"{T}-0", f"{T}-0")}
    file = File(path, "queue", DATE, 1, len(data), streams, T, T)
    return log.commit(state, operation, batch, [file], removed=removed, positions=positions)


if __name__ == "__main__":
    racer, wins = Log(place(sys.argv[1])), 0
    racer.create("demo")
    while wins < int(sys.argv[2]):
        try:
            made = add(racer, racer.open())
        except CommitConflict:
            continue
        wins += 1
        print(made.version, flush=True)  # noqa: T201
