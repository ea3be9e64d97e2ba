"""The Delta log beside an archive's own: what other engines read there, at each version."""

from __future__ import annotations

import json
import os
import threading

import pyarrow.compute as pc
import pyarrow.dataset
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from agentbus.errors import Unhealthy
from agentbus.pipeline.archives import delta_log, log as commits, log_files
from agentbus.pipeline.archives.delta import commit_text
from agentbus.pipeline.archives.delta_log import DeltaLog
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.log import Log, new_batch
from agentbus.pipeline.archives.places import Place
from agentbus.pipeline.archives.versions import APPEND, COMPACT, CommitConflict
from tests.pipeline import archives
from tests.pipeline.archives import commit_rows, row, write_archive
from tests.pipeline.racing import DATE, T, add
from tests.tiers import nightly


def some_place(request, tmp_path) -> Place:
    if request.param == "directory":
        return place(tmp_path / "a")
    return place(f"{request.getfixturevalue('s3').url}/some/where")


@pytest.fixture(params=["directory", "bucket"])
def each(request, tmp_path):
    """A place of each kind: the same tests hold for both."""
    return some_place(request, tmp_path)


@pytest.fixture(params=["directory", nightly("bucket")])
def at(request, tmp_path):
    """A directory, and nightly a bucket, too."""
    return some_place(request, tmp_path)


def table(at: Place, version: int | None = None) -> DeltaTable:
    """Open an archive as another engine does, at one of Delta's versions."""
    if at.target.scheme == "file":
        return DeltaTable(at.target.root, version=version)
    options = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    options |= {"AWS_ALLOW_HTTP": "true"}
    return DeltaTable(f"s3://{at.target.root}", version=version, storage_options=options)


def counted(at: Place, version: int | None = None) -> tuple[int, int]:
    """Return how many rows another engine counts, and what their payloads add up to."""
    rows = table(at, version).to_pyarrow_table(columns=["stream", "id", "payload"])
    ids = set(zip(rows["stream"].to_pylist(), rows["id"].to_pylist(), strict=True))
    assert len(ids) == rows.num_rows
    return rows.num_rows, sum(map(int, rows["payload"].to_pylist()))


def numbered(count: int, start: int = 0, stream: str = "q:mail"):
    numbers = range(start, start + count)
    return [row(stream, f"{T + n}-0", payload=str(n)) for n in numbers]


def delta_files(at: Place) -> list[str]:
    return sorted(entry.name.removeprefix("_delta_log/") for entry in at.listing("_delta_log"))


def often(monkeypatch, every: int = 10):
    """Have states at multiples of this version."""
    monkeypatch.setattr(log_files, "_EVERY", every)


# -- what others read ---------------------------------------------------------------------------


def test_each_version_is_one_of_a_delta_table_before_and_after_compaction(each):
    at = each
    state = write_archive(at, numbered(6) + numbered(6, stream="ch:main"), per_commit=4)
    sums = {version: counted(at, version - 1) for version in range(1, state.version + 1)}
    assert [sums[version][0] for version in sorted(sums)] == [0, 4, 8, 12]
    assert sums[state.version][1] == 2 * sum(range(6))

    log = Log(at)
    queues = [file.path for file in state.files.values() if file.kind == "queue"]
    compacted = commit_rows(log, state, numbered(6), COMPACT, removed=queues)
    log.settle(compacted, sweep=True)

    assert counted(at) == sums[state.version]
    for version, sum_ in sums.items():
        assert counted(at, version - 1) == sum_
    found = table(at)
    assert (found.version(), found.metadata().name) == (compacted.version - 1, "demo")
    assert found.metadata().partition_columns == ["kind", "date"]


def test_plain_parquet_readers_find_nothing_in_the_directory_and_too_much_by_a_glob(tmp_path):
    state = write_archive(tmp_path, numbered(6), per_commit=3)
    commit_rows(Log(place(tmp_path)), state, numbered(6), COMPACT, removed=list(state.files))

    assert pyarrow.dataset.dataset(tmp_path).count_rows() == 0
    assert pyarrow.dataset.dataset(list(map(str, tmp_path.rglob("*.parquet")))).count_rows() == 12
    assert table(place(tmp_path)).to_pyarrow_dataset().count_rows() == 6


def test_files_with_typed_columns_and_without_are_one_table(tmp_path):
    state = write_archive(tmp_path, numbered(2))
    typed = [{**one, "priority": "high", "bytes": 1} for one in numbered(2, start=2)]
    commit_rows(Log(place(tmp_path)), state, typed, typed=("bytes", "priority"))

    rows = DeltaTable(tmp_path).to_pyarrow_table().sort_by("time").to_pylist()

    assert [one["priority"] for one in rows] == [None, None, "high", "high"]
    assert {(one["kind"], str(one["date"])) for one in rows} == {("queue", DATE)}
    assert rows[0]["time"] == numbered(1)[0]["time"]


