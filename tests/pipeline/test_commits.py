"""The commit log of an archive: what it says, who wins a version, and what kills leave."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from agentbus.errors import AgentBusError, ConfigError, NotFound, Refused, Unhealthy, UsageError
from agentbus.pipeline.archives import log as commits, log_files, packs, versions
from agentbus.pipeline.archives.delta import commit_text
from agentbus.pipeline.archives.files import archive_files
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.log import Log, new_batch
from agentbus.pipeline.archives.log_files import (
    commit_bytes,
    read_commit,
    read_state,
    state_bytes,
    state_name,
)
from agentbus.pipeline.archives.versions import (
    APPEND,
    COMPACT,
    FORMAT,
    CommitConflict,
    File,
    Position,
    StreamSpan,
    file_path,
)
from agentbus.pipeline.rows import schema
from tests.pipeline.archives import row, write_archive
from tests.pipeline.racing import DATE, T, add
from tests.tiers import nightly


@pytest.fixture
def log(tmp_path):
    return Log(place(tmp_path / "archive"))


# -- values -------------------------------------------------------------------------------------

texts = st.text(max_size=20)
numbers = st.integers(0, 2**63 - 1)
spans = st.builds(StreamSpan, numbers, texts, texts)
positions = st.dictionaries(
    texts, st.builds(Position, texts, numbers, numbers, numbers, numbers), max_size=3
)
paths = st.builds(
    file_path,
    st.sampled_from(schema.KINDS),
    st.dates().map(str),
    st.integers(0, 10**10 - 1),
    st.text("0123456789abcdef", min_size=8, max_size=8),
    st.text("aZ09_.-", min_size=1, max_size=9),
)


def data_file(path, *rest):
    kind, date, _ = path.split("/")
    return File(path, kind.removeprefix("kind="), date.removeprefix("date="), *rest)


files = st.builds(
    data_file,
    paths,
    *(numbers, numbers),
    st.dictionaries(texts, spans, max_size=3),
    *(numbers, numbers),
    st.lists(texts, max_size=3).map(tuple),
)


def commit_of(version, files=(), removed=(), positions=None, at_ms=T):
    from agentbus.core.clock import rfc3339

    at = rfc3339(at_ms / 1000, milliseconds=True)
    return versions.Commit(
        FORMAT, version, "9f2c01ab", APPEND, at, "host:1", "a", "demo", 1, tuple(files), tuple(removed),
        positions or {},
    )  # fmt: skip


@given(st.lists(files, max_size=3), st.lists(paths, max_size=3), positions)
def test_a_commit_is_read_as_it_was_written(held, removed, where):
    commit = commit_of(7, held, removed, where)

    assert read_commit(commit_bytes(commit), "x") == commit


@st.composite
def histories(draw):
    """Commits of an archive's life: files come and go, positions move, clocks jump."""
    alive, made = [], []
    for version in range(1, draw(st.integers(1, 12)) + 1):
        gone = draw(st.lists(st.sampled_from(alive), unique=True)) if alive else []
        new = [
            file_path("queue", DATE, version, "00000000", n) for n in range(draw(st.integers(0, 3)))
        ]
        held = [File(p, "queue", DATE, 1, 1, {"s": StreamSpan(1, "1-0", "1-0")}, 1, 1) for p in new]
        alive = [path for path in alive if path not in gone] + new
        at = T + draw(st.integers(-3, 3)) * 40_000_000
        made.append(commit_of(version, held, gone, draw(positions), at))
    return made


@given(histories(), st.sets(st.integers(1, 12)))
def test_a_state_is_the_same_from_whichever_written_state_one_starts(history, written):
    whole = versions.fold(versions.EMPTY, history)

    state = versions.EMPTY
    for commit in history:
        state = versions.fold(state, [commit])
        if commit.version in written:
            state = read_state(state_bytes(state), state_name(state))

    assert state == whole
    gone = {path for commit in history for path in commit.removed}
    assert set(whole.files) == {f.path for c in history for f in c.files} - gone


# -- reading and committing -----------------------------------------------------------------------


def test_an_archive_is_made_once_and_then_opened(log, tmp_path):
    made = log.create("demo")
    again = Log(place(tmp_path / "archive")).create("demo")

    assert made.version == 1
    assert again == made


def test_an_archive_of_another_project_is_refused(log):
    log.create("demo")

    with pytest.raises(Refused, match="the project demo, not of other"):
        log.create("other")


