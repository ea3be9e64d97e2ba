"""The versions of an archive as values: what a version holds, and how far it has got."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from agentbus.core.errors import Refused
from agentbus.core.stream import position
from agentbus.pipeline.rows.masking import NOTHING, Masking

# The kind of the rows that hold the positions of the streams.
POSITION = "position"
START = "0-0"
# A compacted file ends with a hash of the names of its typed columns.
_TYPED = re.compile(r"-t([0-9a-f]{8})\.parquet\Z")


class CommitConflict(Refused):
    """Another writer committed first; plan again from the new version."""


class DataFile(msgspec.Struct, frozen=True, gc=False):
    """A data file: its path, its partition, and what its statistics say (ms, inclusive)."""

    path: str
    kind: str
    date: str
    rows: int
    bytes: int
    from_ms: int
    to_ms: int
    # The first and the last name in the order of text, None if unknown.
    streams: tuple[str, str] | None = None
    queues: tuple[str, str] | None = None

    def may_hold(self, stream: str) -> bool:
        """Tell whether the file may contain rows of a stream."""
        return self.streams is None or self.streams[0] <= stream <= self.streams[1]

    def has_typed(self, columns: Collection[str]) -> bool:
        """Tell whether compaction wrote exactly these typed columns into the file."""
        mark = _TYPED.search(self.path)
        return not columns or (mark is not None and mark[1] == typed_mark(columns))


class Position(msgspec.Struct, frozen=True):
    """The position up to which a stream is archived: `id` is the last, and `rows + lost == base + added`.

    `added` is the number of entries that the server had ever added to the stream, `base` that of
    earlier streams with the same name; `rows` entries were archived, `lost` entries were gone
    before. `end` is the highest archived id: higher than `id` after the server went back in time.
    """

    id: str
    added: int
    base: int
    rows: int
    lost: int
    end: str = START


@dataclass(frozen=True, slots=True)
class ArchiveSnapshot:
    """A version of an archive: `round` rounds were committed, and `positions` are their result.

    `held` is the number of rows after the last round, and `deleted` that of the rows which had been
    deleted by then; rows that were deleted later are in neither. `files` leaves out that of the
    positions, which `own` names. A replaced version can be read for `retention` seconds.
    """

    version: int
    archive: str
    project: str
    schema: int
    round: int
    files: Mapping[str, DataFile]
    positions: Mapping[str, Position]
    held: int
    deleted: int
    columns: Collection[str]
    own: Collection[str] = ()
    masking: Masking = NOTHING
    retention: float = 86_400.0

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    @property
    def deleted_rows(self) -> int:
        """The number of rows that were ever deleted from the archive."""
        return self.deleted + max(0, self.held - self.rows)


@dataclass(frozen=True, slots=True)
class Change:
    """A version of an archive: when it was committed, by what, and how many rows its files brought.

    `action` is one of AgentBus, or another engine's operation, whose `rows` are None.
    """

    version: int
    at: str
    action: str
    rows: int | None
    engine: str


def new_batch() -> str:
    """Return a unique name for an attempt at a commit."""
    return secrets.token_hex(8)


def file_path(
    kind: str, date: str, batch: str, part: int | str, typed: Collection[str] = ()
) -> str:
    """Return the path of a data file of an attempt, which may have typed columns."""
    mark = f"-t{typed_mark(typed)}" if typed else ""
    return f"kind={kind}/date={date}/{batch}-{part}{mark}.parquet"


def typed_mark(columns: Iterable[str]) -> str:
    """Return the mark, in a file's name, of its typed columns."""
    return hashlib.sha256(",".join(sorted(columns)).encode()).hexdigest()[:8]


def later(one: str, other: str) -> str:
    """Return the later of two ids."""
    return max(one, other, key=position)
