"""Compaction: fewer, sorted, typed files; the same rows; killed anywhere, all as before."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from agentbus.errors import Unhealthy, UsageError
from agentbus.pipeline.archives import compaction as compacting, reader as archived
from agentbus.pipeline.archives.compaction import Compacted, compact
from agentbus.pipeline.archives.delta_table import COMPACT, ArchiveTable
from agentbus.pipeline.archives.files import archive_files
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.reader import read
from agentbus.pipeline.archives.versions import ArchiveSnapshot, DataFile, file_path
from agentbus.pipeline.rows import typed_columns as typed
from agentbus.pipeline.rows.typed_columns import TYPED
from tests.pipeline.archives import data_files, row, write_archive
from tests.servers import scrubbed
from tests.source_tree import ROOT
from tests.tiers import nightly

T = 1_763_640_000_000
DAY = 86_400_000
AFTER = "2025-11-21"


def rows(number, stream="q:mail", start=T, step=1000):
    return [
        row(stream, f"{start + n * step}-0", payload=str(n), fields={"attempts": str(n)})
        for n in range(number)
    ]


def content(spark, path, **range):
    """Return all that an archive holds, in one order."""
    df = read(spark, path, **range).select("stream", "id", "payload", "fields")
    return sorted(map(tuple, df.collect()), key=lambda found: found[:2])


@pytest.fixture
def typed_columns(monkeypatch):
    """One typed column of queues."""
    columns = {"queue": {"attempts": "CAST(fields['attempts'] AS INT)"}}
    for module in (archived, compacting, typed):
        monkeypatch.setattr(module, "TYPED", columns)


def test_closed_days_become_few_files_with_the_same_rows(spark, tmp_path):
    made = [*rows(6), *rows(6, "ch:main"), *rows(2, start=T + DAY)]
    before = write_archive(tmp_path, made, per_commit=2)
    held = content(spark, tmp_path)
    seen: list[tuple[int, int]] = []

    done = compact(spark, tmp_path, before=AFTER, on_progress=lambda *rows: seen.append(rows))

    after = ArchiveTable(place(tmp_path)).snapshot()
    assert content(spark, tmp_path) == held
    assert seen == [(0, 12), (6, 12), (12, 12)]
    assert (done.partitions, done.files_before, done.files_after, done.rows) == (2, 6, 2, 12)
    assert done.bytes_before > done.bytes_after > 0
    assert len(after.files) == len(before.files) - 4
    assert after.positions == before.positions
    for version in (None, before.version):
        table = DeltaTable(tmp_path, version=version).to_pyarrow_table(
            columns=["date", "bytes"], filters=[("kind", "!=", "position")]
        )
        assert table.num_rows == 14
        # Typed columns are there in what was compacted.
        assert table["bytes"].null_count == (14 if version else 2)


def test_a_compacted_file_is_sorted_and_described_by_what_it_holds(spark, tmp_path):
    made = [*rows(4, "q:b"), *rows(4, "q:a"), row("q:a", f"{T}-10"), row("q:a", f"{T}-9")]
    write_archive(tmp_path, made, per_commit=3)

    compact(spark, tmp_path, before=AFTER)

    (file,) = ArchiveTable(place(tmp_path)).snapshot().files.values()
    held = pq.ParquetFile(tmp_path / file.path).read()
    order = list(map(tuple, (map(one.get, ("stream", "time", "seq")) for one in held.to_pylist())))
    assert order == sorted(order)
    assert str(held.schema.field("time").type) == "timestamp[us, tz=UTC]"
    assert "kind" not in held.column_names
    assert (file.streams, file.queues) == (("q:a", "q:b"), ("a", "b"))
    assert (file.rows, file.from_ms, file.to_ms) == (10, T, T + 3000)
    assert file.bytes == (tmp_path / file.path).stat().st_size


def test_a_compacted_file_has_row_groups_that_several_tasks_can_read(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(compacting, "_GROUP_ROWS", 4)
    write_archive(tmp_path, rows(10), per_commit=5)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2")

    try:
        compact(spark, tmp_path, before=AFTER)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    (file,) = ArchiveTable(place(tmp_path)).snapshot().files.values()
    held = pq.ParquetFile(tmp_path / file.path).metadata
    assert [held.row_group(n).num_rows for n in range(held.num_row_groups)] == [4, 4, 2]


def test_typed_columns_are_written_for_their_kind_alone(spark, tmp_path, typed_columns):
    write_archive(tmp_path, [*rows(3), *rows(1, "ch:main"), *rows(1, "ch:main", start=T + 9)])
    write_archive(tmp_path, rows(1, "ch:main", start=T + 99))

    done = compact(spark, tmp_path, before=AFTER)

    state = ArchiveTable(place(tmp_path)).snapshot()
    assert done.partitions == 2
    for file in state.files.values():
        names = pq.ParquetFile(tmp_path / file.path).schema_arrow.names
        assert ("attempts" in names) == (file.kind == "queue")
        assert file.has_typed(["attempts"]) == (file.kind == "queue")
    found = read(spark, tmp_path, kinds=["queue"]).select("attempts").collect()
    assert sorted(one["attempts"] for one in found) == [0, 1, 2]
    # All columns are there now: nothing is left to do.
    assert compact(spark, tmp_path, before=AFTER).partitions == 0


def test_today_is_not_closed(spark, tmp_path):
    import time

    write_archive(tmp_path, rows(4, start=int(time.time() * 1000) - 4, step=1), per_commit=1)

    assert compact(spark, tmp_path).partitions <= 1
    assert content(spark, tmp_path)[-1][2] == "3"


def test_a_dry_run_tells_what_would_be_done(spark, tmp_path):
    before = write_archive(tmp_path, rows(6), per_commit=2)

    seen: list[tuple[int, int]] = []

    told = compact(
        spark, tmp_path, before=AFTER, dry_run=True, on_progress=lambda *rows: seen.append(rows)
    )

    assert told == Compacted(1, 3, None, 6, before.bytes, None)
    assert seen == []
    assert ArchiveTable(place(tmp_path)).snapshot() == before


def held(kind: str, *files: tuple[str, int, bool]) -> ArchiveSnapshot:
    """Return the state of an archive with files of one day: name, bytes, whether they are typed."""
    made = {}
    for name, size, compacted in files:
        path = file_path(kind, "2026-11-20", name, 0, TYPED[kind] if compacted else ())
        made[path] = DataFile(path, kind, "2026-11-20", 1, size, 0, 0)
    return ArchiveSnapshot(0, "", "", 1, 0, made, {}, 0, 0, [])


def name_of(file: DataFile) -> str:
    return file.path.rpartition("/")[2].partition("-")[0]


@pytest.mark.parametrize(
    ("files", "merged"),
    [
        ([("day", 30_000_000, True), ("late", 2_000, False)], ["late"]),
        ([("day", 30_000_000, True), ("a", 2_000, True), ("b", 2_000, False)], ["a", "b"]),
        ([("day", 30_000_000, True), ("late", 2_000, True)], []),
        ([("day", 30_000_000, True), ("a", 2_000, True), ("b", 3_000, True)], ["a", "b"]),
        ([("day", 30_000, True), ("late", 10_000, False)], ["day", "late"]),
        ([("a", 60 << 20, True), ("b", 60 << 20, True)], []),
    ],
)
def test_a_late_file_is_merged_with_those_of_its_size(files, merged):
    todo = compacting._todo(held("queue", *files), "2026-11-21")

    assert [[name_of(file) for file in found] for _, found in todo] == ([merged] if merged else [])


def test_rows_that_come_late_each_night_are_rewritten_a_few_times():
    files, written = [("day", 1_000_000, True)], 0
    for night in range(256):
        files.append((f"late{night}", 1_000, False))
        ((_, merged),) = compacting._todo(held("queue", *files), "2026-11-21")
        size, gone = sum(file.bytes for file in merged), {name_of(file) for file in merged}
        files = [file for file in files if file[0] not in gone]
        files.append((f"merged{night}", size, True))
        written += size

    # Rewriting the day each night would write 290 MB.
    assert written < 10_000_000
    assert len(files) < 10


@pytest.mark.parametrize("text", ["soon", "2026-13-01", "2026-02-30", "20261120", "2026-W47-5"])
def test_a_date_that_is_none_is_told(spark, tmp_path, text):
    with pytest.raises(UsageError, match=f"'{text}' is not a date"):
        compact(spark, tmp_path, before=text)


def test_rows_that_the_log_does_not_know_stop_the_compaction(spark, tmp_path):
    before = write_archive(tmp_path, rows(6), per_commit=2)
    path = tmp_path / next(iter(before.files))
    pq.write_table(pq.ParquetFile(path).read().slice(1), path)

    with pytest.raises(Unhealthy, match="have 6 rows by the log, and read were 5"):
        compact(spark, tmp_path, before=AFTER)

    assert ArchiveTable(place(tmp_path)).snapshot() == before
    assert set(data_files(tmp_path)) == set(before.files)


def test_an_append_in_between_is_no_conflict(spark, tmp_path, monkeypatch):
    before = write_archive(tmp_path, rows(6), per_commit=2)
    appended = []

    real = DeltaTable.create_write_transaction

    def commit(table, *words, **options):
        if (
            options["commit_properties"].custom_metadata["agentbusAction"] == COMPACT
            and len(appended) < 2
        ):
            appended.append(write_archive(tmp_path, [row("ch:main", f"{T + len(appended)}-0")]))
        return real(table, *words, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)

    done = compact(spark, tmp_path, before=AFTER)

    state = ArchiveTable(place(tmp_path)).snapshot()
    assert (done.partitions, len(state.files)) == (1, 3)
    assert len(content(spark, tmp_path)) == 8
    assert set(data_files(tmp_path)) == set(state.files) | set(before.files)


def test_of_two_compactions_at_once_one_is_done(spark, tmp_path):
    write_archive(tmp_path, rows(6), per_commit=1)
    held, done = content(spark, tmp_path), []
    both = [
        threading.Thread(target=lambda: done.append(compact(spark, tmp_path, before=AFTER)))
        for _ in range(2)
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()

    assert sorted(one.partitions for one in done) == [0, 1]
    assert content(spark, tmp_path) == held
    assert len(ArchiveTable(place(tmp_path)).snapshot().files) == 1


def test_readers_see_the_same_rows_all_the_while(spark, tmp_path):
    write_archive(tmp_path, [*rows(6), *rows(6, start=T - DAY)], per_commit=1)
    over, counts, views = threading.Event(), [], []

    def look():
        while not over.is_set():
            counts.append(read(spark, tmp_path).count())

    # Whoever planned before the compaction reads afterwards what it planned.
    earlier = read(spark, tmp_path)
    reader = threading.Thread(target=look)
    reader.start()
    compact(spark, tmp_path, before=AFTER)
    views.append(earlier.count())
    over.set()
    reader.join()

    assert set(counts) == {12}
    assert views == [12]


KILLED = """
import os, signal, sys
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from agentbus.pipeline.archives import compaction
from agentbus.pipeline.archives.delta_table import COMPACT, ArchiveTable