def test_a_version_that_is_taken_is_a_conflict_and_changes_nothing(log, tmp_path):
    state = log.create("demo")
    first = add(Log(place(tmp_path / "archive")), state)

    with pytest.raises(CommitConflict):
        add(log, state)

    assert log.open() == first


def test_a_state_is_read_through_any_number_of_commits(log, tmp_path):
    state = log.create("demo")
    for _ in range(120):
        state = add(log, state)

    fresh = Log(place(tmp_path / "archive"))

    assert fresh.open() == state
    assert len(list((tmp_path / "archive/_log").glob("*.state.json.zst"))) == 1
    for version in (1, 99, 100, 101, 119):
        assert len(fresh.state(version).files) == version - 1
    with pytest.raises(NotFound, match="has no version 122"):
        fresh.state(122)


def test_a_log_that_is_open_follows_many_commits_of_others(log, tmp_path):
    log.create("demo")
    other = Log(place(tmp_path / "archive"))
    state = other.open()
    for _ in range(110):
        state = add(other, state)

    assert log.open() == state


def test_a_file_that_is_not_there_or_not_whole_is_not_committed(log):
    state = log.create("demo")
    path = file_path("queue", DATE, 2, new_batch(), 0)
    file = File(path, "queue", DATE, 1, 10, {}, T, T)

    with pytest.raises(AgentBusError, match="is not there"):
        log.commit(state, APPEND, new_batch(), [file])
    log.place.replace(log.place.data(path), b"short")
    with pytest.raises(AgentBusError, match="is 5 bytes long, not 10"):
        log.commit(state, APPEND, new_batch(), [file])

    assert log.open() == state


def test_positions_are_the_last_that_were_committed(log):
    state = log.create("demo")
    state = add(log, state, positions={"a": Position("1-0", 1, 0, 1, 0)})
    state = add(log, state, positions={"b": Position("2-0", 2, 0, 1, 1)})
    state = add(log, state, positions={"a": Position("3-0", 3, 0, 3, 0)})

    assert dict(state.positions) == {
        "a": Position("3-0", 3, 0, 3, 0),
        "b": Position("2-0", 2, 0, 1, 1),
    }


# -- what is wrong is told ----------------------------------------------------------------------


def test_a_path_without_anything_is_no_archive(tmp_path):
    with pytest.raises(NotFound, match="there is no archive at"):
        Log(place(tmp_path / "nothing")).open()


@pytest.mark.parametrize("making", [False, True])
def test_a_path_with_foreign_parquet_is_no_archive(tmp_path, making):
    (tmp_path / "part-0.parquet").write_bytes(b"PAR1")
    log = Log(place(tmp_path))

    with pytest.raises(UsageError, match=r"not an archive of AgentBus: it holds 'part-0\.parquet'"):
        log.create("demo") if making else log.open()


def test_a_file_where_the_archive_should_be_is_told(tmp_path):
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(UsageError, match="not a directory"):
        Log(place(tmp_path / "file")).create("demo")


@pytest.mark.parametrize("content", [b"", b'{"format":1,"vers', b"[]", b'{"format":1}', b"\xff\0"])
def test_a_commit_that_a_bad_disk_made_unreadable_is_named(log, tmp_path, content):
    add(log, log.create("demo"))
    name = f"{2:020d}.json"
    (tmp_path / "archive/_log" / name).write_bytes(content)

    with pytest.raises(Unhealthy, match=name):
        Log(place(tmp_path / "archive")).open()


