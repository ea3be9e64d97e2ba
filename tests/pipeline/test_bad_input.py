"""What is asked of the pipeline's verbs and cannot be: a sentence, an exit code, nothing half-done."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess

import pyarrow as pa
import pyarrow.parquet
import pytest

import agentbus
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.reader import read
from tests.disks import small_disk
from tests.pipeline.archives import write_archive
from tests.pipeline.streams import archived
from tests.pipeline.talk import said, task

DAY = 86_400_000
ROWS = [said("ada", 0), *(task("mail", 1000 * n, "ada") for n in range(1, 6))]
# What only a program's own words look like, and no sentence of ours.
_INSIDES = re.compile(
    r"Traceback|^\s+at |\.java:|org\.apache|py4j|Exception in thread", re.MULTILINE
)


@pytest.fixture
def ask(ask):
    """Run a verb in this process; returns its code, stdout and stderr, which hold no one's insides."""

    def _ask(*words: object):
        code, out, err = ask(*words)
        assert not _INSIDES.search(err), err
        assert "failed unexpectedly" not in err, err
        return code, out, err

    return _ask


@pytest.fixture
def spark_ask(spark, ask, monkeypatch):
    """The same on the tests' own Spark."""
    monkeypatch.setattr(type(spark), "stop", lambda _self: None)
    return ask


@pytest.fixture
def archive(tmp_path, project):
    """A small archive of a project."""
    path = tmp_path / "bus"
    write_archive(path, ROWS, project, per_commit=3)
    return path


def files(path: pathlib.Path) -> dict[str, bytes]:
    """Return all that lies in a directory, but for locks."""
    return {
        str(each.relative_to(path)): each.read_bytes()
        for each in sorted(path.rglob("*"))
        if each.is_file() and each.name != ".turn"
    }


def newest(path: pathlib.Path) -> pathlib.Path:
    """Return the last commit of an archive."""
    return max((path / "_delta_log").glob("*.json"))


ALL = [
    ["archive", "status"],
    ["archive", "release"],
    ["archive", "verify"],
    ["archive", "compact"],
    ["report", "tasks"],
    ["replay"],
]
_NEWER = {
    "format": [('"minReaderVersion":1', '"minReaderVersion":99')],
    "schema": [('"agentbus.schema":"1"', '"agentbus.schema":"99"')],
}
each_verb = pytest.mark.parametrize("words", ALL, ids=" ".join)


@each_verb
def test_a_path_without_an_archive_is_told(ask, no_spark, tmp_path, words):
    code, out, err = ask(*words, tmp_path / "none")

    assert (code, out) == (5, "")
    assert "there is no archive at" in err
    assert not (tmp_path / "none").exists()


@each_verb
def test_a_directory_of_other_files_is_no_archive(ask, no_spark, tmp_path, words):
    pa.parquet.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")

    code, out, err = ask(*words, tmp_path)

    assert (code, out) == (2, "")
    assert "is not an archive of AgentBus: it holds 'other.parquet'" in err
    assert list(files(tmp_path)) == ["other.parquet"]


def test_archiving_into_a_directory_of_other_files_is_refused(spark_ask, tmp_path):
    pa.parquet.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")

    code, out, err = spark_ask("archive", tmp_path)

    assert (code, out) == (2, "")
    assert "is not an archive of AgentBus" in err
    assert list(files(tmp_path)) == ["other.parquet"]


@each_verb
def test_a_commit_that_was_cut_off_is_named(ask, no_spark, archive, words):
    last = newest(archive)
    last.write_bytes(last.read_bytes()[:100])
    before = files(archive)

    code, out, err = ask(*words, archive)

    assert (code, out) == (6, "")
    assert f"the log of file://{archive} cannot be read" in err
    assert files(archive) == before


@pytest.mark.parametrize(
    ("words", "field"),
    # Who tells how far an archive is reads no rows, and replay looks at them when Spark does.
    [*((words, "format") for words in ALL), *((words, "schema") for words in ALL[2:-1])],
)
def test_an_archive_of_a_newer_version_is_told(ask, no_spark, archive, words, field):
    first = archive / "_delta_log" / f"{0:020d}.json"
    text = first.read_text()
    for old, new in _NEWER[field]:
        assert old in text
        text = text.replace(old, new)
    first.write_text(text)

    found, out, err = ask(*words, archive)

    assert (found, out) == (2, "")
    assert "pip install --upgrade" in err


