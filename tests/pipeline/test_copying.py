"""What a task writes: files of one kind and day each, and what they hold."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from agentbus.core.settings import resolve
from agentbus.errors import AgentBusError
from agentbus.pipeline.archives import copying
from agentbus.pipeline.archives.copying import CopyJob, FileWriter
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.rows import decoding


@pytest.fixture
def job(tmp_path):
    return CopyJob(resolve({"url": "redis://x"}), place(str(tmp_path)).target, "00c0ffee", 100)


def rows(number, *, start=0, stream="q:mail"):
    entries = [[b"%d-0" % (start + n), [b"payload", b"1"]] for n in range(number)]
    return decoding.batch([(stream, entries)])


@pytest.mark.parametrize("batches", [[10], [5, 5], [10, 3], [3, 10, 10], [25]])
def test_rows_are_written_in_groups_and_none_is_left_out(job, tmp_path, monkeypatch, batches):
    monkeypatch.setattr(copying, "_GROUP", 10)

    with FileWriter(job) as writer:
        for n, number in enumerate(batches):
            writer.add(rows(number, start=100 * n))
        (copied,) = writer.finish()
        file = copied.file

    written = pq.ParquetFile(tmp_path / file.path)
    assert written.metadata.num_rows == file.rows == sum(batches)
    assert copied.streams["q:mail"][0] == sum(batches)
    assert (tmp_path / file.path).stat().st_size == file.bytes


def test_large_rows_are_written_in_groups_of_fewer(job, tmp_path, monkeypatch):
    monkeypatch.setattr(copying, "_GROUP_BYTES", 3 * rows(10).nbytes)

    with FileWriter(job) as writer:
        for n in range(7):
            writer.add(rows(10, start=100 * n))
        (copied,) = writer.finish()
        file = copied.file

    written = pq.ParquetFile(tmp_path / file.path).metadata
    assert [written.row_group(n).num_rows for n in range(3)] == [30, 30, 10]


def test_a_file_says_by_which_schema_it_was_written(job, tmp_path):
    with FileWriter(job) as writer:
        writer.add(rows(1))
        (copied,) = writer.finish()
        file = copied.file

    written = pq.ParquetFile(tmp_path / file.path).schema_arrow
    assert written.metadata[b"agentbus.schema"] == b"1"
    assert "kind" not in written.names


def test_times_have_statistics_by_which_files_can_be_skipped(job, tmp_path):
    with FileWriter(job) as writer:
        writer.add(rows(5, start=1000))
        (copied,) = writer.finish()
        file = copied.file

    group = pq.ParquetFile(tmp_path / file.path).metadata.row_group(0)
    times = next(
        group.column(n)
        for n in range(group.num_columns)
        if group.column(n).path_in_schema == "time"
    )
    assert times.statistics.has_min_max
    assert (file.from_ms, file.to_ms) == (1000, 1004)
    assert (file.streams, file.queues) == (("q:mail", "q:mail"), ("mail", "mail"))


def test_a_writer_that_fails_leaves_no_file(job, tmp_path):
    def fail() -> None:
        with FileWriter(job) as writer:
            writer.add(rows(70_000))
            raise AgentBusError("the server is gone")

    with pytest.raises(AgentBusError):
        fail()

    assert list(tmp_path.rglob("*.parquet")) == []