@pytest.mark.parametrize(
    "path",
    [
        "kind=channel/../../X",
        "kind=queue/date=2025-11-20/../../../../0000000002-00000000-0.parquet",
        "/etc/passwd",
        "kind=queue/date=2025-11-20/0000000002-00000000-0.parquet\n",
        "kind=queue/date=2025-11-20/0000000002-00000000-a/b.parquet",
        "kind=channel/date=2025-11-20/0000000002-00000000-0.parquet",
    ],
)
@pytest.mark.parametrize("where", ["files", "removed", "state"])
@pytest.mark.parametrize("many", [1, 1000])
def test_a_log_that_names_a_file_elsewhere_is_refused(
    log, tmp_path, path, where, many, monkeypatch
):
    monkeypatch.setattr(log_files, "_MANY", many)
    state = log.create("demo")
    made = [data_file(file_path("queue", DATE, 2, "00000000", 0), 1, 1, {}, T, T)]
    commit = msgspec.structs.replace(commit_of(2, made), archive=state.archive)
    spoilt, name = json.loads(commit_bytes(commit)), f"{2:020d}.json"
    if where == "removed":
        # One that is removed may be of any kind.
        path = path.replace("kind=channel/date", "kind=Channel/date")
        spoilt["removed"] = [path]
    else:
        spoilt["files"][0]["path"] = path
    data = json.dumps(spoilt).encode()
    if where == "state":
        (named,) = msgspec.convert(spoilt["files"], list[File])
        folded = versions.fold(state, [commit])
        data = state_bytes(dataclasses.replace(folded, files={path: named}))
        name = f"{2:020d}.state.json.zst"
    (tmp_path / "archive/_log" / name).write_bytes(data)

    with pytest.raises(Unhealthy, match="which AgentBus would not write"):
        Log(log.place).open()


@pytest.mark.parametrize(
    "link", ["_log", "_data", "_data/kind=queue", f"_data/kind=queue/date={DATE}"]
)
def test_a_directory_that_leads_elsewhere_is_refused_and_nothing_there_is_deleted(
    log, tmp_path, link
):
    state = add(log, log.create("demo"))
    log.settle(state)
    inside, outside = tmp_path / "archive" / link, tmp_path / "outside"
    inside.rename(outside)
    inside.symlink_to(outside)
    stray = outside / "0000000001-aaaaaaaa-0.parquet"
    stray.touch()

    with pytest.raises(Unhealthy, match="is a symbolic link"):
        Log(log.place).settle(Log(log.place).open(), grace=0)
    assert stray.exists()


@pytest.mark.parametrize(
    "file",
    [
        f"_data/kind=queue/date={DATE}/0000000001-aaaaaaaa-0.parquet",
        "_data/kind=queue/date=2001-01-01/deeper/0000000001-aaaaaaaa-0.parquet",
        f"_log/{3:020d}.json",
        "_log/last_state",
        f"_delta_log/{2:020d}.json",
    ],
)
def test_a_file_that_leads_elsewhere_is_refused(log, tmp_path, file):
    add(log, log.create("demo"))
    inside, outside = tmp_path / "archive" / file, tmp_path / "another archive's rows"
    outside.write_bytes(b"PAR1")
    inside.parent.mkdir(parents=True, exist_ok=True)
    inside.unlink(missing_ok=True)
    inside.symlink_to(outside)

    with pytest.raises(Unhealthy, match=f"{file} is a symbolic link"):
        archive_files(tmp_path / "archive")


@pytest.mark.parametrize("file", [f"{2:020d}.state.json.zst", f"{1000:020d}.commits.json.zst"])
def test_a_small_file_of_the_log_that_unpacks_to_much_is_refused(log, tmp_path, file, monkeypatch):
    monkeypatch.setattr(log_files, "_UNPACKED", 1 << 20)
    state = add(log, log.create("demo"))
    packed = pa.Codec("zstd").compress(bytes(8 << 20), asbytes=True)
    (tmp_path / "archive/_log" / file).write_bytes(packed)
    before = pa.total_allocated_bytes()

    with pytest.raises(Unhealthy, match=rf"{file} has \d+ bytes, and unpacked more than 1048576"):
        packs.Packs(log.place).read(5) if "commits" in file else Log(log.place).state(state.version)

    assert pa.total_allocated_bytes() - before < 4 << 20


# Of the newest one the Delta log alone still says that it was there.
@pytest.mark.parametrize("version", [2, 4])
def test_a_commit_that_is_missing_is_named(log, tmp_path, version):
    state = log.create("demo")
    for _ in range(3):
        state = add(log, state)
    name = f"{version:020d}.json"
    (tmp_path / "archive/_log" / name).unlink()

    with pytest.raises(Unhealthy, match=f"{name} is missing"):
        Log(place(tmp_path / "archive")).open()


def test_an_archive_without_its_newest_commit_goes_on_once_its_delta_log_is_deleted(log, tmp_path):
    state = add(log, log.create("demo"))
    add(log, state)
    (tmp_path / "archive/_log" / f"{3:020d}.json").unlink()
    shutil.rmtree(tmp_path / "archive/_delta_log")

    later = Log(log.place)
    made = add(later, later.open())

    assert made.version == 3
    assert f'"agentbusBatch":"{made.recent[3]}"' in (
        (tmp_path / "archive/_delta_log" / f"{2:020d}.json").read_text()
    )


