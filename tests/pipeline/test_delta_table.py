"""The committer of an archive's Delta table: each of its guards, races, and kills at every step."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from agentbus.core.errors import AgentBusError, EpochMismatch, NotFound, Refused, Unhealthy
from agentbus.pipeline.archives import checkpoints
from agentbus.pipeline.archives.delta_table import APP, COMPACT, ArchiveTable
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.versions import (
    ArchiveSnapshot,
    CommitConflict,
    DataFile,
    Position,
    new_batch,
)
from tests.servers import scrubbed
from tests.source_tree import ROOT

DAY = "2026-11-20"
_MS = 1_795_132_800_000

# Archives numbers up to a last one, a few in each round, as an archiver does: from the position on.
ARCHIVER = """
import os, signal, sys
from deltalake import DeltaTable
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.versions import CommitConflict
from tests.pipeline.test_delta_table import archive_up_to

path, last, step, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
calls = 0

def killed(owner, name, after):
    real = getattr(owner, name)
    def call(*words, **options):
        global calls
        calls += 1
        if calls == count and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(*words, **options)
        if calls == count and after:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    setattr(owner, name, call)

if step:
    owner, name, after = step.split(":")
    killed({"table": ArchiveTable, "library": DeltaTable}[owner], name, after == "after")
print(archive_up_to(path, last))
"""
STEPS = [
    "table:_write_positions:before",
    "table:_write_positions:after",
    "table:_require_files:after",
    "table:_require_round:after",
    "library:create_write_transaction:before",
    "library:create_write_transaction:after",
    "table:_make_durable:after",
]


def write_rows(
    table: ArchiveTable, batch: str, numbers: list[int], stream: str = "q:a"
) -> DataFile:
    path = f"kind=queue/date={DAY}/{batch}.parquet"
    name = pathlib.Path(table.place.target.root, path)
    name.parent.mkdir(parents=True, exist_ok=True)
    rows = pa.table(
        {
            "version": pa.array([1] * len(numbers), pa.int32()),
            "stream": [stream] * len(numbers),
            "id": [f"{n}-0" for n in numbers],
            "time": pa.array([(_MS + n) * 1000 for n in numbers], pa.timestamp("us", tz="UTC")),
            "queue": ["a"] * len(numbers),
        }
    )
    pq.write_table(rows, name)
    size = name.stat().st_size
    ends = (_MS + numbers[0], _MS + numbers[-1]) if numbers else (0, -1)
    return DataFile(path, "queue", DAY, len(numbers), size, *ends, (stream, stream), ("a", "a"))


def archive_round(table: ArchiveTable, last: int, most: int = 3) -> ArchiveSnapshot | None:
    """Archive the numbers after the position, as one round; None without any."""
    base = table.create("shop")
    done = base.positions["q:a"].rows if base.positions else 0
    numbers = list(range(done, min(last, done + most)))
    if not numbers:
        return None
    batch = new_batch()
    file = write_rows(table, batch, numbers)
    end = done + len(numbers)
    return table.append(base, batch, [file], {"q:a": Position(f"{end}-0", end, 0, end, 0)})


def archive_up_to(path: str, last: int) -> int:
    """Archive all numbers up to the last; return the number of races that were lost."""
    table, lost = ArchiveTable(place(path)), 0
    while True:
        try:
            if archive_round(table, last) is None:
                return lost
        except CommitConflict:
            lost += 1


def ids(path: pathlib.Path) -> collections.Counter[str]:
    """Return how often each entry is in the table, by the library's own reader."""
    found = DeltaTable(str(path)).to_pyarrow_table(columns=["kind", "id"]).to_pylist()
    return collections.Counter(row["id"] for row in found if row["kind"] == "queue")


def once(last: int) -> dict[str, int]:
    return {f"{n}-0": 1 for n in range(last)}


