"""Compares the entries of a server that went back in time with the archived entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

from agentbus.core.stream import position
from agentbus.pipeline.archives.directory import told
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.decoding import ARCHIVE_ONLY
from agentbus.pipeline.rows.schema import GAP
from agentbus.pipeline.source.planning import Range, before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.pipeline.archives.places import Place
    from agentbus.pipeline.archives.versions import ArchiveSnapshot, DataFile
    from agentbus.pipeline.source.range_reader import RangeReader

_GAP_COLUMNS = ["stream", "id", "fields"]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Entries of a stream on the server: `rows` of them, in `ranges`, are not archived.

    `settled` counts the other entries, including those in gaps, which remain counted as lost.
    `archive_only` is the number of archived entries that are not on the server, `last` the highest
    id that both have.
    """

    ranges: tuple[Range, ...]
    rows: int
    settled: int
    archive_only: int
    last: str


def overlap(
    reader: RangeReader, at: Place, state: ArchiveSnapshot, name: str, low: str, high: str
) -> Overlap:
    """Compare a stream's entries after `low`, up to `high`, with the archive after `low`.

    It reads all of these entries, and the ids in the files that may contain them.
    """
    archived = _ids(at, state, name, low)
    gaps = _gaps(at, state, name)
    there: set[str] = set()
    ranges: list[Range] = []
    rows = settled = 0
    last = low
    # True if the previous entry is to be archived, too: both then belong to one range.
    goes_on = False
    for batch in reader.read([Range(name, low, high)]) if low != high else ():
        # The attempts of one entry are several rows.
        for entry_id in dict.fromkeys(batch.column("id").to_pylist()):
            there.add(entry_id)
            known = entry_id in archived
            if known:
                last = entry_id
            if known or _within(gaps, entry_id):
                settled += 1
                goes_on = False
                continue
            rows += 1
            after = ranges.pop().after if goes_on else before(entry_id)
            ranges.append(Range(name, after, entry_id))
            goes_on = True
    return Overlap(tuple(ranges), rows, settled, len(archived - there), last)


def _ids(at: Place, state: ArchiveSnapshot, name: str, low: str) -> set[str]:
    """Return the archived ids after `low`."""
    least = position(low)
    files = [
        file
        for file in state.files.values()
        if file.kind != GAP and file.may_hold(name) and file.to_ms >= least[0]
    ]
    ids = _read(at, files, name, ["stream", "id"]).column("id").to_pylist()
    return {entry_id for entry_id in ids if position(entry_id) > least}


def _gaps(
    at: Place, state: ArchiveSnapshot, name: str
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the gaps of a stream, each as the id before it and its last id."""
    files = [file for file in state.files.values() if file.kind == GAP and file.may_hold(name)]
    found = []
    for row in _read(at, files, name, _GAP_COLUMNS).to_pylist():
        fields = dict(row["fields"])
        if ARCHIVE_ONLY not in fields:
            found.append((position(fields["after"]), position(row["id"])))
    return found


def _within(gaps: Sequence[tuple[tuple[int, int], tuple[int, int]]], entry_id: str) -> bool:
    return any(after < position(entry_id) <= until for after, until in gaps)


def _read(at: Place, files: Sequence[DataFile], name: str, columns: list[str]) -> pa.Table:
    filesystem, root = at.target.filesystem()
    wanted: Any = pa.schema([schema.ARROW.field(column) for column in columns])
    paths = [f"{root}/{file.path}" for file in files]
    if not paths:
        return wanted.empty_table()
    with told("read", str(at)):
        found = ds.dataset(paths, schema=wanted, format="parquet", filesystem=filesystem)
        return found.to_table(columns, filter=ds.field("stream") == name)
