"""The versions of an archive: who wins one, what kills leave, and what is wrong is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from agentbus.errors import AgentBusError, NotFound, Refused, Unhealthy, UsageError
from agentbus.pipeline.archives.delta_table import COMPACT, ArchiveTable
from agentbus.pipeline.archives.files import archive_files
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.versions import (
    POSITION,
    CommitConflict,
    DataFile,
    Position,
    file_path,
    new_batch,
)
from tests.pipeline.archives import data_files, row, write_archive
from tests.pipeline.racing import DATE, T, add
from tests.tiers import nightly


@pytest.fixture
def table(tmp_path):
    return ArchiveTable(place(tmp_path / "archive"))


def test_an_archive_is_made_once_and_then_opened(table, tmp_path):
    made = table.create("demo")
    again = ArchiveTable(place(tmp_path / "archive")).create("demo")

    assert made.version == 0
    assert again == made


def test_a_version_that_is_taken_is_a_conflict_and_changes_nothing(table, tmp_path):
    state = table.create("demo")
    first = add(ArchiveTable(place(tmp_path / "archive")), state)

    with pytest.raises(CommitConflict):
        add(table, state)

    assert table.snapshot() == first


def test_a_version_is_read_through_any_number_of_commits(table, tmp_path):
    state = table.create("demo")
    for _ in range(120):
        state = add(table, state)

    fresh = ArchiveTable(place(tmp_path / "archive"))

    assert fresh.snapshot() == state
    assert len(list((tmp_path / "archive/_delta_log").glob("*.checkpoint.parquet"))) == 1
    for version in (0, 99, 100, 101, 119):
        assert len(fresh.snapshot(version).files) == version
    with pytest.raises(NotFound, match="has no version 122"):
        fresh.snapshot(122)


def test_a_file_that_is_not_there_or_not_whole_is_not_committed(table):
    state = table.create("demo")
    path = file_path("queue", DATE, new_batch(), 0)
    file = DataFile(path, "queue", DATE, 1, 10, T, T)

    with pytest.raises(AgentBusError, match="is not there"):
        table.append(state, new_batch(), [file], {})
    table.place.write(path, b"short")
    with pytest.raises(AgentBusError, match="is 5 bytes long, not 10"):
        table.append(state, new_batch(), [file], {})

    assert table.snapshot() == state


def test_positions_are_the_last_that_were_committed(table):
    state = table.create("demo")
    state = add(table, state, positions={"a": Position("1-0", 1, 0, 1, 0)})
    state = add(table, state, positions={"b": Position("2-0", 2, 0, 1, 1)})
    state = add(table, state, positions={"a": Position("3-0", 3, 0, 3, 0, "5-0")})

    assert dict(state.positions) == {
        "a": Position("3-0", 3, 0, 3, 0, "5-0"),
        "b": Position("2-0", 2, 0, 1, 1),
    }


def test_rows_that_are_deleted_are_counted(table):
    state = table.create("demo")
    for _ in range(3):
        state = add(table, state)
    old = sorted(state.files)

    state = table.replace(state, "delete", new_batch(), [], old[:2])
    later = add(table, state)

    assert [(each.rows, each.deleted_rows) for each in (state, later)] == [(1, 2), (2, 2)]


# -- what is wrong is told ----------------------------------------------------------------------


def test_a_path_without_anything_is_no_archive(tmp_path):
    with pytest.raises(NotFound, match="there is no archive at"):
        ArchiveTable(place(tmp_path / "nothing")).snapshot()


@pytest.mark.parametrize("making", [False, True])
def test_a_path_with_foreign_parquet_is_no_archive(tmp_path, making):
    (tmp_path / "part-0.parquet").write_bytes(b"PAR1")
    table = ArchiveTable(place(tmp_path))

    with pytest.raises(UsageError, match=r"not an archive of AgentBus: it holds 'part-0\.parquet'"):
        table.create("demo") if making else table.snapshot()


def test_another_delta_table_is_no_archive(tmp_path):
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(tmp_path, pa.table({"a": [1]}))

    with pytest.raises(UsageError, match="is a Delta table, and not an archive"):
        ArchiveTable(place(tmp_path)).create("demo")


def test_a_file_where_the_archive_should_be_is_told(tmp_path):
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(UsageError, match="not a directory"):
        ArchiveTable(place(tmp_path / "file")).create("demo")


@pytest.mark.parametrize("content", [b'{"add":{"path', b"[]", b"\xff\0"])
def test_a_commit_that_a_bad_disk_made_unreadable_is_told(table, tmp_path, content):
    add(table, table.create("demo"))
    (tmp_path / "archive/_delta_log" / f"{1:020d}.json").write_bytes(content)

    with pytest.raises(Unhealthy, match="cannot be read"):
        ArchiveTable(place(tmp_path / "archive")).snapshot()


def test_a_commit_that_is_missing_is_told(table, tmp_path):
    state = table.create("demo")
    for _ in range(3):
        state = add(table, state)
    (tmp_path / "archive/_delta_log" / f"{2:020d}.json").unlink()

    with pytest.raises(Unhealthy, match="cannot be read"):
        ArchiveTable(place(tmp_path / "archive")).snapshot()


def test_positions_that_are_missing_are_told(table, tmp_path):
    state = table.create("demo")
    for _ in range(2):
        state = add(table, state)
    for path in (tmp_path / "archive" / f"kind={POSITION}").rglob("*.parquet"):
        path.unlink()

    with pytest.raises(Unhealthy, match="the positions of the archive, cannot be read"):
        ArchiveTable(place(tmp_path / "archive")).snapshot()


@pytest.mark.parametrize("link", ["_delta_log", "kind=queue", f"kind=queue/date={DATE}"])
def test_a_directory_that_leads_elsewhere_is_refused_and_nothing_there_is_deleted(
    table, tmp_path, link
):
    add(table, table.create("demo"))
    inside, outside = tmp_path / "archive" / link, tmp_path / "outside"
    inside.rename(outside)
    inside.symlink_to(outside)
    stray = outside / "00c0ffee-0.parquet"
    stray.touch()

    with pytest.raises(Unhealthy, match="is a symbolic link"):
        ArchiveTable(table.place).sweep(0, round_seconds=0)
    assert stray.exists()


@pytest.mark.parametrize(
    "file",
    [
        f"kind=queue/date={DATE}/00c0ffee-0.parquet",
        "kind=queue/date=2001-01-01/deeper/00c0ffee-0.parquet",
        f"_delta_log/{2:020d}.json",
    ],
)
def test_a_file_that_leads_elsewhere_is_refused(table, tmp_path, file):
    add(table, table.create("demo"))
    inside, outside = tmp_path / "archive" / file, tmp_path / "another archive's rows"
    outside.write_bytes(b"PAR1")
    inside.parent.mkdir(parents=True, exist_ok=True)
    inside.symlink_to(outside)

    with pytest.raises(Unhealthy, match=f"{file} is a symbolic link"):
        archive_files(tmp_path / "archive")


def test_an_archive_that_another_makes_at_this_moment_is_not_taken_for_foreign(table, tmp_path):
    top = table.place.top

    def made_meanwhile():
        if table._checked is False and not (tmp_path / "archive").exists():
            ArchiveTable(place(tmp_path / "archive")).create("shop")
            (tmp_path / "archive/kind=queue").mkdir()
        return top()

    table.place.top = made_meanwhile

    assert table.snapshot().project == "shop"


# -- many at once -------------------------------------------------------------------------------


def racer(path, wins, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.racing", str(path), str(wins)],
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize("racers", [4, nightly(20)])
def test_of_processes_that_race_each_version_has_one_winner(tmp_path, racers):
    path = tmp_path / "archive"
    racing = [racer(path, 3) for _ in range(racers)]
    won = [int(line) for process in racing for line in process.communicate()[0].split()]

    state = ArchiveTable(place(path)).snapshot()
    assert [process.returncode for process in racing] == [0] * racers
    assert sorted(won) == list(range(1, 3 * racers + 1))
    assert state.version == state.round == 3 * racers
    assert len(state.files) == 3 * racers


def test_a_log_is_whole_after_each_kill_of_a_committing_process(tmp_path):
    path = tmp_path / "archive"
    told = 0
    for round in range(4):
        process = racer(path, 10_000)
        # Killed somewhere in the work after the n-th commit, which is a different place each time.
        for _ in range(1 + 7 * round):
            told = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0].splitlines()
        told = int(rest[-1]) if rest else told

        state = ArchiveTable(place(path)).snapshot()
        # What was told is there; one more may have been committed before it could be told.
        assert told <= state.version <= told + 1
        assert len(state.files) == state.version == state.round
        for file in state.files.values():
            assert (path / file.path).stat().st_size == file.bytes


# -- tidying up ---------------------------------------------------------------------------------


def test_each_row_lies_in_one_file(tmp_path):
    path = tmp_path / "archive"
    state = write_archive(path, [row("q:mail", f"{T}-0"), row("ch:main", f"{T}-0")])

    assert set(data_files(path)) == set(state.files)


def test_what_compaction_replaced_goes_after_the_grace(table, tmp_path):
    path = tmp_path / "archive"
    state = add(table, table.create("demo"))
    old = next(iter(state.files))
    add(table, state, removed=[old], operation=COMPACT)

    table.sweep(86_400)
    assert (path / old).exists()
    table.sweep(0)
    assert not (path / old).exists()


def test_a_grace_of_more_than_the_retention_is_refused(table):
    table.create("demo")

    with pytest.raises(UsageError, match="not between 0 and 86400 s"):
        table.sweep(86_401)


def test_an_archive_of_another_project_is_refused(table):
    table.create("demo")

    with pytest.raises(Refused, match="the project demo, not of other"):
        table.create("other")


@pytest.mark.slow
def test_hundreds_of_commits_leave_a_small_log_that_is_opened_fast(table, tmp_path, monkeypatch):
    # Nothing here survives a crash, and there are no data files: what is looked at is the log.
    monkeypatch.setattr(os, "fsync", lambda _file: None)
    monkeypatch.setattr(ArchiveTable, "_require_files", lambda *_words: None)
    state = table.create("demo")
    for round in range(1, 301):
        at, batch = T + 5000 * round, new_batch()
        files = [
            DataFile(
                file_path(kind, DATE, batch, os.urandom(6).hex()),
                *(kind, DATE, 200, 3100, at, at + 4999),
                (stream, stream),
            )
            for kind, stream in (("queue", "q:mail"), ("channel", "ch:main"))
        ]
        moved = {
            name: Position(f"{at + 4999}-7", 200 * round, 0, 200 * round, 0)
            for name in ("q:mail", "ch:main")
        }
        # Their files are compacted now and then, as they would be.
        if round % 90 == 0:
            table.replace(state, COMPACT, new_batch(), [], list(state.files))
        state = table.append(table.snapshot(), batch, files, moved)

    sizes = [each.stat().st_size for each in (tmp_path / "archive/_delta_log").iterdir()]
    took = []
    for _ in range(9):
        # Of a machine that does nothing else this is the time on the clock.
        began = time.process_time()
        opened = ArchiveTable(table.place).snapshot()
        took.append(time.process_time() - began)
    assert opened == state
    print(f"_delta_log: {sum(sizes):,} bytes; opened in {1000 * min(took):.1f} ms")  # noqa: T201
    assert sum(sizes) < 2_000_000
    assert min(took) < 0.05