def test_a_planted_commit_of_a_huge_version_is_not_waited_for(log, tmp_path):
    add(log, log.create("demo"))
    (tmp_path / "archive/_log" / f"{'9' * 20}.json").touch()

    with pytest.raises(Unhealthy, match=f"{3:020d}.json is missing"):
        Log(place(tmp_path / "archive")).open()


def test_a_log_of_a_newer_format_is_told(log, tmp_path):
    log.create("demo")
    path = tmp_path / "archive/_log" / f"{1:020d}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))

    with pytest.raises(ConfigError, match="format 2, and this version of AgentBus knows 1"):
        Log(place(tmp_path / "archive")).open()


def test_two_archives_mixed_into_one_are_told(log, tmp_path):
    log.create("demo")
    other = Log(place(tmp_path / "other"))
    add(other, other.create("demo"))
    name = f"_log/{2:020d}.json"
    shutil.copy(tmp_path / "other" / name, tmp_path / "archive" / name)

    with pytest.raises(Unhealthy, match="version 2 belongs to another archive"):
        Log(place(tmp_path / "archive")).open()


# -- many at once -------------------------------------------------------------------------------


def racer(path, wins, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.racing", str(path), str(wins)],
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize("racers", [8, nightly(20)])
def test_of_processes_that_race_each_version_has_one_winner(tmp_path, racers):
    path = tmp_path / "archive"
    racing = [racer(path, 3) for _ in range(racers)]
    won = [int(line) for process in racing for line in process.communicate()[0].split()]

    state = Log(place(path)).open()
    assert [process.returncode for process in racing] == [0] * racers
    assert sorted(won) == list(range(2, 3 * racers + 2))
    assert state.version == 3 * racers + 1
    assert len(state.files) == 3 * racers


def test_a_log_is_whole_after_each_kill_of_a_committing_process(tmp_path):
    path = tmp_path / "archive"
    told = 0
    for round in range(6):
        process = racer(path, 10_000)
        # Killed somewhere in the work after the n-th commit, which is a different place each time.
        for _ in range(1 + 7 * round):
            told = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0].splitlines()
        told = int(rest[-1]) if rest else told

        state = Log(place(path)).open()
        # What was told is there; one more may have been committed before it could be told.
        assert told <= state.version <= told + 1
        assert len(state.files) == state.version - 1
        for file in state.files.values():
            assert (path / "_data" / file.path).stat().st_size == file.bytes
        # Its twins in the Delta log are whole, too, but for that of the last version at most.
        assert twins(path) in (state.version - 1, state.version)
    log = Log(place(path))
    log.settle(log.open())
    assert twins(path) == log.open().version


def twins(path):
    """Return how many commits the Delta log has, each of which is whole, and none is missing."""
    log = Log(place(path))
    found = sorted((path / "_delta_log").glob("*.json"))
    assert [int(each.stem) for each in found] == list(range(len(found)))
    for version, each in enumerate(found, 1):
        assert each.read_bytes() == commit_text(log.read(version), log.place.data)
    return len(found)


# -- tidying up ---------------------------------------------------------------------------------


def aged(path, seconds):
    then = time.time() - seconds
    for found in path.rglob("*"):
        os.utime(found, (then, then))


def test_each_row_lies_in_one_file(tmp_path):
    path = tmp_path / "archive"
    state = write_archive(path, [row("q:mail", f"{T}-0"), row("ch:main", f"{T}-0")])

    there = {str(p.relative_to(path / "_data")) for p in path.rglob("*.parquet")}
    assert there == set(state.files)
    assert {p.stat().st_nlink for p in path.rglob("*.parquet")} == {1}


def often(monkeypatch, every=10):
    """Have states at multiples of this version."""
    monkeypatch.setattr(log_files, "_EVERY", every)


def test_files_of_a_lost_attempt_go_and_those_of_one_that_may_win_stay(log, tmp_path):
    path = tmp_path / "archive/_data"
    state = add(log, log.create("demo"))
    lost = file_path("queue", DATE, state.version, "00000000", 0)
    open_ = file_path("queue", DATE, state.version + 1, "00000000", 0)
    for name in (lost, open_):
        (path / name).write_bytes(b"")

    log.settle(state)

    assert not (path / lost).exists()
    assert (path / open_).exists()