def archiver(
    path: pathlib.Path, last: int, step: str = "", count: int = 0
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ARCHIVER, str(path), str(last), step, str(count)],
        env={**scrubbed(dict(os.environ)), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def table(tmp_path: pathlib.Path) -> ArchiveTable:
    return ArchiveTable(place(tmp_path))


def test_rounds_are_counted_and_positions_follow_them(table, tmp_path):
    archive_up_to(str(tmp_path), 10)

    found = table.snapshot()

    assert (found.project, found.round, found.version) == ("shop", 4, 4)
    assert found.positions == {"q:a": Position("10-0", 10, 0, 10, 0)}
    assert sum(file.rows for file in found.files.values()) == 10
    assert ids(tmp_path) == once(10)
    assert table.snapshot(2).positions["q:a"].rows == 6


def test_an_archive_of_another_project_is_refused(table):
    table.create("shop")

    with pytest.raises(Refused, match="the project shop, not of other"):
        table.create("other")


def test_a_path_without_a_table_is_not_an_archive(table):
    with pytest.raises(NotFound):
        table.snapshot()


def test_racing_archivers_archive_each_entry_once(tmp_path):
    archivers = [archiver(tmp_path, 90) for _ in range(2)]
    outputs = [process.communicate(timeout=280) for process in archivers]

    assert [process.returncode for process in archivers] == [0, 0], outputs
    assert ids(tmp_path) == once(90)
    assert ArchiveTable(place(tmp_path)).snapshot().round == 30


def test_an_archiver_killed_at_any_step_is_continued_exactly(tmp_path):
    running = [(step, archiver(tmp_path / step, 12, step, 2)) for step in STEPS]
    for step, process in running:
        _, said = process.communicate(timeout=280)
        assert process.returncode == -signal.SIGKILL, (step, said)

    for step, _ in running:
        archive_up_to(str(tmp_path / step), 12)

        assert ids(tmp_path / step) == once(12), step
        assert ArchiveTable(place(tmp_path / step)).snapshot().round == 4


# -- the guards: what the library accepts, and how it ends without them --


def _unguarded(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(ArchiveTable, name, lambda *_words: None)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_round_that_another_archiver_committed_is_not_committed_again(
    table, tmp_path, monkeypatch, guarded
):
    base = table.create("shop")
    slow = ArchiveTable(place(tmp_path))
    file = write_rows(slow, "slow", [0, 1, 2])
    archive_round(table, 3)
    positions = {"q:a": Position("3-0", 3, 0, 3, 0)}

    if guarded:
        with pytest.raises(CommitConflict):
            slow.append(base, "slow", [file], positions)
    else:
        _unguarded(monkeypatch, "_require_round")
        # Of a later snapshot, the library takes the number that it has.
        slow.append(base, "slow", [file], positions)

    assert (ids(tmp_path) == once(3)) == guarded


@pytest.mark.parametrize("guarded", [True, False])
def test_files_that_another_compaction_replaced_are_not_replaced_again(
    table, tmp_path, monkeypatch, guarded
):
    archive_up_to(str(tmp_path), 6)
    base = table.snapshot()
    old = [path for path, file in base.files.items()]
    table.replace(base, COMPACT, "one", [write_rows(table, "one", list(range(6)))], old)
    again = write_rows(table, "two", list(range(6)))

    if guarded:
        with pytest.raises(CommitConflict):
            table.replace(base, COMPACT, "two", [again], old)
    else:
        _unguarded(monkeypatch, "_require_listed")
        table.replace(base, COMPACT, "two", [again], old)

    assert (ids(tmp_path) == once(6)) == guarded


@pytest.mark.parametrize("guarded", [True, False])
def test_a_file_that_is_not_there_is_not_committed(table, tmp_path, monkeypatch, guarded):
    base = table.create("shop")
    file = write_rows(table, "lost", [0, 1])
    (tmp_path / file.path).unlink()
    positions = {"q:a": Position("2-0", 2, 0, 2, 0)}

    if guarded:
        with pytest.raises(AgentBusError, match="is not there"):
            table.append(base, "lost", [file], positions)
        assert ids(tmp_path) == {}
    else:
        _unguarded(monkeypatch, "_require_files")
        table.append(base, "lost", [file], positions)
        with pytest.raises((DeltaError, OSError)):
            ids(tmp_path)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_commit_whose_reply_was_lost_is_not_made_again(table, tmp_path, monkeypatch, guarded):
    archive_up_to(str(tmp_path), 3)
    real = DeltaTable.create_write_transaction
    replies = [DeltaError("Failed to commit transaction: 0")]

    def lost(*words, **options):
        real(*words, **options)
        if replies:
            raise replies.pop()

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    if guarded:
        done = archive_round(table, 6)
        assert done is not None
        assert done.round == 2
    else:
        monkeypatch.setattr(ArchiveTable, "_committed", lambda *_words: None)
        # It is taken for another archiver's round: its files would be deleted.
        with pytest.raises(CommitConflict):
            archive_round(table, 6)

    assert ids(tmp_path) == once(6)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_new_column_is_added_before_rows_have_it(table, tmp_path, guarded):
    base = table.create("shop")
    if guarded:
        table.add_columns(pa.schema([("region", pa.string())]))
        table.add_columns(pa.schema([("region", pa.string())]))
    file = write_rows(table, "new", [0])
    name = tmp_path / file.path
    rows = pq.read_table(name).append_column("region", pa.array(["eu"]))
    pq.write_table(rows, name)
    whole = DataFile(file.path, "queue", DAY, 1, name.stat().st_size, file.from_ms, file.to_ms)
    table.append(base, "new", [whole], {"q:a": Position("1-0", 1, 0, 1, 0)})

    found = DeltaTable(str(tmp_path)).to_pyarrow_table()

    assert ("region" in found.column_names) == guarded


def test_positions_that_were_deleted_stop_the_archive(table, tmp_path):
    archive_up_to(str(tmp_path), 6)
    DeltaTable(str(tmp_path)).delete("kind = 'position'")

    with pytest.raises(EpochMismatch, match="of round 0, and its last round is 2"):
        archive_up_to(str(tmp_path), 9)


def test_a_version_that_was_restored_stops_the_archive(table, tmp_path):
    archive_up_to(str(tmp_path), 6)
    DeltaTable(str(tmp_path)).restore(1)

    with pytest.raises(EpochMismatch, match="of round 1, and its last round is 2"):
        archive_up_to(str(tmp_path), 9)


def test_rows_that_another_engine_deleted_stay_away(table, tmp_path):
    archive_up_to(str(tmp_path), 6)
    DeltaTable(str(tmp_path)).delete("id = '4-0'")

    archive_up_to(str(tmp_path), 12)

    wanted = once(12)
    del wanted["4-0"]
    assert ids(tmp_path) == wanted


def test_a_compaction_by_the_library_leaves_the_archive_going(table, tmp_path):
    archive_up_to(str(tmp_path), 9)
    DeltaTable(str(tmp_path)).optimize.compact()

    archive_up_to(str(tmp_path), 12)

    assert ids(tmp_path) == once(12)


def test_an_append_beside_another_engines_commit_is_tried_again(table, tmp_path, monkeypatch):
    archive_up_to(str(tmp_path), 3)
    real, others = DeltaTable.create_write_transaction, ["id = '1-0'"]

    def raced(*words, **options):
        if others:
            DeltaTable(str(tmp_path)).delete(others.pop())
        return real(*words, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", raced)
    archive_up_to(str(tmp_path), 6)

    wanted = once(6)
    del wanted["1-0"]
    assert ids(tmp_path) == wanted


def test_a_disk_that_refuses_the_log_is_told_and_nothing_is_committed(table, tmp_path, monkeypatch):
    archive_up_to(str(tmp_path), 3)

    def full(*_words, **_options):
        raise DeltaError("Generic LocalFileSystem error: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", full)
        with pytest.raises(AgentBusError, match="No space left on device"):
            archive_round(table, 6)
    archive_up_to(str(tmp_path), 6)

    assert ids(tmp_path) == once(6)


# -- deleting --


def test_a_sweep_deletes_what_no_kept_version_needs(table, tmp_path):
    archive_up_to(str(tmp_path), 6)
    base = table.snapshot()
    old = [path for path, file in base.files.items()]
    table.replace(base, COMPACT, "one", [write_rows(table, "one", list(range(6)))], old)
    orphan, young = (write_rows(table, name, [7]).path for name in ("orphan", "young"))
    os.utime(tmp_path / orphan, (0, 0))
    for path in old:
        # Files of an old version are older than any round.
        os.utime(tmp_path / path, (0, 0))

    kept = table.sweep(retention=3600 * 20, round_seconds=3600)
    deleted = table.sweep(retention=0, round_seconds=3600)

    assert kept == [orphan]
    assert set(old) < set(deleted)
    assert (tmp_path / young).exists()
    assert ids(tmp_path) == once(6)


@pytest.mark.parametrize(
    "path", ["../secret.parquet", "/etc/passwd", "kind=queue/../../x", "file:///x"]
)
def test_a_log_that_names_a_file_elsewhere_is_refused(table, tmp_path, path):
    archive_up_to(str(tmp_path), 3)
    log = tmp_path / "_delta_log" / f"{1:020d}.json"
    (name,) = (each for each in table.snapshot().files if "kind=queue" in each)
    log.write_text(log.read_text().replace(name, path))

    with pytest.raises(Unhealthy, match="which lies elsewhere"):
        ArchiveTable(place(tmp_path)).snapshot()


def test_a_sweep_deletes_nothing_outside_of_the_archive(tmp_path):
    outside = tmp_path / "secret.parquet"
    outside.write_text("kept")
    path = tmp_path / "archive"
    archive_up_to(str(path), 3)
    table = ArchiveTable(place(path))
    (name,) = (each for each in table.snapshot().files if "kind=queue" in each)
    table.replace(table.snapshot(), COMPACT, "one", [write_rows(table, "one", [0, 1, 2])], [name])
    log = path / "_delta_log" / f"{2:020d}.json"
    log.write_text(log.read_text().replace(f'"{name}"', '"../secret.parquet"'))

    with contextlib.suppress(AgentBusError):
        ArchiveTable(place(path)).sweep(retention=0, round_seconds=0)

    assert outside.read_text() == "kept"


def test_ten_rounds_use_one_transaction_number_each(table, tmp_path):
    archive_up_to(str(tmp_path), 30)

    assert DeltaTable(str(tmp_path)).transaction_version(APP) == 10


def test_a_long_log_keeps_few_checkpoints_and_every_version(table, tmp_path, monkeypatch):
    # A twentieth of the real distances.
    monkeypatch.setattr(checkpoints, "_EVERY", 5)
    monkeypatch.setattr(checkpoints, "_KEPT_EVERY", 50)
    for last in range(1, 16):
        archive_round(table, last, most=1)
    reading = ArchiveTable(place(tmp_path))
    reading.snapshot()
    for last in range(16, 126):
        archive_round(table, last, most=1)

    remaining = sorted((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))
    assert [int(each.name[:20]) for each in remaining] == [4, 54, 104, 119, 124]
    codecs = {pq.read_metadata(each).row_group(0).column(0).compression for each in remaining}
    assert codecs == {"ZSTD"}
    assert [change.version for change in table.history()] == [*range(125, -1, -1)]
    for version in (0, 3, 4, 5, 53, 54, 103, 118, 123, 124, 125):
        assert ArchiveTable(place(tmp_path)).snapshot(version).rows == version
    # A table whose checkpoint was deleted since it was opened goes on.
    assert reading.snapshot().rows == 125
    assert len(reading.sweep(0, round_seconds=0)) == 124


def test_commits_before_a_checkpoint_of_yesterday_are_deleted(table, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_EVERY", 10)
    archive_up_to(str(tmp_path), 75)
    yesterday = time.time() - 2 * 86_400
    leftover = tmp_path / "_delta_log" / "1.checkpoint.parquet.0.tmp"
    leftover.touch()
    for each in (tmp_path / "_delta_log").iterdir():
        os.utime(each, (yesterday, yesterday))

    archive_up_to(str(tmp_path), 90)

    assert [change.version for change in table.history()] == [*range(30, 18, -1)]
    assert table.snapshot(19).rows == 57
    assert not leftover.exists()
    assert ids(tmp_path) == once(90)