def test_others_skip_files_by_what_the_log_knows_of_them(tmp_path):
    state = write_archive(tmp_path, numbered(6), per_commit=3)
    first = next(iter(state.files))
    (tmp_path / "_data" / first).unlink()
    moment = numbered(5)[4]["time"]

    found = DeltaTable(tmp_path).to_pyarrow_table(filters=[("time", ">=", moment)])

    assert found.num_rows == 2


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_filters_find_rows_by_each_column(tmp_path, monkeypatch, from_checkpoint):
    if from_checkpoint:
        monkeypatch.setattr(log_files, "_EVERY", 3)
    write_archive(tmp_path, numbered(6) + numbered(6, stream="ch:main"), per_commit=6)
    rows = DeltaTable(tmp_path).to_pyarrow_dataset()

    for name, value, count in (
        ("payload", "3", 2),
        ("id", f"{T + 3}-0", 2),
        ("seq", 0, 12),
        ("stream", "q:mail", 6),
        ("kind", "channel", 6),
        ("queue", "mail", 6),
        ("time", numbered(4)[3]["time"], 2),
    ):
        assert rows.count_rows(filter=pc.field(name) == value) == count, name
    assert rows.count_rows(filter=pc.field("agent").is_null()) == 12
    assert rows.count_rows(filter=pc.field("priority").is_null()) == 12


def test_compaction_is_no_change_of_data(tmp_path):
    state = write_archive(tmp_path, numbered(2))
    log = Log(place(tmp_path))
    state = add(log, state, removed=list(state.files), operation=COMPACT)

    text = (tmp_path / "_delta_log" / f"{state.version - 1:020d}.json").read_text()

    changes = [each for line in text.splitlines() for each in json.loads(line).values()]
    assert [each["dataChange"] for each in changes[1:]] == [False, False]
    assert changes[1]["deletionTimestamp"] == changes[0]["timestamp"]


def test_other_engines_may_not_write(tmp_path):
    write_archive(tmp_path, numbered(2))
    found = DeltaTable(tmp_path)

    for change in (
        lambda: write_deltalake(found, found.to_pyarrow_table(), mode="append"),
        found.delete,
        found.optimize.compact,
    ):
        with pytest.raises(CommitFailedError, match="agentbus"):
            change()


@pytest.mark.parametrize("writers", [3, nightly(8)])
def test_no_reader_sees_half_a_commit_while_several_write(tmp_path, monkeypatch, writers):
    often(monkeypatch)
    at = place(tmp_path)
    Log(at).create("demo")
    over = threading.Event()
    seen: dict[int, set[tuple[int, int]]] = {}

    def read() -> None:
        while not over.is_set():
            found = table(at)
            seen.setdefault(found.version(), set()).add(counted(at, found.version()))

    def write(number: int) -> None:
        log = Log(at)
        for turn in range(12):
            # Of each version, a kind has two rows and another one.
            rows = numbered(2, 1000 * number + 10 * turn)
            rows += numbered(1, 1000 * number + 10 * turn, "ch:main")
            while True:
                state = log.open()
                old = [f.path for f in state.files.values() if f.rows == 2][:2]
                try:
                    if turn % 4 == 3 and len(old) == 2:
                        held = archives.rows_of(at, old)
                        state = commit_rows(log, state, held, COMPACT, removed=old)
                    commit_rows(log, state, rows)
                except CommitConflict:
                    continue
                break
            log.settle(log.open())

    reading = threading.Thread(target=read)
    writing = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in (reading, *writing):
        thread.start()
    for thread in writing:
        thread.join()
    over.set()
    reading.join()

    log = Log(at)
    newest = log.open()
    assert newest.rows == 3 * 12 * writers
    assert counted(at)[0] == newest.rows
    assert seen
    for version, found in seen.items():
        assert [rows for rows, _ in found] == [log.state(version + 1).rows]


# -- how it is written --------------------------------------------------------------------------


def test_a_twin_is_made_of_the_commit_alone(at):
    state = write_archive(at, numbered(4), per_commit=2)
    log = Log(at)

    for version in range(1, state.version + 1):
        text = commit_text(log.read(version), at.data)
        assert at.read(f"_delta_log/{version - 1:020d}.json") == text


