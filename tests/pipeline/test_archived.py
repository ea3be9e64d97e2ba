"""Archives read with Spark: every row of the committed files, and no other."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from agentbus.errors import ConfigError, NotFound, UsageError
from agentbus.pipeline.archives.delta_table import COMPACT, ArchiveTable
from agentbus.pipeline.archives.file_selection import IdRange, between
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.reader import read
from agentbus.pipeline.archives.versions import file_path
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.typed_columns import typed
from tests.pipeline.archives import commit_rows, row, table, write_archive

T = 1_763_640_000_000
DAY = 86_400_000


def rows(number, stream="q:mail", step=1000, **columns):
    return [row(stream, f"{T + n * step}-0", payload=str(n), **columns) for n in range(number)]


def ids(df):
    return sorted(found["id"] for found in df.select("id").collect())


def plain(found):
    """Return a row as it was given: Python's own times, maps as dicts."""
    return {name: found[name] for name in schema.COLUMNS}


@pytest.mark.parametrize("name", ["plain", "a [b]*{c} d%", "a:b é#"])
def test_every_row_is_read_as_it_was_written(spark, tmp_path, name):
    made = [*rows(3, fields={"id": "1"}), *rows(2, "ch:main", agent="a"), *rows(1, "metrics")]
    write_archive(tmp_path / name, made, per_commit=4)

    df = read(spark, tmp_path / name)

    assert [c for c in df.columns if c in (*schema.COLUMNS, "date")] == [*schema.COLUMNS, "date"]
    epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
    found = []
    for one in df.selectExpr("*", "unix_micros(time) AS at").collect():
        at = epoch + datetime.timedelta(microseconds=one["at"])
        found.append(plain(one) | {"time": at})
        assert one["date"] == at.date()
    order = lambda one: (one["stream"], one["id"])  # noqa: E731
    assert sorted(found, key=order) == sorted(made, key=order)


def test_an_archive_without_rows_gives_an_empty_frame_of_the_same_columns(spark, tmp_path):
    write_archive(tmp_path / "none", [])
    write_archive(tmp_path / "some", rows(1))

    empty = read(spark, tmp_path / "none")

    assert empty.count() == 0
    some = read(spark, tmp_path / "some")
    assert [(f.name, f.dataType) for f in empty.schema] == [
        (f.name, f.dataType) for f in some.schema
    ]


def test_files_that_no_commit_names_do_not_exist(spark, tmp_path):
    state = write_archive(tmp_path, rows(2))
    path = tmp_path / next(iter(state.files))
    path.with_name("00c0ffee-0.parquet").write_bytes(path.read_bytes())
    (path.parent / "part-0.parquet").write_bytes(b"half a file")

    assert read(spark, tmp_path).count() == 2


def test_kinds_are_chosen_by_the_log(spark, tmp_path):
    write_archive(tmp_path, [*rows(3), *rows(2, "ch:main"), row("q:mail", f"{T}-9", kind="gap")])

    assert read(spark, tmp_path, kinds=["queue"]).count() == 3
    assert read(spark, tmp_path, kinds=["channel", "gap"]).count() == 3
    assert read(spark, tmp_path, kinds=["metrics"]).count() == 0
    with pytest.raises(UsageError, match="'tasks' is not a kind of entry; kinds: channel, queue"):
        read(spark, tmp_path, kinds=["tasks"])


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, range(6)),
        # A time includes its own moment, and ends before it.
        ("2025-11-20T12:00:02Z", None, range(2, 6)),
        (None, "2025-11-20T12:00:02Z", range(2)),
        (str(T + 2000), str(T + 4000), (2, 3)),
        # A full id is where somebody has got to.
        (f"{T + 2000}-0", None, range(3, 6)),
        (f"{T + 2000}-0", f"{T + 4000}-0", (3, 4)),
        ("2025-11-21", None, ()),
    ],
)
def test_a_range_of_time_is_read(spark, tmp_path, since, until, expected):
    write_archive(tmp_path, rows(6), per_commit=2)

    found = ids(read(spark, tmp_path, since=since, until=until))

    assert found == [f"{T + n * 1000}-0" for n in expected]


def test_a_range_within_a_millisecond_is_read(spark, tmp_path):
    write_archive(tmp_path, [row("q:mail", f"{T}-{n}") for n in range(12)])

    assert ids(read(spark, tmp_path, since=f"{T}-8", until=f"{T}-10")) == [f"{T}-10", f"{T}-9"]


def test_files_outside_the_range_are_not_opened(spark, tmp_path):
    state = write_archive(tmp_path, rows(4, step=DAY))

    df = read(spark, tmp_path, since=str(T + DAY), until=str(T + 3 * DAY))

    assert len(state.files) == 4
    assert len(df.inputFiles()) == 2


def test_a_duration_is_counted_back_from_now():
    assert between("30m", None, now=T / 1000) == IdRange((T - 1_800_000, 0), None)


def test_a_point_in_time_that_cannot_be_read_is_told():
    with pytest.raises(UsageError, match="'yesterday' is not a point to start from"):
        between("yesterday", None)


def test_a_range_from_its_end_to_its_beginning_is_told():
    with pytest.raises(UsageError, match="nothing from 2025-11-21 until 2025-11-20"):
        between("2025-11-21", "2025-11-20")


