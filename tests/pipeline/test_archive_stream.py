"""A stream of an archive has each row once, whatever compaction, deletions and restarts come between."""

from __future__ import annotations

import pathlib

import pytest
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from agentbus.core.errors import NotFound, UsageError
from agentbus.pipeline.archives.delta_table import COMPACT, ArchiveTable
from agentbus.pipeline.archives.forgetting import forget
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.source.archive_reader import archive_reader
from agentbus.pipeline.source.archive_stream import ArchiveStreamReader
from agentbus.pipeline.source.data_source import AgentBusSource
from agentbus.pipeline.source.options import ArchiveOptions
from tests.pipeline.archives import commit_rows, row, rows_of, write_archive
from tests.pipeline.queries import completed

T = 1_763_600_000_000


def entry(n, agent="bob", stream="q:mail"):
    return row(stream, f"{T + n}-0", agent=agent, payload=str(n))


@pytest.fixture
def path(tmp_path):
    write_archive(tmp_path / "bus", [entry(n) for n in range(4)])
    return str(tmp_path / "bus")


class Query:
    """Reads a stream of an archive as Spark does: offsets survive, readers do not."""

    def __init__(self, path, **options):
        self.path, self.options = path, options
        self.at = self.reader().initialOffset()

    def reader(self):
        return ArchiveStreamReader(ArchiveOptions({"path": self.path, **self.options}))

    def plan(self, most=None):
        limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
        return self.reader().latestOffset(self.at, limit)

    def rows(self, end):
        reader = self.reader()
        batches = [rows for part in reader.partitions(self.at, end) for rows in reader.read(part)]
        return sorted(int(each["payload"]) for rows in batches for each in rows.to_pylist())

    def batch(self, most=None):
        end = self.plan(most)
        rows = self.rows(end)
        self.at = end
        return rows


def compacted(path):
    """Rewrite all files of the newest version as one file a day, as a compaction does."""
    table = ArchiveTable(place(path))
    state = table.snapshot()
    files = [*state.files]
    return commit_rows(table, state, rows_of(table.place, files), COMPACT, removed=files)


def test_a_stream_has_all_rows_and_then_what_each_version_adds(path):
    query = Query(path)

    assert query.batch() == [0, 1, 2, 3]
    assert query.plan() == query.at
    write_archive(path, [entry(4)])
    write_archive(path, [entry(5)])
    assert query.batch() == [4, 5]


def test_what_compaction_wrote_again_does_not_come_again(path):
    query = Query(path)
    query.batch()
    write_archive(path, [entry(4)])
    compacted(path)
    write_archive(path, [entry(5)])

    assert query.batch() == [4, 5]
    compacted(path)
    assert query.batch() == []


def test_a_batch_that_runs_again_has_the_same_rows(path):
    query = Query(path)
    end = query.plan()
    first = query.rows(end)
    write_archive(path, [entry(4)])
    compacted(path)

    assert query.rows(end) == first == [0, 1, 2, 3]
    query.at = end
    assert query.batch() == [4]


def test_what_was_forgotten_does_not_come_and_the_rest_not_again(path):
    write_archive(path, [entry(4, agent="ada")])
    query = Query(path)
    query.batch()
    write_archive(path, [entry(5, agent="ada"), entry(6), entry(7)])
    write_archive(path, [entry(8, agent="ada", stream="q:other")])

    forget(path, agent="ada")

    assert query.batch() == [6, 7]
    write_archive(path, [entry(9)])
    assert query.batch() == [9]


def test_what_another_engine_deleted_does_not_come_and_the_rest_not_again(path):
    query = Query(path)
    query.batch()
    write_archive(path, [entry(4, agent="ada"), entry(5)])

    DeltaTable(path).delete("agent = 'ada'")

    assert query.batch() == [5]


def test_a_stream_begins_after_a_version(path):
    before = ArchiveTable(place(path)).snapshot().version
    write_archive(path, [entry(4)])
    compacted(path)
    query = Query(path, since_version=str(before))

    assert query.batch() == [4]
    reader = archive_reader(ArchiveOptions({"path": path, "sinceVersion": str(before)}))
    rows = [rows for part in reader.partitions() for rows in reader.read(part)]
    assert [each["payload"] for batch in rows for each in batch.to_pylist()] == ["4"]
    with pytest.raises(UsageError, match="has no version 99"):
        Query(path, sinceVersion="99")


def test_a_batch_ends_at_the_last_file_that_fits(path):
    query = Query(path)
    assert query.batch(most=2) == [0, 1, 2, 3]
    for n in range(4, 10):
        write_archive(path, [entry(n)])

    assert [query.batch(most=2) for _ in range(4)] == [[4, 5], [6, 7], [8, 9], []]


def test_the_first_batches_share_the_files_of_one_version(path):
    for n in range(4, 10):
        write_archive(path, [entry(n)])
    query = Query(path)

    first = query.batch(most=4)
    write_archive(path, [entry(10)])
    compacted(path)
    batches = [first] + [query.batch(most=4) for _ in range(4)]

    assert sorted(n for rows in batches for n in rows) == [*range(11)]
    assert max(map(len, batches)) == 4


def test_a_query_that_was_away_for_too_long_ends_with_an_error(path):
    query = Query(path)
    query.batch()
    write_archive(path, [entry(4, agent="ada"), entry(5)])
    forget(path, agent="ada", now=True)
    with pytest.raises(NotFound, match="is gone"):
        query.batch()

    DeltaTable(path).create_checkpoint()
    pathlib.Path(path, "_delta_log", f"{query.at['version']:020d}.json").unlink()
    with pytest.raises(NotFound, match="no longer has version"):
        query.rows(query.at | {"version": query.at["version"] + 1})


def test_a_query_of_spark_writes_each_row_once_over_restarts(spark, path, tmp_path):
    spark.dataSource.register(AgentBusSource)

    def run():
        rows = spark.readStream.format("agentbus").option("maxRowsPerTrigger", 3).load(path)
        completed(
            rows.select("id", "payload")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        out = spark.read.parquet(str(tmp_path / "out")).collect()
        return sorted(int(each["payload"]) for each in out)

    assert run() == [0, 1, 2, 3]
    write_archive(path, [entry(4), entry(5, agent="ada")])
    compacted(path)
    forget(path, agent="ada")
    write_archive(path, [entry(6)])
    assert run() == [0, 1, 2, 3, 4, 6]
    assert run() == [0, 1, 2, 3, 4, 6]