def test_what_compaction_replaced_goes_after_the_grace(log, tmp_path):
    path = tmp_path / "archive/_data"
    state = add(log, log.create("demo"))
    old = next(iter(state.files))
    state = add(log, state, removed=[old], operation=COMPACT)

    log.settle(state, sweep=True)
    assert (path / old).exists()
    log.settle(state, sweep=True, grace=0)
    assert not (path / old).exists()


def test_a_grace_of_more_than_a_day_is_refused(log):
    with pytest.raises(UsageError, match="not between 0 and a day"):
        log.settle(log.create("demo"), grace=86_401)


def test_half_written_files_of_killed_writers_go(log, tmp_path):
    state = log.create("demo")
    (tmp_path / "archive/_log/.x.json.abc.tmp").write_bytes(b"{")
    log.settle(state, sweep=True)
    assert (tmp_path / "archive/_log/.x.json.abc.tmp").exists()

    aged(tmp_path / "archive", 4000)
    log.settle(state, sweep=True)

    assert not (tmp_path / "archive/_log/.x.json.abc.tmp").exists()


def test_what_the_last_two_states_replace_goes_after_a_day(log, tmp_path, monkeypatch):
    often(monkeypatch)
    path = tmp_path / "archive"
    state = log.create("demo")
    while state.version < 29:
        state = add(log, state)
    aged(path, 90_000)
    state = add(log, state)

    names = sorted(p.name for p in (path / "_log").glob("*.json*"))
    assert names[:2] == [f"{20:020d}.json", f"{20:020d}.state.json.zst"]
    assert Log(place(path)).open() == state


def test_a_version_can_be_read_until_it_was_replaced_a_day_ago(log, tmp_path, monkeypatch):
    often(monkeypatch)
    path = tmp_path / "archive"
    state = log.create("demo")
    while state.version < 15:
        state = add(log, state)
    aged(path, 90_000)
    while state.version < 60:
        state = add(log, state)

    # The last of the old ones was replaced a moment ago.
    assert Log(place(path)).state(15).version == 15
    assert len(Log(place(path)).state(16).files) == 15
    with pytest.raises(Unhealthy, match="missing"):
        Log(place(path)).state(9)


def test_states_are_few_however_many_versions_there_are(log, tmp_path, monkeypatch):
    often(monkeypatch, 3)
    path = tmp_path / "archive"
    state = log.create("demo")
    while state.version < 105:
        state = add(log, state)

    states = sorted(int(p.name[:20]) for p in (path / "_log").glob("*.state.json.zst"))
    assert states == [30, 60, 90, 102, 105]
    for version in (1, 29, 31, 75, 91, 103):
        assert Log(place(path)).state(version).version == version


def test_a_large_archive_has_a_state_less_often(monkeypatch):
    files = dict.fromkeys(map(str, range(20_001)))
    small = dataclasses.replace(versions.EMPTY, format=FORMAT)
    large = dataclasses.replace(small, files=files)

    assert [log_files.interval(state) for state in (small, large)] == [100, 200]


@pytest.fixture
def packed(log, tmp_path, monkeypatch):
    """An archive whose commits up to 40 are packed, ten in a file."""
    often(monkeypatch, 2)
    monkeypatch.setattr(packs, "_EACH", 10)
    state = log.create("demo")
    while state.version < 61:
        state = add(log, state)
    return state


def test_old_commits_are_packed_and_keep_their_names(packed, log, tmp_path):
    path = tmp_path / "archive"
    sizes = {int(p.name[:20]): p.stat().st_size for p in (path / "_log").glob("*[0-9].json")}

    assert sorted(sizes) == list(range(1, 62))
    assert sorted(version for version, size in sizes.items() if not size) == list(range(1, 51))
    assert len(list((path / "_log").glob("*.commits.json.zst"))) == 5
    for version in (1, 5, 10, 11, 39, 50, 55, 61):
        assert Log(place(path)).state(version).version == version
        assert len(Log(place(path)).state(version).files) == version - 1
        assert Log(place(path)).read(version).version == version
    with pytest.raises(CommitConflict):
        add(log, Log(place(path)).state(20))