@pytest.mark.parametrize("committing", [True, False])
def test_what_a_killed_writer_left_out_is_made_by_the_next(at, monkeypatch, committing):
    state = write_archive(at, numbered(2))
    held = {name: at.read(f"_delta_log/{name}") for name in delta_files(at)}
    with monkeypatch.context() as killed:
        killed.setattr(DeltaLog, "publish", lambda *_: None)
        for number in (2, 4):
            state = commit_rows(Log(at), state, numbered(2, number))
    assert table(at).version() == 1

    next_ = Log(at)
    if committing:
        state = commit_rows(next_, state, numbered(2, 6))
    else:
        next_.settle(state)

    assert table(at).version() == state.version - 1
    assert counted(at)[0] == state.rows
    assert {name: at.read(f"_delta_log/{name}") for name in held} == held


def test_a_delta_log_that_was_deleted_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(delta_log, "_MOST", 3)
    state = write_archive(tmp_path, numbered(9), per_commit=1)
    for each in (tmp_path / "_delta_log").iterdir():
        each.unlink()

    Log(place(tmp_path)).settle(state)

    assert counted(place(tmp_path)) == (9, sum(range(9)))
    assert DeltaTable(tmp_path).version() == state.version - 1


def test_a_checkpoint_holds_all_that_came_before(at, monkeypatch):
    often(monkeypatch)
    state = write_archive(at, numbered(13), per_commit=1)
    state = add(Log(at), state, removed=[next(iter(state.files))], operation=COMPACT)
    assert "00000000000000000009.checkpoint.parquet" in delta_files(at)
    for version in range(9):
        at.delete(f"_delta_log/{version:020d}.json")

    found = table(at)

    assert found.version() == state.version - 1
    assert found.metadata().name == "demo"
    assert {str(uri).rpartition("/")[2] for uri in found.file_uris()} == {
        path.rpartition("/")[2] for path in state.files
    }
    assert counted(at, 12)[0] == 12


def test_commits_and_checkpoints_go_when_no_version_needs_them(tmp_path, monkeypatch):
    often(monkeypatch, 3)
    monkeypatch.setattr(delta_log, "_SLOW", 0.0)
    at = place(tmp_path)
    state = write_archive(at, numbered(4), per_commit=1)
    for each in (tmp_path / "_delta_log").iterdir():
        os.utime(each, (1, 1))
    state = write_archive(at, numbered(34, 4), per_commit=1)

    left = delta_files(at)
    # Version 5 was replaced a moment ago; it is read from that of 3.
    assert left[:3] == [
        "00000000000000000002.checkpoint.parquet",
        "00000000000000000002.json",
        "00000000000000000003.json",
    ]
    checkpoints = [int(name[:20]) + 1 for name in left if "checkpoint." in name]
    assert checkpoints == [3, 30, 36, 39]
    assert counted(at, 4)[0] == 4
    assert counted(at)[0] == state.rows == 38


@pytest.mark.slow
def test_a_log_in_a_bucket_has_the_commits_of_a_day(s3, monkeypatch):
    often(monkeypatch)
    # Whatever is there is older than a day.
    monkeypatch.setattr(commits, "_KEPT", -5.0)
    at = place(f"{s3.url}/some/where")
    log = Log(at)
    state = log.create("demo")
    while state.version < 45:
        state = log.commit(state, APPEND, new_batch())

    names = {entry.name for entry in at.listing("_log")}
    assert names == {
        "_log/last_state",
        *(f"_log/{version:020d}.json" for version in range(30, 46)),
        *(f"_log/{version:020d}.state.json.zst" for version in (30, 40)),
    }
    assert Log(at).open() == state


def test_versions_without_their_files_are_not_offered(each):
    at = each
    state = write_archive(at, numbered(4), per_commit=2)
    log = Log(at)
    state = commit_rows(log, state, numbered(4), COMPACT, removed=list(state.files))

    log.settle(state, sweep=True, grace=0)

    assert [name for name in delta_files(at) if name[0] == "0"] == [
        f"{state.version - 1:020d}.checkpoint.parquet",
        f"{state.version - 1:020d}.json",
    ]
    assert counted(at) == (4, sum(range(4)))


def test_a_column_of_a_type_that_is_not_known_is_told(tmp_path):
    log = Log(place(tmp_path))
    log.create("demo")
    name = tmp_path / "_log" / f"{1:020d}.json"
    held = json.loads(name.read_text())
    name.write_text(json.dumps({**held, "columns": held["columns"] | {"x": "geometry"}}))
    (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()

    with pytest.raises(Unhealthy, match=r"type 'geometry', which .* does not know"):
        Log(place(tmp_path)).settle(Log(place(tmp_path)).open())
