"""Where an archive may lie: directories, and buckets on a server that speaks S3."""

from __future__ import annotations

import errno
import os
import pickle
import sys
import threading
import uuid

import boto3
import pyarrow.dataset
import pytest
from moto.server import ThreadedMotoServer

from agentbus.errors import AgentBusError, BackendUnavailable, ConfigError, NotFound, UsageError
from agentbus.pipeline.archives.bucket import Bucket
from agentbus.pipeline.archives.directory import told, trouble
from agentbus.pipeline.archives.files import archive_files
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.log import Log
from agentbus.pipeline.archives.versions import COMPACT, CommitConflict
from tests.pipeline.archives import row, write_archive
from tests.pipeline.racing import T, add

SECRET = "wJalrXUtnFEMI"


@pytest.fixture(scope="module")
def endpoint():
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint, monkeypatch):
    """The environment of a user of a server of S3, and a new bucket on it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
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
        ("/a b/c%20d/é#?", "file:///a b/c%20d/é#?"),
        ("file:///a/b%20c", "file:///a/b c"),
        ("file://localhost/a", "file:///a"),
        ("s3a://bucket/a/b/", "s3a://bucket/a/b"),
        ("s3://bucket/a", "s3a://bucket/a"),
        ("s3a://bucket", "s3a://bucket"),
    ],
)
def test_a_path_names_a_place(path, uri):
    assert str(place(path)) == uri


def test_a_relative_path_is_of_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert str(place("a/b")) == f"file://{tmp_path}/a/b"


@pytest.mark.parametrize(
    "path", ["", "hdfs://x/y", "gs://b/p", "s3a://", "file://host/x", "file://", "a\0b"]
)
def test_any_other_path_is_refused_with_what_is_supported(path):
    with pytest.raises(UsageError, match="give a path, file:///path or s3a://bucket/prefix"):
        place(path)


def test_credentials_in_a_path_are_refused_and_not_repeated():
    with pytest.raises(UsageError) as refusal:
        place(f"s3a://AKIA:{SECRET}@bucket/x")

    assert SECRET not in str(refusal.value)


# -- both kinds ---------------------------------------------------------------------------------


def test_a_file_is_created_once(at):
    assert at.create("_log/x", b"1")
    assert not at.create("_log/x", b"2")
    assert at.read("_log/x") == b"1"
    assert at.read("_log/y") is None


def test_of_many_who_create_a_file_one_does(at):
    begin, made = threading.Barrier(8), []

    def attempt(number):
        other = place(str(at))
        begin.wait()
        if other.create("_log/x", b"%d" % number):
            made.append(b"%d" % number)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert made == [at.read("_log/x")]


def test_files_are_listed_replaced_copied_and_deleted(at):
    for name in ("a/1", "a/b/2", "ab/3"):
        at.replace(name, b"x")
    at.replace("a/1", b"yy")
    at.copy("a/1", "a/copy")

    assert {entry.name: entry.size for entry in at.listing("a")} == {
        "a/1": 2,
        "a/b/2": 1,
        "a/copy": 2,
    }
    assert at.read_all(["a/1", "none", "a/copy"]) == [b"yy", None, b"yy"]
    assert at.sync("a/1") == 2
    assert at.sync("none") is None
    at.delete("a/1")
    at.delete("a/1")
    at.remove_tree("a/b")
    assert sorted(entry.name for entry in at.listing("")) == ["a/copy", "ab/3"]


def test_a_target_travels_to_tasks_and_names_the_same_files(at):
    at.replace("_data/x", b"data")

    system, root = pickle.loads(pickle.dumps(at.target)).filesystem()

    with system.open_input_stream(f"{root}/_data/x") as file:
        assert file.read() == b"data"


def test_an_archive_is_kept_and_settled_in_either_place(at):
    rows = [row("q:mail", f"{T + n}-0", payload=str(n)) for n in range(10)]
    state = write_archive(at, rows, per_commit=3)
    log = Log(place(str(at)))

    assert log.open() == state
    assert state.rows == 10
    old = list(state.files)
    lost = "kind=queue/date=2025-11-20/0000000002-00000000-0.parquet"
    at.replace(at.data(lost), b"")
    with pytest.raises(CommitConflict):
        add(Log(at), Log(at).state(2))
    state = add(log, state, removed=old, operation=COMPACT)
    log.settle(state, sweep=True)
    assert at.sync(at.data(lost)) is None
    assert at.sync(at.data(old[0])) is not None
    log.settle(state, sweep=True, grace=0)

    names = {entry.name for entry in at.listing("") if "kind=" in entry.name}
    assert names == {at.data(path) for path in state.files}


def test_the_files_of_an_archive_are_named_in_either_place(at):
    rows = [row("q:mail", f"{T + n}-0", payload="hi") for n in range(3)]
    write_archive(at, [*rows, row("ch:main", f"{T}-0")], per_commit=2)
    system, root = at.target.filesystem()

    def held(**wanted):
        names = [name.removeprefix("s3://") for name in archive_files(str(at), **wanted)]
        assert all(name.startswith(root) for name in names)
        return pyarrow.dataset.dataset(names, filesystem=system, partitioning="hive").to_table()

    assert sorted(held()["kind"].to_pylist()) == ["channel", "queue", "queue", "queue"]
    assert held(kinds=["channel"]).num_rows == 1
    assert held(version=2).num_rows == 2
    assert held(since=f"{T + 2}-0", kinds=["queue"])["id"].to_pylist() == [f"{T + 2}-0"]


def test_files_of_a_version_that_is_gone_are_not_named(at):
    state = write_archive(at, [row("q:mail", f"{T}-0")])
    log = Log(at)
    log.settle(add(log, state, removed=list(state.files), operation=COMPACT), sweep=True, grace=0)

    with pytest.raises(NotFound, match=r"version 2 of .* is gone"):
        archive_files(at, version=2)


# -- what goes wrong is told --------------------------------------------------------------------


def test_a_bucket_that_is_not_there_is_told(s3):
    with pytest.raises(NotFound, match="no such bucket"):
        Log(place("s3a://no-such-bucket-here/x")).open()


def test_a_server_that_cannot_be_reached_is_told_without_secrets(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")

    with pytest.raises(BackendUnavailable, match="cannot be reached") as failure:
        Log(place(f"s3a://{s3}/x")).open()

    assert SECRET not in f"{failure.value}{place(f's3a://{s3}')!r}{place(f's3a://{s3}').target!r}"


def test_missing_credentials_are_told(s3, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    with pytest.raises(ConfigError, match="no credentials"):
        Log(place(f"s3a://{s3}/x")).open()


def test_a_missing_extra_is_told(monkeypatch):
    monkeypatch.delitem(sys.modules, "agentbus.pipeline.archives.bucket")
    monkeypatch.setitem(sys.modules, "botocore", None)

    with pytest.raises(ConfigError, match=r"needs the extra s3.*agentbus-toolkit\[pipeline,s3\]"):
        place("s3a://bucket/x")


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
        Log(place(tmp_path / ("x" * 300))).create("demo")


def test_a_place_says_where_it_is():
    assert repr(Bucket("b", "p")) == "<Bucket s3a://b/p>"
