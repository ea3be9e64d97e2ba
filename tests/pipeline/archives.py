"""Makes real archives out of rows of the schema, in pure Python."""

from __future__ import annotations

import datetime
import os
import pathlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq

from agentbus.pipeline.archives.delta_table import APPEND, ArchiveTable
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.places import ArchiveTarget, Place
from agentbus.pipeline.archives.versions import (
    ArchiveSnapshot,
    CommitConflict,
    DataFile,
    Position,
    file_path,
    later,
    new_batch,
)
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.table import columns

_ARROW = {"string": pa.string(), "bigint": pa.int64()}


def row(stream: str, id: str, **columns: Any) -> dict[str, Any]:
    """Return a row of the schema: what is not given follows from the stream and the id, or is null."""
    ms, _, seq = id.partition("-")
    made = dict.fromkeys(schema.COLUMNS)
    made |= {"version": schema.VERSION, "stream": stream, "id": id, "fields": {}}
    made["kind"] = {
        "ch": "channel",
        "q": "queue",
        "dlq": "dead_letter",
        "metrics": "metrics",
        "ev": "event",
        "attempts": "attempt",
    }[stream.partition(":")[0]]
    epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
    made["time"] = epoch + datetime.timedelta(milliseconds=int(ms))
    made["seq"] = int(seq)
    if made["kind"] == "queue":
        made["queue"] = stream.split(":")[1]
    return made | columns


def table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table of the schema."""
    return pa.Table.from_pylist(list(rows), schema=schema.ARROW)


def write_archive(
    path: str | os.PathLike[str] | Place,
    rows: Sequence[dict[str, Any]] | pa.Table | Iterable[pa.Table],
    project: str = "demo",
    *,
    per_commit: int | None = None,
) -> ArchiveSnapshot:
    """Make an archive that holds these rows, or add them to the one that is there.

    Each commit holds `per_commit` rows (all of a table without it), in one file for each kind and
    date. Positions are what an archiver would have: all that was added was archived or is a gap.
    Tables may come from a generator, so that they need not fit into memory together.
    """
    at = path if isinstance(path, Place) else place(path)
    written = ArchiveTable(at)
    state = written.create(project)
    for part in _parts(rows, per_commit):
        state = commit_rows(written, state, part)
    return state


def commit_rows(
    to: ArchiveTable,
    state: ArchiveSnapshot,
    rows: Sequence[dict[str, Any]] | pa.Table,
    operation: str = APPEND,
    *,
    removed: Sequence[str] = (),
    typed: Sequence[str] = (),
) -> ArchiveSnapshot:
    """Commit rows, in one file for each kind and date; `typed` names columns besides the schema's."""
    if not isinstance(rows, pa.Table):
        extra = [(name, _ARROW[columns()[name]]) for name in typed]
        rows = pa.Table.from_pylist(list(rows), schema=pa.schema([*schema.ARROW, *extra]))
    batch = new_batch()
    files = [
        _write(to.place.target, file_path(kind, date, batch, n, typed), part)
        for n, (kind, date, part) in enumerate(_partitions(rows))
    ]
    try:
        if operation == APPEND:
            return to.append(state, batch, files, _positions(state, rows))
        return to.replace(state, operation, batch, files, removed)
    except CommitConflict:
        for file in files:
            to.place.delete(file.path)
        raise


def data_files(path: str | os.PathLike[str]) -> list[str]:
    """Return the data files in an archive's directory, committed or not, without those of positions."""
    files = pathlib.Path(path).glob("kind=*/**/*.parquet")
    names = sorted(str(file.relative_to(path)) for file in files)
    return [name for name in names if not name.startswith("kind=position/")]


def rows_of(at: Place, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of some data files in a directory."""
    named = [f"{at.target.root}/{path}" for path in paths]
    found = pyarrow.dataset.dataset(named, partitioning="hive").to_table()
    return found.select(schema.COLUMNS).to_pylist()


def _write(target: ArchiveTarget, path: str, rows: pa.Table) -> DataFile:
    """Write rows of one kind and date as the data file of this path, and return what it holds.

    `rows` has the schema's columns; all but `kind`, which is in the path, are written.
    """
    kind, date = path.split("/")[:2]
    system, root = target.filesystem()
    name = f"{root}/{path}"
    if target.scheme == "file":
        system.create_dir(name.rpartition("/")[0])
    pq.write_table(
        rows.drop_columns(["kind"]) if "kind" in rows.column_names else rows,
        name,
        filesystem=system,
        compression="zstd",
    )
    streams = pc.min_max(rows["stream"]).as_py()
    queues = pc.min_max(rows["queue"]).as_py()
    ends = pc.min_max(rows["time"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())).as_py()
    return DataFile(
        path,
        kind.partition("=")[2],
        date.partition("=")[2],
        rows.num_rows,
        system.get_file_info(name).size,
        *ends.values(),
        tuple(streams.values()),
        None if queues["min"] is None else tuple(queues.values()),
    )


def _parts(rows: Any, per_commit: int | None) -> Iterator[pa.Table]:
    if isinstance(rows, pa.Table):
        tables: Iterable[pa.Table] = [rows]
    elif isinstance(rows, Sequence):
        tables = [table(rows)]
    else:
        tables = rows
    for whole in tables:
        step = per_commit or max(whole.num_rows, 1)
        for start in range(0, whole.num_rows, step):
            yield whole.slice(start, step)


def _partitions(part: pa.Table) -> Iterator[tuple[str, str, pa.Table]]:
    days = pc.strftime(part["time"], format="%Y-%m-%d")
    keys = pc.binary_join_element_wise(part["kind"], days, "/")
    for key in sorted(pc.unique(keys).to_pylist()):
        kind, _, date = key.partition("/")
        yield kind, date, part.filter(pc.equal(keys, key))


def _positions(state: ArchiveSnapshot, part: pa.Table) -> dict[str, Position]:
    order = pc.sort_indices(part, sort_keys=[("time", "ascending"), ("seq", "ascending")])
    held = part.select(["stream", "kind", "id", "lost"]).take(order)
    gap = pc.equal(held["kind"], "gap")
    held = held.append_column("lost_here", pc.if_else(gap, pc.fill_null(held["lost"], 0), 0))
    held = held.append_column("rows_here", pc.cast(pc.invert(gap), pa.int64()))
    held = held.append_column("end_here", pc.if_else(gap, None, held["id"]))
    found = held.group_by("stream", use_threads=False).aggregate(
        [("id", "last"), ("lost_here", "sum"), ("rows_here", "sum"), ("end_here", "last")]
    )
    before = defaultdict(lambda: Position("0-0", 0, 0, 0, 0), state.positions)
    made = {}
    for one in found.to_pylist():
        old = before[one["stream"]]
        rows = old.rows + one["rows_here_sum"]
        lost = old.lost + one["lost_here_sum"]
        last = max(old.id, one["id_last"], key=_order)
        end = later(old.end, one["end_here_last"] or "0-0")
        made[one["stream"]] = Position(last, rows + lost - old.base, old.base, rows, lost, end)
    return made


def _order(id: str) -> tuple[int, ...]:
    return tuple(map(int, id.split("-")))