def test_a_frame_holds_what_was_committed_when_it_was_made(spark, tmp_path):
    write_archive(tmp_path, rows(2))
    df = read(spark, tmp_path)

    write_archive(tmp_path, [row("ch:main", f"{T}-0")])

    assert df.count() == 2
    assert read(spark, tmp_path).count() == 3


def test_an_earlier_version_is_read(spark, tmp_path):
    write_archive(tmp_path, rows(6), per_commit=2)

    assert read(spark, tmp_path, version=1).count() == 2
    assert read(spark, tmp_path, version=0).count() == 0
    with pytest.raises(NotFound, match=r"has no version 9; .* lists its versions"):
        read(spark, tmp_path, version=9)


def test_a_version_whose_files_are_gone_is_told(spark, tmp_path):
    from tests.pipeline.racing import add

    state = write_archive(tmp_path, rows(2))
    log = ArchiveTable(place(tmp_path))
    add(log, state, removed=list(state.files), operation=COMPACT)
    log.sweep(0)

    with pytest.raises(NotFound, match=r"version 1 .* is gone"):
        read(spark, tmp_path, version=1)


def test_a_path_without_an_archive_is_told(spark, tmp_path):
    with pytest.raises(NotFound, match="there is no archive at"):
        read(spark, tmp_path / "nothing")


def test_a_path_that_spark_cannot_be_given_is_told(spark, tmp_path):
    write_archive(tmp_path / "a:[b]", rows(1))

    with pytest.raises(UsageError, match="Spark cannot read"):
        read(spark, tmp_path / "a:[b]")


# -- schema evolution ----------------------------------------------------------------------------


def test_columns_that_came_later_are_null_in_older_files(spark, tmp_path):
    state = write_archive(tmp_path, rows(2, topic="t"))
    rewrite(tmp_path, state, lambda held: held.drop_columns(["lost", "topic"]))

    found = read(spark, tmp_path).select("payload", "topic", "lost").collect()

    assert sorted(map(tuple, found)) == [("0", None, None), ("1", None, None)]


def test_columns_that_this_version_does_not_know_are_left_out(spark, tmp_path):
    state = write_archive(tmp_path, rows(2))
    rewrite(tmp_path, state, lambda held: held.append_column("later", pa.array([1, 2])))

    df = read(spark, tmp_path)

    assert "later" not in df.columns
    assert df.count() == 2


def rewrite(path, state, change):
    import pyarrow.parquet as pq

    for name in state.files:
        file = path / name
        held = change(pq.ParquetFile(file).read())
        pq.write_table(held, file)


def test_rows_of_a_newer_schema_are_refused(spark, tmp_path):
    write_archive(tmp_path, rows(2))
    commit = tmp_path / "_delta_log" / f"{0:020d}.json"
    commit.write_text(commit.read_text().replace('"agentbus.schema":"1"', '"agentbus.schema":"2"'))

    with pytest.raises(ConfigError, match="holds rows of the schema 2, and this version"):
        read(spark, tmp_path)


# -- typed columns -------------------------------------------------------------------------------


def test_typed_columns_are_there_with_the_types_of_their_expressions(spark, tmp_path):
    write_archive(tmp_path, rows(2))
    raw = spark.createDataFrame([], schema.DDL)
    said = {
        field.name: field.dataType.simpleString()
        for kind in schema.KINDS
        for field in typed(raw, kind).schema[len(schema.COLUMNS) :]
    }

    df = read(spark, tmp_path)

    added = df.columns[len(schema.COLUMNS) : -1]
    assert {name: df.schema[name].dataType.simpleString() for name in added} == said
    assert df.where(" AND ".join(f"{name} IS NULL" for name in added)).count() == 2


def test_archives_are_made_of_arrow_tables(tmp_path):
    held = table(rows(10))
    many = pa.concat_tables([held] * 1000)

    state = write_archive(tmp_path, (many for _ in range(2)))

    assert state.rows == 20_000
    assert state.positions["q:mail"].added == 20_000
    assert file_path("queue", "2025-11-20", "x", 0)[:27] in next(iter(state.files))


def test_an_archive_as_it_was_written_is_read_by_one_scan_that_leaves_out_typed_columns(
    spark, tmp_path
):
    gap = row("q:mail", f"{T}-0", kind=schema.GAP, lost=3)
    write_archive(tmp_path, [*rows(2, "metrics", fields={"dead": "5"}), gap, *rows(1)])

    found = typed(read(spark, tmp_path, marked=True), schema.METRICS).select("kind", "dead")

    assert sorted(map(tuple, found.collect()), key=str) == [
        *(("gap", None), ("metrics", 5), ("metrics", 5), ("queue", None))
    ]
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert plan.count("FileScan parquet") == 1
    assert "ReadSchema: struct<fields:map<string,string>>" in plan


def test_what_an_earlier_compaction_typed_in_part_is_computed_again(spark, tmp_path):
    log = ArchiveTable(place(tmp_path))
    state = write_archive(tmp_path, rows(1, "metrics", fields={"dead": "5", "stale": "6"}))
    part = rows(1, "metrics", fields={"dead": "5", "stale": "6"}, dead=7)
    commit_rows(log, state, part, typed=["dead"])

    found = typed(read(spark, tmp_path, marked=True), schema.METRICS)

    assert sorted((one.dead, one.stale) for one in found.collect()) == [(5, 6), (5, 6)]
