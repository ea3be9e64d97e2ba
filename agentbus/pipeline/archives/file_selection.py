"""Selects an archive's data files by kind, time and version; needs no Spark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from agentbus.core.errors import ConfigError, UsageError
from agentbus.core.timespec import since as starting, stream_id
from agentbus.pipeline.archives.delta_table import ArchiveTable, gone
from agentbus.pipeline.archives.places import Place
from agentbus.pipeline.archives.versions import ArchiveSnapshot, DataFile
from agentbus.pipeline.rows import schema

# Limits of times: Spark stores microseconds in 63 bits, far beyond the ids of any clock.
LAST_MS = 2**63 // 1000 - 1
LAST_SEQ = 2**63 - 1


@dataclass(frozen=True, slots=True)
class IdRange:
    """Entries from an id up to, but excluding, another, each as (ms, seq); None: unbounded."""

    start: tuple[int, int] | None = None
    end: tuple[int, int] | None = None

    def may_hold(self, file: DataFile) -> bool:
        """Tell whether a file may contain rows in this range, by its statistics."""
        if self.start is not None and file.to_ms < self.start[0]:
            return False
        return self.end is None or (file.from_ms, 0) < self.end


def between(since: str | None, until: str | None, *, now: float | None = None) -> IdRange:
    """Convert two points in time, each an id, a time or a duration, to a range of ids.

    With times and durations, `since` is inclusive and `until` exclusive. A full id is a position of
    a reader: entries after `since`, up to and including `until`.
    """
    now = time.time() if now is None else now
    # `since` selects the entries after an id and `until` those up to an id, so both convert to the
    # next id.
    start = None if since is None else stream_id(starting(since, now))
    end = None if until is None else stream_id(starting(until, now))
    if start is not None and end is not None and start >= end:
        raise UsageError(f"there is nothing from {since} until {until}", hint="swap them")
    return IdRange(start, end)


def chosen_files(
    table: ArchiveTable, state: ArchiveSnapshot, span: IdRange, kinds: Sequence[str] | None = None
) -> list[DataFile]:
    """Return a state's files that may hold rows of some kinds in a range of ids.

    Raises `UsageError` for an unknown kind, `NotFound` if files of an old version were deleted.
    """
    for kind in kinds or ():
        if kind not in schema.KINDS:
            raise UsageError(
                f"{kind[:40]!a} is not a kind of entry", hint=f"kinds: {', '.join(schema.KINDS)}"
            )
    chosen = [
        file
        for file in state.files.values()
        if (kinds is None or file.kind in kinds) and span.may_hold(file)
    ]
    newest = table.snapshot()
    if newest.version != state.version:
        _still_there(table.place, newest, state.version, chosen)
    return chosen


def check_schema(at: Place, state: ArchiveSnapshot) -> None:
    """Raise `ConfigError` if a newer AgentBus wrote files that this one would read only in part."""
    if state.schema > schema.VERSION:
        raise ConfigError(
            f"{at} holds rows of the schema {state.schema}, and this version of AgentBus knows"
            f" {schema.VERSION}",
            hint="pip install --upgrade agentbus-toolkit",
        )


def _still_there(at: Place, newest: ArchiveSnapshot, version: int, files: list[DataFile]) -> None:
    """Raise `NotFound` if files of an old version were deleted since compaction removed them."""
    names = [file.path for file in files if file.path not in newest.files]
    for size in at.sizes(names):
        if size is None:
            raise gone(at, version)
