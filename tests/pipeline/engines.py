"""Reads an archive with each engine, until told to end, and says what it counted; a process of its own.

Its packages lie in `.venv/engines`, beside those of the tests: pandas must not be found there.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.dataset as ds
from deltalake import DeltaTable

from agentbus.pipeline import archive_files

Counted = tuple[int, int]
# The rows of the kind `position` are the archiver's own.
ROWS = ds.field("kind") != "position"


def options() -> dict[str, str]:
    """Return the settings by which deltalake and Polars find a bucket of the tests."""
    found = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return found | {"AWS_ALLOW_HTTP": "true"}


def by_deltalake(path: str, version: int) -> Counted:
    table = DeltaTable(path, version, storage_options=options())
    rows = table.to_pyarrow_table(columns=["seq"], filters=[("kind", "!=", "position")])
    return rows.num_rows, sum(rows["seq"].to_pylist())


def by_pyarrow(path: str, version: int) -> Counted:
    dataset = DeltaTable(path, version, storage_options=options()).to_pyarrow_dataset()
    numbers = dataset.to_table(["seq"], filter=ROWS)["seq"].to_pylist()
    return dataset.count_rows(ROWS), sum(numbers)


def by_pandas(path: str, version: int) -> Counted:
    table = DeltaTable(path, version, storage_options=options())
    frame = table.to_pandas(columns=["seq"], filters=[("kind", "!=", "position")])
    return len(frame), int(frame["seq"].sum())


def by_polars(path: str, version: int) -> Counted:
    import polars as pl

    frame = pl.scan_delta(path, version=version, storage_options=options())
    frame = frame.filter(pl.col("kind") != "position")
    count, sum_ = frame.select(pl.len(), pl.col("seq").sum().alias("sum")).collect().row(0)
    return count, sum_


def by_polars_through_pyarrow(path: str, version: int) -> Counted:
    import polars as pl

    dataset = DeltaTable(path, version, storage_options=options()).to_pyarrow_dataset()
    frame = pl.scan_pyarrow_dataset(dataset)
    frame = frame.filter(pl.col("kind") != "position")
    count, sum_ = frame.select(pl.len(), pl.col("seq").sum().alias("sum")).collect().row(0)
    return count, sum_


@functools.cache
def duckdb() -> Any:
    """Connect to DuckDB with its extensions for Delta and for buckets, which are packages here."""
    import duckdb

    connection = duckdb.connect()
    for name in ("delta", "httpfs"):
        packages = pathlib.Path(duckdb.__file__).parents[1]
        [file] = packages.glob(f"duckdb_extension_{name}/extensions/*/*.duckdb_extension")
        connection.load_extension(str(file))
    if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
        connection.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{os.environ['AWS_ACCESS_KEY_ID']}',"
            f" SECRET '{os.environ['AWS_SECRET_ACCESS_KEY']}', URL_STYLE path, USE_SSL false,"
            f" REGION '{os.environ['AWS_DEFAULT_REGION']}', ENDPOINT '{endpoint.split('//')[1]}')"
        )
    return connection


def by_duckdb(path: str, version: int) -> Counted:
    rows = duckdb().execute(
        f"SELECT count(*), coalesce(sum(seq), 0) FROM delta_scan(?, version={version})"
        " WHERE kind <> 'position'",
        [path],
    )
    [found] = rows.fetchall()
    return int(found[0]), int(found[1])


def by_duckdb_through_pyarrow(path: str, version: int) -> Counted:
    dataset = DeltaTable(path, version, storage_options=options()).to_pyarrow_dataset()
    [found] = (
        duckdb()
        .from_arrow(dataset)
        .filter("kind <> 'position'")
        .aggregate("count(*), coalesce(sum(seq), 0)")
        .fetchall()
    )
    return int(found[0]), int(found[1])


def by_duckdb_from_files(path: str, version: int) -> Counted:
    files = archive_files(path, version=version)
    if not files:
        return 0, 0
    rows = duckdb().read_parquet(files, hive_partitioning=True, union_by_name=True)
    [found] = rows.aggregate("count(*), sum(seq)").fetchall()
    return int(found[0]), int(found[1])


ENGINES: tuple[Callable[[str, int], Counted], ...] = (
    *(by_deltalake, by_pyarrow, by_pandas, by_polars, by_polars_through_pyarrow),
    *(by_duckdb, by_duckdb_through_pyarrow, by_duckdb_from_files),
)


def looks(path: str, versions: Iterator[int]) -> None:
    for version in versions:
        for engine in ENGINES:
            said: dict[str, Any] = {"engine": engine.__name__, "version": version}
            try:
                said["counted"] = engine(path, version)
            except FileNotFoundError as error:
                said["missing"] = str(error)
            print(json.dumps(said), flush=True)  # noqa: T201


def newest(path: str) -> Iterator[int]:
    """Yield the newest version again and again, until stdin says to end."""
    os.set_blocking(0, False)
    while not sys.stdin.buffer.read():
        yield DeltaTable(path, storage_options=options()).version()


if __name__ == "__main__":
    if sys.argv[2:]:
        looks(sys.argv[1], iter(map(int, sys.argv[2:])))
    else:
        looks(sys.argv[1], newest(sys.argv[1]))
