"""Where an archive may lie: directories, and buckets on a server that speaks S3."""

from __future__ import annotations

import errno
import os
import pickle
import uuid

import boto3
import pyarrow.dataset
import pytest

from agentbus.errors import AgentBusError, BackendUnavailable, ConfigError, NotFound, UsageError
from agentbus.pipeline.archives.delta_table import COMPACT, ArchiveTable
from agentbus.pipeline.archives.directory import told, trouble
from agentbus.pipeline.archives.files import archive_files
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.versions import CommitConflict
from tests.pipeline.archives import row, write_archive
from tests.pipeline.racing import T, add

SECRET = "wJalrXUtnFEMI"


@pytest.fixture
def s3(s3_server, monkeypatch):
    """The environment of a user of a server of S3, and a new bucket on it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    bucket = f"b-{uuid.uuid4().hex}"
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=bucket)
    return bucket


@pytest.fixture(params=["directory", "bucket"])
def at(request, tmp_path):
    """A place of each kind: the same tests hold for both."""
    if request.param == "directory":
        return place(tmp_path / "a")
    return place(f"s3a://{request.getfixturevalue('s3')}/some/where")


# -- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("/a/b", "file:///a/b"),
        ("/a b/50%/é#?", "file:///a b/50%/é#?"),
        ("file:///a/b%20c", "file:///a/b c"),
        ("file://localhost/a", "file:///a"),
        ("s3a://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket/a", "s3://bucket/a"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("az://container/a", "az://container/a"),
        ("s3a://bucket", "s3://bucket"),
    ],
)
def test_a_path_names_a_place(path, uri):
    assert str(place(path)) == uri


@pytest.mark.parametrize("path", ["/a/50%20", "a\\b", "file:///a%2520b"])
def test_a_path_that_the_library_would_take_for_another_is_refused(path):
    with pytest.raises(UsageError, match="rename the directory"):
        place(path)


def test_a_relative_path_is_of_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert str(place("a/b")) == f"file://{tmp_path}/a/b"


@pytest.mark.parametrize("path", ["", "hdfs://x/y", "s3a://", "file://host/x", "file://", "a\0b"])
def test_any_other_path_is_refused_with_what_is_supported(path):
    with pytest.raises(UsageError, match="give a path, file:///path, s3://bucket/prefix, gs://"):
        place(path)


def test_credentials_in_a_path_are_refused_and_not_repeated():
    with pytest.raises(UsageError) as refusal:
        place(f"s3a://AKIA:{SECRET}@bucket/x")

    assert SECRET not in str(refusal.value)


def test_an_option_of_storage_that_holds_a_secret_is_refused_and_not_repeated():
    for name in ("aws_secret_access_key", "AWS_ACCESS_KEY_ID", "AZURE_STORAGE_SAS_KEY", "token"):
        with pytest.raises(UsageError, match="AGENTBUS_STORAGE_FILE") as refusal:
            place("s3://bucket/x", {name: SECRET})
        assert SECRET not in str(refusal.value)


def test_secrets_come_from_a_file_that_nobody_else_can_read(s3, tmp_path, monkeypatch):
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    file = tmp_path / "storage"
    file.write_text(
        f"# of the team\nAWS_ACCESS_KEY_ID=AKIAEXAMPLE\naws_secret_access_key={SECRET}\n"
    )
    file.chmod(0o600)
    monkeypatch.setenv("AGENTBUS_STORAGE_FILE", str(file))
    at = place(f"s3://{s3}/x", {"AWS_ENDPOINT_URL": endpoint, "aws_region": "us-east-1"})

    state = write_archive(at, [row("q:mail", f"{T}-0")])

    assert ArchiveTable(at).snapshot() == state
    assert SECRET not in repr(at.target)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="other users may read"):
        place(f"s3://{s3}/x").read("x")


# -- both kinds ---------------------------------------------------------------------------------


def test_files_are_listed_written_moved_and_deleted(at):
    for name in ("a/1", "a/b/2", "ab/3"):
        at.write(name, b"x")
    at.write("a/1", b"yy")
    at.move("a/1", "a/c/moved")

    assert {entry.name: entry.size for entry in at.listing("a")} == {"a/b/2": 1, "a/c/moved": 2}
    assert at.sizes(["a/c/moved", "none", "a/b/2"]) == [2, None, 1]
    assert sorted(at.top()) == ["a", "ab"]
    at.delete("a/c/moved")
    at.delete("a/c/moved")
    at.discard("2")
    assert sorted(entry.name for entry in at.listing("")) == ["ab/3"]
    assert at.read("ab/3") == b"x"


def test_a_target_travels_to_tasks_and_names_the_same_files(at):
    at.write("kind=queue/x", b"data")

    system, root = pickle.loads(pickle.dumps(at.target)).filesystem()

    with system.open_input_stream(f"{root}/kind=queue/x") as file:
        assert file.read() == b"data"


def test_an_archive_is_kept_and_swept_in_either_place(at):
    rows = [row("q:mail", f"{T + n}-0", payload=str(n)) for n in range(10)]
    state = write_archive(at, rows, per_commit=3)
    table = ArchiveTable(place(str(at)))

    assert table.snapshot() == state
    assert state.rows == 10
    old = list(state.files)
    lost = "kind=queue/date=2025-11-20/00c0ffee-0.parquet"
    at.write(lost, b"")
    with pytest.raises(CommitConflict):
        add(ArchiveTable(at), ArchiveTable(at).snapshot(2))
    state = add(table, state, removed=old, operation=COMPACT)
    table.sweep(86_400)
    assert None not in at.sizes([lost, old[0]])
    table.sweep(0, round_seconds=0)

    names = {entry.name for entry in at.listing("") if "kind=" in entry.name}
    assert names == {*state.files, *state.own}


def test_the_files_of_an_archive_are_named_in_either_place(at):
    rows = [row("q:mail", f"{T + n}-0", payload="hi") for n in range(3)]
    write_archive(at, [*rows, row("ch:main", f"{T}-0")], per_commit=2)
    system, root = at.target.filesystem()

    def held(**wanted):
        above = at.target.uri().removesuffix(root)
        names = archive_files(str(at), **wanted)
        assert all(name.startswith(at.target.uri()) for name in names)
        names = [name.removeprefix(above) for name in names]
        return pyarrow.dataset.dataset(names, filesystem=system, partitioning="hive").to_table()

    assert sorted(held()["kind"].to_pylist()) == ["channel", "queue", "queue", "queue"]
    assert held(kinds=["channel"]).num_rows == 1
    assert held(version=1).num_rows == 2
    assert held(since=f"{T + 2}-0", kinds=["queue"])["id"].to_pylist() == [f"{T + 2}-0"]


def test_files_of_a_version_that_is_gone_are_not_named(at):
    state = write_archive(at, [row("q:mail", f"{T}-0")])
    table = ArchiveTable(at)
    add(table, state, removed=list(state.files), operation=COMPACT)
    table.sweep(0)

    with pytest.raises(NotFound, match=r"version 1 of .* is gone"):
        archive_files(at, version=1)


# -- what goes wrong is told --------------------------------------------------------------------


def test_a_bucket_that_is_not_there_is_told(s3):
    with pytest.raises(NotFound, match="the bucket does not exist"):
        ArchiveTable(place("s3a://no-such-bucket-here/x")).snapshot()


def test_a_server_that_cannot_be_reached_is_told_without_secrets(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")

    with pytest.raises(BackendUnavailable, match="cannot be reached") as failure:
        ArchiveTable(place(f"s3a://{s3}/x")).snapshot()

    assert SECRET not in f"{failure.value}{place(f's3a://{s3}')!r}{place(f's3a://{s3}').target!r}"


def test_missing_credentials_are_told(s3, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    with pytest.raises(ConfigError, match=r"permission denied|credentials"):
        ArchiveTable(place(f"s3a://{s3}/x")).snapshot()


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (errno.ENOSPC, AgentBusError, "no space left on device; free some space"),
        (errno.EACCES, ConfigError, "permission denied"),
        (errno.ENOTDIR, UsageError, "not a directory"),
        (errno.EIO, AgentBusError, "error"),
    ],
)
def test_what_the_operating_system_refuses_is_told(number, kind, said):
    refused = trouble("write", "/a/b", OSError(number, os.strerror(number)))

    assert type(refused) is kind
    assert str(refused).startswith("cannot write /a/b: ")
    assert said in str(refused)


def test_a_full_disk_is_told_in_a_sentence():
    if not os.path.exists("/dev/full"):
        pytest.skip("only Linux has a device that is always full")
    with pytest.raises(AgentBusError, match="no space left"):
        with told("write", "/dev/full"), open("/dev/full", "wb", 0) as file:
            file.write(b"x")


def test_a_name_that_is_too_long_is_told(tmp_path):
    with pytest.raises(UsageError, match="too long"):
        ArchiveTable(place(tmp_path / ("x" * 300))).create("demo")


def test_a_place_says_where_it_is():
    assert repr(place("s3a://b/p")) == "<Place s3://b/p>"