path, before, when, owner, name = sys.argv[1:]
owner = {"compaction": compaction, "ArchiveTable": ArchiveTable}[owner]
real = getattr(owner, name)

def instead(*given, **named):
    if when == "after":
        real(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(owner, name, instead)
gateway = launch_gateway()
spark = gateway.jvm.org.apache.spark
java = spark.api.java.JavaSparkContext.fromSparkContext(spark.SparkContext.getOrCreate())
conf = SparkConf(_jvm=gateway.jvm, _jconf=java.getConf())
compaction.compact(SparkSession(SparkContext(gateway=gateway, jsc=java, conf=conf)), path, before=before)
"""


def killed_at(spark, path, when, owner, name):
    """Compact in a process of its own on the same JVM, killed at a point; return how it ended."""
    parameters = spark.sparkContext._gateway.gateway_parameters
    environment = {
        **scrubbed(dict(os.environ)),
        "PYSPARK_GATEWAY_PORT": str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        "PYTHONPATH": str(ROOT),
    }
    words = [sys.executable, "-c", KILLED, str(path), AFTER, when, owner, name]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    print(done.stderr)  # noqa: T201
    return done.returncode


POINTS = [
    nightly("after", "compaction", "_check", False),
    ("before", "ArchiveTable", "replace", False),
    ("after", "ArchiveTable", "replace", True),
]


@pytest.mark.parametrize(("when", "owner", "name", "committed"), POINTS)
def test_a_killed_compaction_changed_all_or_nothing(spark, tmp_path, when, owner, name, committed):
    before = write_archive(tmp_path, rows(6), per_commit=2)
    held = content(spark, tmp_path)

    ended = killed_at(spark, tmp_path, when, owner, name)

    log = ArchiveTable(place(tmp_path))
    assert ended == -signal.SIGKILL
    assert (log.snapshot() != before) == committed
    assert content(spark, tmp_path) == held
    # The next one does the work and tidies up what was left.
    compact(spark, tmp_path, before=AFTER)
    assert content(spark, tmp_path) == held
    state = log.snapshot()
    assert len(state.files) == 1
    orphans = set(data_files(tmp_path)) - set(state.files) - set(before.files)
    # What was written and not committed is deleted a day later.
    assert len(orphans) == (not committed)
    assert pq.read_table(archive_files(tmp_path)).num_rows == 6


def test_large_partitions_become_several_files_that_do_not_overlap(spark, tmp_path, monkeypatch):
    before = write_archive(tmp_path, [*rows(400), *rows(400, "q:b")], per_commit=50)
    held = content(spark, tmp_path)
    monkeypatch.setattr(compacting, "FILE_BYTES", before.bytes // 3)

    compact(spark, tmp_path, before=AFTER)

    files = list(ArchiveTable(place(tmp_path)).snapshot().files.values())
    assert 2 <= len(files) <= 4
    assert content(spark, tmp_path) == held
    ends = []
    for file in files:
        held = pq.ParquetFile(tmp_path / file.path).read(["stream", "time"]).to_pylist()
        ends.append((tuple(held[0].values()), tuple(held[-1].values())))
    assert all(one[1] < following[0] for one, following in itertools.pairwise(sorted(ends)))
