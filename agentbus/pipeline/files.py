"""Data files: what the log says of one, and how rows become one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.pipeline import schema
from agentbus.pipeline.commits import File, Span

if TYPE_CHECKING:
    import pyarrow as pa

    from agentbus.pipeline.places import Target


def write(target: Target, path: str, rows: pa.Table, *, ordered: bool = False) -> File:
    """Write rows of one kind and date as the data file of this path, and return what it holds.

    `rows` has the schema's columns; all but `kind`, which is in the path, are written. `ordered`
    says that the rows of each stream follow each other as they do in the stream.
    """
    import pyarrow.parquet as pq

    kind, date = path.split("/")[:2]
    system, root = target.filesystem()
    name = f"{root}/{target.data(path)}"
    if target.scheme == "file":
        system.create_dir(name.rpartition("/")[0])
    pq.write_table(
        rows.drop_columns(["kind"]) if "kind" in rows.column_names else rows,
        name,
        filesystem=system,
        compression="zstd",
    )
    streams, first, last = spans(rows, ordered=ordered)
    return File(
        path,
        kind.partition("=")[2],
        date.partition("=")[2],
        rows.num_rows,
        system.get_file_info(name).size,
        streams,
        first,
        last,
    )


def spans(rows: pa.Table, *, ordered: bool = False) -> tuple[dict[str, Span], int, int]:
    """Return what rows hold by stream, and their first and last time in ms."""
    import pyarrow as pa
    import pyarrow.compute as pc

    held = rows.select(["stream", "id", "time", "seq"])
    if not ordered:
        held = held.take(
            pc.sort_indices(held, sort_keys=[("time", "ascending"), ("seq", "ascending")])
        )
    # One thread, since the order within a stream counts.
    found = (
        held.select(["stream", "id"])
        .group_by("stream", use_threads=False)
        .aggregate([("id", "count"), ("id", "first"), ("id", "last")])
    )
    streams = {
        row["stream"]: Span(row["id_count"], row["id_first"], row["id_last"])
        for row in sorted(found.to_pylist(), key=lambda row: row["stream"])
    }
    ends = pc.min_max(held["time"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())).as_py()
    return streams, ends["min"], ends["max"]


def columns_written() -> list[str]:
    """Return the columns that a data file holds, in their order."""
    return [name for name in schema.COLUMNS if name != "kind"]