@pytest.mark.parametrize("missing", [True, False], ids=["missing", "cut off"])
def test_a_data_file_that_is_broken_is_named(spark_ask, archive, missing):
    name = next(name for name in ArchiveTable(place(archive)).snapshot().files if "queue" in name)
    broken = archive / name
    if missing:
        broken.unlink()
    else:
        broken.write_bytes(broken.read_bytes()[:-20])

    for words in (
        ["archive", "verify", archive],
        ["archive", "compact", archive, "--before", "2999-01-01"],
        ["report", "tasks", archive],
        ["replay", archive],
    ):
        code, out, err = spark_ask(*words)

        assert (code, out) == (6, ""), (words, err)
        assert broken.name in err
    # These do not look into files that are committed.
    assert [spark_ask(*words, archive)[0] for words in (["archive"], ["archive", "status"])] == [
        0,
        0,
    ]


@pytest.mark.parametrize(
    ("words", "option"),
    [(["archive", "compact"], "--before"), (["report", "tasks"], "--since"), (["replay"], "--to")],
)
def test_a_time_that_is_none_is_told_before_spark_starts(ask, no_spark, archive, words, option):
    code, out, err = ask(*words, archive, option, "the other day")

    assert (code, out) == (2, "")
    assert "the other day" in err


@pytest.mark.parametrize(
    "where", ["payload LIKE", "no_such_column = 1", "1", "payload = 'a' ; DROP"]
)
def test_sql_that_cannot_be_is_told(spark_ask, archive, where):
    code, out, err = spark_ask("replay", archive, "--where", where)

    assert (code, out) == (2, "")
    assert len(err.splitlines()) <= 2


def test_a_server_that_cannot_be_reached_is_told_and_nothing_is_made(spark_ask, tmp_path, archive):
    before = files(archive)
    gone = ("--url", "redis://:opensesame@127.0.0.1:1/0", "--deadline", "0.2")

    for words in (
        ["archive", tmp_path / "new"],
        ["archive", archive],
        ["archive", "status", archive],
        ["archive", "verify", archive],
        ["replay", archive],
    ):
        code, out, err = spark_ask(*words, *gone)
        assert (code, out) == (1, ""), (words, err)
        assert "127.0.0.1:1" in err
        assert "opensesame" not in err
    assert files(archive) == before


def test_an_archive_of_another_project_is_refused(spark_ask, archive):
    before = files(archive)

    code, out, err = spark_ask("archive", archive, "--project", "elsewhere")

    assert (code, out) == (4, "")
    assert "is the archive of the project" in err
    assert files(archive) == before


@pytest.mark.parametrize(
    "words", [["archive", "status"], ["archive", "verify"], ["archive", "release"]], ids=" ".join
)
def test_comparing_with_another_projects_streams_is_refused(spark_ask, archive, words):
    code, out, err = spark_ask(*words, archive, "--project", "elsewhere")

    assert (code, out) == (4, ""), (out, err)
    assert "is the archive of the project" in err


@pytest.mark.parametrize("ms", [0, 32_472_144_000_000])
@pytest.mark.slow
def test_a_clock_that_is_wrong_elsewhere_does_no_harm(spark_ask, valkey, project, tmp_path, ms):
    path = tmp_path / "bus"
    for n in (5, 6):
        valkey.ask("XADD", f"{project}:q:mail", f"{n}-1", "payload", "1")
        assert spark_ask("archive", path)[0] == 0
        last = newest(path)
        last.write_text(re.sub(r'"(timestamp|\w+Time\w*)":\d+', rf'"\1":{ms}', last.read_text()))

    assert spark_ask("archive", "compact", path, "--before", "1970-01-02")[0] == 0
    valkey.ask("XADD", f"{project}:q:mail", "7-1", "payload", "1")
    assert spark_ask("archive", path)[0] == 0

    assert spark_ask("archive", "verify", path)[0] == 0
    assert sorted(entry_id for _, entry_id in archived(str(path))) == ["5-1", "6-1", "7-1"]


# -- names --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "of a team",
        'it\'s "so"',
        "a*b?[c]{d,e}",
        "Größe-日本",
        "50% #x=y&z",
        ".hidden",
        "_delta_log",
    ],
)
def test_any_path_holds_an_archive(spark_ask, spark, valkey, project, tmp_path, name):
    path = tmp_path / name / "bus"
    valkey.ask("XADD", f"{project}:q:mail", "5-1", "payload", "1")
    assert spark_ask("archive", path)[0] == 0
    valkey.ask("XADD", f"{project}:q:mail", "6-1", "payload", "2")
    assert spark_ask("archive", path)[0] == 0

    assert spark_ask("archive", "compact", path, "--before", "1970-01-02")[0] == 0
    code, out, _ = spark_ask("archive", "verify", path, "--json")

    assert code == 0, out
    assert [row.id for row in read(spark, str(path)).orderBy("time").collect()] == ["5-1", "6-1"]
    assert sorted(entry_id for _, entry_id in archived(str(path))) == ["5-1", "6-1"]
    assert spark_ask("archive", "status", f"file://{path}".replace("%", "%25"))[0] == 0