def test_packing_that_was_killed_is_completed(log, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    often(monkeypatch, 2)
    monkeypatch.setattr(packs, "_EACH", 10)
    state = log.create("demo")
    while state.version < 19:
        state = add(log, state)
    with monkeypatch.context() as once:
        once.setattr(log.place, "blank", killed)
        with pytest.raises(KeyboardInterrupt):
            add(log, state)
    path = tmp_path / "archive"
    log = Log(place(path))
    state = log.open()
    assert (path / "_log" / f"{10:020d}.commits.json.zst").exists()
    assert len(log.state(5).files) == 4

    while state.version < 41:
        state = add(log, state)

    assert not (path / "_log" / f"{5:020d}.json").stat().st_size
    assert len(Log(place(path)).state(5).files) == 4


@pytest.mark.parametrize("content", [None, b"no zstd"])
def test_a_pack_that_is_lost_is_told_of_its_commits(packed, tmp_path, content):
    pack = tmp_path / "archive/_log" / f"{10:020d}.commits.json.zst"
    pack.unlink() if content is None else pack.write_bytes(content)

    assert Log(place(tmp_path / "archive")).open() == packed
    name = f"{1:020d}.json" if content is None else pack.name
    with pytest.raises(Unhealthy, match=f"{name} cannot be read"):
        Log(place(tmp_path / "archive")).state(5)


@pytest.mark.parametrize(
    "said", [b"", b"\xff", b"_log/00000000000000000090.state.json.zst", b"../x"]
)
def test_a_wrong_word_about_the_newest_state_does_no_harm(log, tmp_path, monkeypatch, said):
    often(monkeypatch)
    state = log.create("demo")
    while state.version < 25:
        state = add(log, state)
    (tmp_path / "archive/_log/last_state").write_bytes(said)

    assert Log(place(tmp_path / "archive")).open() == state


def test_a_commit_into_a_hole_that_tidying_left_is_a_conflict(log, tmp_path, monkeypatch):
    often(monkeypatch)
    state = log.create("demo")
    other = Log(place(tmp_path / "archive"))
    newest = other.open()
    while newest.version < 29:
        newest = add(other, newest)
    aged(tmp_path / "archive", 90_000)
    newest = add(other, newest)
    # More than half a day went by for the writer that planned on version 1.
    now = commits._now()
    monkeypatch.setattr(commits, "_now", lambda: now + 50_000)

    with pytest.raises(CommitConflict):
        add(log, state)

    assert not (tmp_path / "archive/_log" / f"{2:020d}.json").exists()
    assert Log(place(tmp_path / "archive")).open() == newest
    assert log.open() == newest


def test_an_archive_that_another_makes_at_this_moment_is_not_taken_for_foreign(log, tmp_path):
    listing = log.place.listing

    def made_meanwhile(prefix, after=""):
        if prefix == "":
            Log(place(tmp_path / "archive")).create("shop")
        return listing(prefix, after)

    log.place.listing = made_meanwhile

    assert log.open().project == "shop"


@pytest.mark.slow
def test_ten_thousand_commits_leave_a_small_log_that_is_opened_fast(log, tmp_path, monkeypatch):
    # Nothing here survives a crash, and there are no data files: what is looked at is the log.
    monkeypatch.setattr(os, "fsync", lambda _file: None)
    monkeypatch.setattr(log.place, "sync", lambda _name: 3100)
    state = log.create("demo")
    for version in range(2, 10_002):
        at, batch = T + 5000 * version, new_batch()
        held = [
            File(
                file_path(kind, DATE, version, batch, os.urandom(6).hex()),
                *(kind, DATE, 200, 3100),
                {stream: StreamSpan(200, f"{at}-0", f"{at + 4999}-7")},
                *(at, at + 4999),
            )
            for kind, stream in (("queue", "q:mail"), ("channel", "ch:main"))
        ]
        moved = {
            name: Position(f"{at + 4999}-7", 200 * version, 0, 200 * version, 0)
            for name in ("q:mail", "ch:main")
        }
        state = log.commit(state, APPEND, batch, held, positions=moved)

    sizes = [each.stat().st_size for each in (tmp_path / "archive/_log").iterdir()]
    took = []
    for _ in range(9):
        # Of a machine that does nothing else this is the time on the clock.
        began = time.process_time()
        found = Log(log.place).open()
        took.append(time.process_time() - began)
    assert found == state
    assert len(found.files) == 20_000
    print(f"_log: {sum(sizes):,} bytes; opened in {1000 * min(took):.1f} ms")  # noqa: T201
    assert sum(sizes) < 20_000_000
    assert min(took) < 0.05
