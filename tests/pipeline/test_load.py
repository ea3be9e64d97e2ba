"""`load(PATH)` reads an archive by the source itself; what load and schema cannot be is refused."""

from __future__ import annotations

import itertools

import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

import agentbus
from agentbus.core.errors import NotFound, UsageError
from agentbus.pipeline import query_lag, read
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.source.archive_reader import archive_reader
from agentbus.pipeline.source.archive_stream import ArchiveStreamReader
from agentbus.pipeline.source.data_source import AgentBusSource
from agentbus.pipeline.source.options import ArchiveOptions
from tests.pipeline.archives import row, table, write_archive
from tests.pipeline.queries import completed

ROWS = [
    *(row("q:mail", f"{1_763_600_000_000 + n}-1", payload=str(n)) for n in range(8)),
    row("q:other", "1763600000002-1", payload="9"),
    row("ch:main", "1763600086400-1", agent="ada"),
]


@pytest.fixture(scope="module")
def registered(spark):
    spark.dataSource.register(AgentBusSource)
    return spark


@pytest.fixture
def archived(tmp_path):
    path = tmp_path / "archive"
    write_archive(str(path), table(ROWS), "shop")
    return str(path)


def load(spark, path, **options):
    return spark.read.format("agentbus").options(**options).load(path)


def test_an_archive_is_loaded_as_read_gives_it(registered, archived):
    frame, other = load(registered, archived, partitionRows="3"), read(registered, archived)

    assert frame.schema == other.schema
    assert frame.rdd.getNumPartitions() > 1
    assert sorted(map(str, frame.collect())) == sorted(map(str, other.collect()))


def test_a_filter_of_one_query_leaves_the_rows_of_others(registered, pushing, archived):
    frame = load(registered, archived)
    tasks, messages = frame.where("kind = 'queue'"), frame.where("kind = 'channel'")

    assert tasks.union(messages).count() == len(ROWS)
    assert (tasks.count(), messages.count(), frame.count()) == (9, 1, len(ROWS))


def test_a_bucket_is_loaded_without_hadoop(registered, s3):
    # Spark itself knows no file system of this name, whatever its jars.
    path = f"s3://{s3.bucket}/archive"
    write_archive(path, table(ROWS), "shop")

    assert load(registered, path).where("kind = 'queue'").count() == 9


def test_the_lag_of_a_query_is_what_it_has_not_read_yet(registered, real_url, project, tmp_path):
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        bus.queue("mail").publish_many(range(30))

    query = completed(
        registered.readStream.format("agentbus")
        .options(url=real_url, project=project, maxRowsPerTrigger="20")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )

    assert list(map(query_lag, query.recentProgress))[:2] == [{"q:mail": 10}, {}]


# -- what a task reads, without Spark --


def read_by_tasks(path, **options):
    """Return the ids that each task reads."""
    reader = archive_reader(ArchiveOptions({"path": path, **options}))
    return [
        [row["id"] for batch in reader.read(lot) for row in batch.to_pylist()]
        for lot in reader.partitions()
    ]


def read_by_a_task(path, **options):
    return list(itertools.chain.from_iterable(read_by_tasks(path, **options)))


def test_a_large_file_is_shared_among_tasks_by_its_row_groups(tmp_path, monkeypatch):
    def in_groups_of_three(*words, write=pq.write_table, **options):
        write(*words, row_group_size=3, **options)

    monkeypatch.setattr(pq, "write_table", in_groups_of_three)
    rows = [row("q:mail", f"{1_763_600_000_000 + n}-1", payload=str(n)) for n in range(20)]
    write_archive(tmp_path, table(rows), "shop")

    shared = read_by_tasks(str(tmp_path), partitionRows="6")

    assert list(map(len, shared)) == [6, 3, 6, 5]
    assert list(itertools.chain.from_iterable(shared)) == [one["id"] for one in rows]
    # Where a file has fewer row groups than shares, some tasks have nothing to do.
    assert sorted(map(len, read_by_tasks(str(tmp_path), partitionRows="1")))[-7:] == [2, *[3] * 6]


def test_options_choose_rows_of_an_archive(archived):
    chosen = {"from": "1763600000006-1", "to": "1763600000007-1", "streams": "queues"}

    assert sorted(read_by_a_task(archived, **chosen)) == ["1763600000006-1", "1763600000007-1"]


def test_an_archive_is_loaded_at_a_version(archived):
    before = ArchiveTable(place(archived)).snapshot().version
    write_archive(archived, table([row("q:mail", "1763600000009-1")]), "shop")

    assert len(read_by_a_task(archived, version=str(before))) == len(ROWS)
    assert len(read_by_a_task(archived)) == len(ROWS) + 1


# -- what is refused --


@pytest.mark.parametrize(
    ("path", "error"), [("none", NotFound), ("http://example.com/x", UsageError)]
)
def test_a_path_without_an_archive_is_refused_and_says_what_load_takes(tmp_path, path, error):
    path = path if "://" in path else str(tmp_path / path)

    with pytest.raises(error) as raised:
        AgentBusSource({"path": path}).schema()

    assert raised.value.hint.startswith("load takes the path of an archive, or nothing")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"paths": "[]"}, "several paths are given"),
        ({"path": "/x", "url": "redis://x"}, "for an archive, has no option 'url'"),
        ({"version": "3"}, "has no option 'version'"),
    ],
)
def test_options_that_do_not_fit_what_is_read_are_refused(options, said):
    with pytest.raises(UsageError) as raised:
        AgentBusSource(options).schema()

    assert said in raised.value.message


def test_a_stream_of_an_archive_has_no_version_that_it_stays_at(archived):
    with pytest.raises(UsageError, match="the option version is not for a stream"):
        ArchiveStreamReader(ArchiveOptions({"path": archived, "version": "1"}))


def test_another_schema_is_refused_and_says_what_to_do(archived):
    schema = StructType().add("payload", "string")

    for make in (
        lambda: AgentBusSource({}).reader(schema),
        lambda: AgentBusSource({}).streamReader(schema),
        lambda: AgentBusSource({"path": archived}).reader(schema),
    ):
        with pytest.raises(UsageError) as raised:
            make()
        assert "leave out schema(…)" in raised.value.hint