QUEUES = ["a%:/*b", "100 %", "é" * 128, "q:{x}?", "'; DROP TABLE x; --", "..", "a\\b`c`"]


@pytest.mark.slow
def test_hostile_names_and_entries_come_through_whole(spark_ask, spark, valkey, project, tmp_path):
    project = f"{project}:a.b-c_d"
    with agentbus.connect(valkey.url, project=project, agent="ada") as bus:
        expected = [(name, bus.queue(name).publish(name).partition("@")[0]) for name in QUEUES]
        huge = "x" * ((256 << 10) - 2)
        large = bus.queue("large")
        for n in range(200):
            large.publish(huge)
            large.publish(n)
    words = [word for n in range(500) for word in (f"field {n}", f"value {n}")]
    many = valkey.ask("XADD", f"{project}:q:many", "*", *words).decode()
    path = tmp_path / "bus"

    code, out, err = spark_ask("archive", path, "--project", project, "--json")

    assert (code, err) == (0, ""), err
    assert json.loads(out.splitlines()[0])["lost"] == 0
    rows = read(spark, str(path), kinds=["queue"])
    found = [
        tuple(r)
        for r in rows.where("queue NOT IN ('large', 'many')").select("queue", "id").collect()
    ]
    assert sorted(found) == sorted(expected)
    sizes = rows.where("queue = 'large'").selectExpr("length(payload) AS n").groupBy("n").count()
    assert sizes.where(f"n = {len(huge) + 2}").collect()[0]["count"] == 200
    (held,) = rows.where("queue = 'many'").select("id", "payload").collect()
    assert held.id == many
    assert json.loads(held.payload) == {f"field {n}": f"value {n}" for n in range(500)}
    for words in (
        ["archive", "verify", path, "--project", project],
        ["archive", "compact", path, "--before", "2999-01-01"],
        ["report", "tasks", path],
        ["replay", path, "--to-queue", "again", "--project", project],
        ["archive", "verify", path, "--project", project],
    ):
        code, out, err = spark_ask(*words)
        assert code == 0, (words, out, err)


# -- disks --------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    """A small disk, where this user may mount one."""
    with small_disk(tmp_path / "disk", "4m") as path:
        yield path


def fill_up(disk: pathlib.Path, leave: int) -> pathlib.Path:
    """Leave so many bytes of a disk free."""
    filler = disk / "filler"
    room = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    filler.write_bytes(b"\0" * max(0, room - leave))
    return filler


@pytest.mark.slow
def test_a_full_disk_is_told_and_with_room_all_goes_on(spark_ask, spark, valkey, project, disk):
    for n in range(1, 4):
        valkey.ask("XADD", f"{project}:q:mail", f"{n}-1", "payload", os.urandom(90_000).hex())
    path = disk / "bus"
    assert spark_ask("archive", path)[0] == 0
    for n in range(4, 7):
        valkey.ask("XADD", f"{project}:q:mail", f"{n}-1", "payload", os.urandom(90_000).hex())
    before = files(path)
    for leave in (0, 4096, 40_000):
        filler = fill_up(disk, leave)

        code, out, err = spark_ask("archive", path)

        assert (code, out) == (1, "")
        assert "space" in err
        assert files(path) == before
        filler.unlink()
    assert spark_ask("archive", path)[0] == 0
    before = files(path)
    filler = fill_up(disk, 20_000)

    code, out, err = spark_ask("archive", "compact", path, "--before", "1970-01-02")

    assert (code, out) == (1, "")
    assert "space" in err
    assert files(path) == before
    filler.unlink()
    assert spark_ask("archive", "compact", path, "--before", "1970-01-02")[0] == 0
    assert spark_ask("archive", "verify", path)[0] == 0
    assert spark_ask("report", "flags", path, "--html", disk / "page.html")[0] == 0


@pytest.mark.slow
def test_a_disk_that_may_only_be_read_is_told(spark_ask, valkey, project, disk):
    valkey.ask("XADD", f"{project}:q:mail", "1-1", "payload", "1")
    path = disk / "bus"
    assert spark_ask("archive", path)[0] == 0
    valkey.ask("XADD", f"{project}:q:mail", "2-1", "payload", "1")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)

    for words in (
        ["archive", path],
        ["archive", disk / "other"],
        ["archive", "compact", path, "--before", "1970-01-02"],
    ):
        code, out, err = spark_ask(*words)
        assert (code, out) == (2, ""), err
        assert "read-only file system" in err
    # Who only reads needs no more.
    for words in (
        ["archive", "verify", path],
        ["archive", "status", path],
        ["report", "tasks", path],
    ):
        assert spark_ask(*words)[0] == 0
