"""An archive in a bucket: made, read, compacted, verified, and raced for; no secret leaves it."""

from __future__ import annotations

import contextlib
import io
import threading

import pytest

from agentbus.commands._main import run
from agentbus.errors import NotFound
from agentbus.pipeline.archives.archiver import Archiver
from agentbus.pipeline.archives.compaction import compact
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.reader import read
from agentbus.pipeline.archives.verify import status, verify
from tests.pipeline import clusters

DAY = 86_400_000
SECRETS = (clusters.S3_SECRET, clusters.S3_KEY)


@pytest.fixture
def fill(valkey, project):
    """Return a function that adds entries with chosen ids to a stream."""

    def _fill(stream: str, ids) -> None:
        for entry_id in ids:
            valkey.ask("XADD", f"{project}:{stream}", entry_id, "payload", f'"{entry_id}"')

    return _fill


@pytest.fixture
def path(s3):
    return f"{s3.url}/of a team/bus"


@pytest.fixture
def archive(spark, settings, path):
    """Return a function that archives what there is now, and returns how many rows that were."""

    def _archive() -> int:
        rounds: list = []
        with Archiver(spark, settings, path) as archiver:
            archiver.run(on_round=rounds.append)
        return sum(done.rows for done in rounds)

    return _archive


def names(s3):
    """Return the bucket's objects."""
    listed = s3.client.list_objects_v2(Bucket=s3.bucket)
    # pyarrow leaves markers of folders behind.
    return sorted(
        found["Key"] for found in listed.get("Contents", ()) if not found["Key"].endswith("/")
    )


def ids(frame):
    return sorted((row.stream, row.id) for row in frame.select("stream", "id").collect())


@pytest.mark.slow
def test_an_archive_in_a_bucket_is_exact_before_and_after_compaction(
    archive, fill, spark, settings, s3, path
):
    fill("q:mail", ["5-1", f"{DAY}-1"])
    fill("dlq:mail:default", [f"{DAY}-7"])
    assert archive() == 3
    fill("q:mail", [f"{DAY + 1}-1"])
    assert archive() == 1
    assert archive() == 0
    expected = [("dlq:mail:default", f"{DAY}-7")]
    expected += [("q:mail", entry_id) for entry_id in ("5-1", f"{DAY}-1", f"{DAY + 1}-1")]
    assert ids(read(spark, path)) == expected
    folders = {name.removeprefix("of a team/bus/").partition("/")[0] for name in names(s3)}
    assert folders == {"_delta_log", "kind=position", "kind=queue", "kind=dead_letter"}
    done = compact(spark, path, before="1970-01-05", grace=0)

    assert ids(read(spark, path)) == expected
    assert (done.partitions, done.files_before, done.files_after, done.rows) == (3, 4, 3, 4)
    data = [name for name in names(s3) if "kind=" in name and "kind=position" not in name]
    assert sorted(data) == sorted(
        f"of a team/bus/{p}" for p in ArchiveTable(place(path)).snapshot().files
    )
    assert not [name for name in names(s3) if name.endswith(".tmp")]
    assert all(found.ok for found in verify(spark, settings, path))
    found = status(settings, path)
    assert (found.path, found.rows, found.files, found.lag) == (path, 4, 3, 0)


@pytest.mark.slow
def test_two_archivers_of_a_bucket_archive_each_entry_once(spark, settings, fill, path):
    fill("q:mail", [f"{n}-1" for n in range(1, 1001)])
    ready, rows = threading.Barrier(2), []

    def archiving() -> None:
        with Archiver(spark, settings, path, warn=lambda _text: None) as archiver:
            ready.wait()
            archiver.run(on_round=lambda done: rows.append(done.rows))

    threads = [threading.Thread(target=archiving) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(rows) == 1000
    found = read(spark, path).select("id").collect()
    assert len(found) == len({row.id for row in found}) == 1000
    # The loser's files are gone: all that are there are the log's.
    at = place(path)
    listed = {e.name for e in at.listing("") if "kind=" in e.name and "kind=position" not in e.name}
    assert listed == set(ArchiveTable(at).snapshot().files)


def test_no_secret_is_in_a_plan_or_in_the_archive(archive, fill, spark, s3, path):
    fill("q:mail", ["5-1"])
    archive()

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        read(spark, path).explain("extended")
    held = b"".join(
        s3.client.get_object(Bucket=s3.bucket, Key=name)["Body"].read() for name in names(s3)
    )

    assert not [each for each in SECRETS if each in said.getvalue() or each.encode() in held]


def test_a_bucket_that_is_not_there_is_said_so(spark, settings, s3):
    with (
        pytest.raises(NotFound, match="the bucket does not exist"),
        Archiver(spark, settings, "s3://no-such-bucket-here/bus") as archiver,
    ):
        archiver.run()


@pytest.mark.slow
def test_the_verbs_take_a_bucket(spark, archive, fill, s3, path, settings, capfd, monkeypatch):
    monkeypatch.setattr(type(spark), "stop", lambda _self: None)
    monkeypatch.setenv("AGENTBUS_URL", settings.url)
    monkeypatch.setenv("AGENTBUS_PROJECT", settings.project)
    fill("q:mail", ["5-1", "6-1"])
    capfd.readouterr()

    codes = [
        run(words)
        for words in (
            ["archive", path],
            ["archive", "status", path],
            ["archive", "verify", path],
            ["report", "tasks", path],
            ["replay", path, "--to-queue", "again"],
            ["replay", path, "--where", "seq = 1", "--to-queue", "chosen"],
            ["archive", "compact", path, "--storage-option", "AWS_REGION=us-east-1"],
            ["archive", "status", path, "--storage-option", "AWS_SESSION_TOKEN=x"],
            ["report", "tasks", f"{s3.url}/nothing"],
            ["archive", "status", f"{s3.url}/nothing"],
        )
    ]

    out, err = capfd.readouterr()
    assert codes == [0, 0, 0, 0, 0, 0, 0, 2, 5, 5], err
    assert "2 rows published" in out
    assert not [each for each in SECRETS if each in out + err]
    assert "Traceback" not in err
    assert err.count(f"there is no archive at {s3.url}/nothing") == 2
