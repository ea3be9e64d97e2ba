"""Names the data files of an archive for engines that read Parquet but not Delta tables."""

from __future__ import annotations

from collections.abc import Sequence

from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.file_selection import between, check_schema, chosen_files
from agentbus.pipeline.archives.location import Location, place


def archive_files(
    path: Location,
    *,
    since: str | None = None,
    until: str | None = None,
    kinds: Sequence[str] | None = None,
    version: int | None = None,
) -> list[str]:
    """Return the Parquet files with an archive's rows at its newest or another version.

    They are paths in a directory, and `s3://bucket/key` in a bucket; `kind` and `date` are in them,
    not in the files. With `since`, `until` and `kinds`, as in `read`, files without such rows are
    omitted; the others may also contain other rows. Needs no Spark. Raises the errors of `read`.
    """
    at = place(path)
    table = ArchiveTable(at)
    state = table.snapshot(version)
    check_schema(at, state)
    chosen = chosen_files(table, state, between(since, until), kinds)
    before = "" if at.target.scheme == "file" else f"{at.target.scheme}://"
    return [f"{before}{at.target.root}/{file.path}" for file in chosen]
