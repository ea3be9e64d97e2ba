"""Commits to an archive as fast as it can, against others that do; run as a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from agentbus.pipeline.archives.delta_table import APPEND, ArchiveTable
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.versions import (
    ArchiveSnapshot,
    CommitConflict,
    DataFile,
    Position,
    file_path,
    new_batch,
)

T = 1_763_640_000_000
DATE = "2025-11-20"


def add(
    table: ArchiveTable,
    state: ArchiveSnapshot,
    *,
    data: bytes = b"data",
    removed: Sequence[str] = (),
    operation: str = APPEND,
    positions: Mapping[str, Position] | None = None,
) -> ArchiveSnapshot:
    """Commit one data file that is not Parquet, for what does not look into it."""
    batch = new_batch()
    path = file_path("queue", DATE, batch, 0)
    table.place.write(path, data)
    file = DataFile(path, "queue", DATE, 1, len(data), T, T, ("q:mail", "q:mail"))
    if operation == APPEND:
        return table.append(state, batch, [file], positions or {})
    return table.replace(state, operation, batch, [file], removed)


if __name__ == "__main__":
    racer, wins = ArchiveTable(place(sys.argv[1])), 0
    racer.create("demo")
    while wins < int(sys.argv[2]):
        try:
            made = add(racer, racer.snapshot())
        except CommitConflict:
            continue
        wins += 1
        print(made.version, flush=True)  # noqa: T201
