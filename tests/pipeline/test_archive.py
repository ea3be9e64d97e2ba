"""Archives: every entry of every stream exactly once, or counted as lost."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading

import pyarrow.dataset
import pytest
from deltalake import DeltaTable

import agentbus
from agentbus.core.settings import resolve
from agentbus.errors import AgentBusError, ConfigError, NotFound, Refused
from agentbus.pipeline.archives import verify as verifying
from agentbus.pipeline.archives.archiver import Archiver, archive, release
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.files import archive_files
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.reader import read
from agentbus.queues import janitor
from agentbus.queues.policy import Policies
from tests.disks import fill as fill_disk, small_disk
from tests.pipeline.archives import data_files

DAY = 86_400_000


@pytest.fixture
def bus(settings):
    with agentbus.connect(settings.url, project=settings.project, agent="ada") as opened:
        yield opened


@pytest.fixture
def fill(valkey, project):
    """Return a function that adds entries with chosen ids to a stream."""

    def _fill(stream: str, ids) -> None:
        for entry_id in ids:
            valkey.ask("XADD", f"{project}:{stream}", entry_id, "payload", f'"{entry_id}"')

    return _fill


def numbered(count, start=1):
    return [f"{n}-1" for n in range(start, start + count)]


def plain(path):
    """Return what any reader of Parquet sees in the files of the archive, as (stream, id)."""
    table = pyarrow.dataset.dataset(archive_files(path)).to_table(["stream", "id"])
    return sorted((row["stream"], row["id"]) for row in table.to_pylist())


def test_every_entry_is_archived_and_can_be_read_by_anybody(run, bus, spark, path):
    said = bus.speak("hi", topic="build")
    task = bus.queue("mail").publish({"to": "a"}, priority="high")

    (done,) = run()

    assert (done.rows, done.lost, done.streams, done.complete) == (2, 0, 2, True)
    expected = [("ch:main", said.id), ("q:mail:high", task.partition("@")[0])]
    assert plain(path) == expected
    assert sorted((r.stream, r.id) for r in read(spark, path).collect()) == expected


def test_what_is_archived_is_not_archived_again(run, fill, path):
    fill("q:mail", numbered(5))
    assert [done.rows for done in run()] == [5]

    assert run() == []
    fill("q:mail", numbered(3, start=6))

    assert [done.rows for done in run()] == [3]
    assert plain(path) == sorted(("q:mail", entry_id) for entry_id in numbered(8))


def test_spark_plans_no_query_to_archive(run, fill, spark):
    planned = spark._jsparkSession.sharedState().statusStore().executionsCount
    before = planned()
    fill("q:mail", numbered(5))

    assert [done.rows for done in run()] == [5]
    assert planned() == before


def test_an_archive_is_divided_by_kind_and_day(run, fill, path):
    fill("q:mail", [f"{DAY - 1}-0", f"{DAY}-0", f"{3 * DAY + 5}-0"])
    fill("dlq:mail:default", [f"{DAY}-0"])

    run()

    folders = {name.rpartition("/")[0] for name in data_files(path)}
    assert folders == {
        "kind=queue/date=1970-01-01",
        "kind=queue/date=1970-01-02",
        "kind=queue/date=1970-01-04",
        "kind=dead_letter/date=1970-01-02",
    }


def test_each_file_says_how_many_rows_of_which_streams_it_has(run, fill, path):
    fill("q:a", numbered(3))
    fill("q:b", numbered(2))

    run()

    (file,) = ArchiveTable(place(path)).snapshot().files.values()
    assert (file.rows, file.from_ms, file.to_ms) == (5, 1, 3)
    assert (file.streams, file.queues) == (("q:a", "q:b"), ("a", "b"))


def test_entries_that_were_trimmed_before_are_counted(run, fill, valkey, project, spark, path):
    fill("q:mail", numbered(10))
    valkey.ask("XTRIM", f"{project}:q:mail", "MAXLEN", "4")
    (first,) = run()
    fill("q:mail", numbered(20, start=11))
    valkey.ask("XTRIM", f"{project}:q:mail", "MAXLEN", "5")

    (second,) = run()

    assert (first.rows, first.lost) == (4, 6)
    assert (second.rows, second.lost) == (5, 15)
    gaps = [row for row in read(spark, path).collect() if row.kind == "gap"]
    assert sorted((g.lost, g.fields["after"], g.fields["before"]) for g in gaps) == [
        (6, "0-0", "7-1"),
        (15, "10-1", "26-1"),
    ]
    position = ArchiveTable(place(path)).snapshot().positions["q:mail"]
    assert position.rows + position.lost == position.added == 30


def test_a_stream_that_was_emptied_is_a_gap_alone(run, fill, valkey, project, path):
    fill("q:mail", numbered(3))
    valkey.ask("XTRIM", f"{project}:q:mail", "MAXLEN", "0")

    (done,) = run()

    assert (done.rows, done.lost) == (0, 3)


def test_two_archivers_at_once_archive_everything_once(spark, settings, fill, path):
    fill("q:mail", numbered(200))
    warnings: list[str] = []

    def work() -> None:
        with Archiver(spark, settings, path, warn=warnings.append) as archiver:
            for _ in range(3):
                archiver.run_once()
                fill("q:other", ["*"])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Archiver(spark, settings, path) as last:
        last.run()

    found = plain(path)
    assert len(found) == len(set(found)) == 206
    state = ArchiveTable(place(path)).snapshot()
    named = sorted(name for name in state.files)
    assert data_files(path) == named


def test_a_deleted_and_new_stream_is_archived_from_its_beginning(run, fill, valkey, project, path):
    fill("q:mail", numbered(5))
    run()
    valkey.ask("DEL", f"{project}:q:mail")
    fill("q:mail", numbered(3, start=100))

    (done,) = run()

    assert (done.rows, done.lost) == (3, 0)
    assert len(plain(path)) == 8
    position = ArchiveTable(place(path)).snapshot().positions["q:mail"]
    assert (position.base, position.added, position.rows) == (5, 3, 8)


def test_a_new_stream_that_outgrew_the_old_one_is_whole_too(run, fill, valkey, project, path):
    fill("q:mail", numbered(5))
    run()
    valkey.ask("DEL", f"{project}:q:mail")
    fill("q:mail", numbered(9, start=100))

    (done,) = run()

    assert (done.rows, done.lost) == (9, 0)
    assert len(plain(path)) == 14


def test_a_held_queue_is_trimmed_up_to_what_is_archived(run, bus, settings, path):
    queue = bus.queue("mail")
    run(hold=True)
    queue.publish({"n": 0})
    run(hold=True)
    queue.publish_many([{"n": n} for n in range(4)])
    for delivery in queue.fetch(count=10):
        delivery.ack()

    at_once = Policies({"*": {"retention": 0}}, "test")

    def trim():
        return bus._run("tidy", janitor.tidy(bus.scope, "mail", at_once))

    first = trim()
    run(hold=True)
    second = trim()
    queue.publish({"n": 5})
    for delivery in queue.fetch(count=10):
        delivery.ack()
    kept = trim()
    released = release(settings, path)
    third = trim()

    trimmed = [sum(one.trimmed for one in done) for done in (first, second, kept, third)]
    assert trimmed == [1, 4, 0, 1]
    # Of each priority, since an entry may come before it is read.
    assert released == ["q:mail", "q:mail:critical", "q:mail:high", "q:mail:low"]


def test_a_hold_from_before_the_first_copy_is_released(settings, fill, valkey, project, path):
    fill("q:mail", ["1-1"])

    def no_java():
        raise ConfigError("Spark did not start")

    with Archiver(no_java, settings, path, hold=True) as archiver:
        with pytest.raises(ConfigError):
            archiver.run()
    assert valkey.ask("HLEN", f"{project}:readers:mail") == 1

    assert release(settings, path) == ["q:mail"]
    assert valkey.ask("HLEN", f"{project}:readers:mail") == 0


def test_streams_are_chosen(run, bus, fill, path):
    bus.speak("hi")
    fill("q:a", ["1-1"])

    run(wanted="queues")

    assert plain(path) == [("q:a", "1-1")]


def test_an_archiver_that_goes_on_finds_new_streams(spark, settings, fill, path):
    fill("q:a", ["1-1"])
    stop = threading.Event()
    rounds: list = []

    def heard(done) -> None:
        rounds.append(done)
        if len(rounds) == 1:
            fill("ch:main", ["1-1"])
        else:
            stop.set()

    with Archiver(spark, settings, path) as archiver:
        archiver.run(continuous=True, interval=0.1, stop=stop, on_round=heard)

    assert plain(path) == [("ch:main", "1-1"), ("q:a", "1-1")]


def test_an_archiver_that_goes_on_waits_while_the_disk_is_full(
    spark, settings, valkey, project, tmp_path
):
    for _ in range(3):
        valkey.ask("XADD", f"{project}:q:mail", "*", "payload", f'"{os.urandom(50_000).hex()}"')
    stop = threading.Event()
    rounds: list = []
    told: list[str] = []

    def heard(done) -> None:
        rounds.append(done.rows)
        stop.set()

    with small_disk(tmp_path / "disk", "4m") as disk:

        def warn(text: str) -> None:
            told.append(text)
            (disk / "filler").unlink()

        with Archiver(spark, settings, str(disk / "archive"), warn=warn) as archiver:
            archiver._table.create(archiver.project)
            fill_disk(disk / "filler")
            archiver.run(continuous=True, interval=0.01, stop=stop, on_round=heard)

    (said,) = told
    assert "no space left on device" in said
    assert said.endswith("; trying again")
    assert rounds == [3]


def test_a_server_that_dies_in_the_middle_leaves_nothing_half_done(
    spark, own_server, project, path, fill
):
    for n in range(300):
        own_server.ask("XADD", f"{project}:q:mail", f"{n + 1}-1", "payload", "1")
    settings = resolve({"url": own_server.url, "project": project, "deadline": 1.0})
    over = threading.Event()

    def kill() -> None:
        # The first file is begun when the first page is written.
        while not list(pathlib.Path(path).rglob("*.parquet")) and not over.wait(0.005):
            continue
        own_server.kill()

    killer = threading.Thread(target=kill)
    with Archiver(spark, settings, path, page=1) as archiver:
        archiver._table.create(archiver.project)
        killer.start()
        with contextlib.suppress(Exception):
            archiver.run()
        over.set()
        killer.join()
        own_server.start()
        assert [p for p in data_files(path) if p not in _named(path)] == []
        archiver.run()

    assert len(plain(path)) == 300


def _named(path):
    state = ArchiveTable(place(path)).snapshot()
    return set(state.files)


def test_an_interrupt_after_the_commit_leaves_its_files(run, fill, path, monkeypatch):
    fill("q:mail", numbered(3))
    append = ArchiveTable.append

    def appended(*words):
        append(*words)
        raise KeyboardInterrupt

    monkeypatch.setattr(ArchiveTable, "append", appended)
    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.undo()

    state = ArchiveTable(place(path)).snapshot()
    assert state.rows == 3
    assert all((pathlib.Path(path) / name).exists() for name in state.files)
    assert run() == []


def test_an_archive_of_another_project_is_refused(spark, run, fill, settings, path):
    fill("q:a", ["1-1"])
    run()
    other = resolve({"url": settings.url, "project": "other"})

    with Archiver(spark, other, path) as archiver, pytest.raises(Refused, match="other"):
        archiver.run()


def test_a_path_with_foreign_files_is_refused(run, path):
    pathlib.Path(path).mkdir()
    (pathlib.Path(path) / "x.parquet").write_bytes(b"PAR1")

    with pytest.raises(AgentBusError, match="not an archive of AgentBus"):
        run()


def test_one_call_archives(spark, settings, fill, path):
    fill("q:a", numbered(3))

    done = archive(spark, settings.url, path, project=settings.project)

    assert (done.rows, done.lost, done.versions) == (3, 0, 1)


# -- how far it is, and whether it is right -----------------------------------------------------


def test_the_status_says_what_is_to_come(run, fill, settings, path):
    fill("q:mail", numbered(5))
    run()
    fill("q:mail", numbered(2, start=6))
    fill("q:new", ["1-1"])

    found = verifying.status(settings, path)

    assert (found.rows, found.lag, found.version) == (5, 3, 1)
    assert {(s.stream, s.rows, s.lag) for s in found.streams} == {
        ("q:mail", 5, 2),
        ("q:new", 0, 1),
    }
    assert all(stream.behind > 0 for stream in found.streams)


def test_no_archive_has_no_status(settings, path):
    with pytest.raises(NotFound, match="no archive"):
        verifying.status(settings, path)


def test_rows_that_another_engine_deleted_stay_away_and_are_counted(
    run, fill, spark, settings, path
):
    fill("q:mail", numbered(10))
    run()
    DeltaTable(path).delete("id in ('3-1', '4-1')")
    (now,) = verifying.verify(spark, settings, path)
    fill("q:mail", numbered(2, start=20))

    assert [done.rows for done in run()] == [2]

    (later,) = verifying.verify(spark, settings, path)
    assert [(each.rows, each.deleted, each.missing, each.ok) for each in (now, later)] == [
        (8, 2, 0, True),
        (10, 2, 0, True),
    ]


def test_an_archive_is_reconciled_with_its_streams(
    run, fill, valkey, project, spark, settings, path
):
    fill("q:mail", numbered(10))
    valkey.ask("XTRIM", f"{project}:q:mail", "MAXLEN", "7")
    fill("ch:main", numbered(3))
    run()
    fill("q:mail", numbered(2, start=20))

    found = verifying.verify(spark, settings, path)

    assert [(v.stream, v.rows, v.lost, v.added, v.ok) for v in found] == [
        ("ch:main", 3, 0, 3, True),
        ("q:mail", 7, 3, 10, True),
    ]


@pytest.mark.slow
def test_entries_that_were_counted_as_lost_and_came_back_are_not_missing(
    run, fill, valkey, project, spark, settings, path
):
    fill("q:mail", numbered(6))
    valkey.ask("XTRIM", f"{project}:q:mail", "MAXLEN", "2")
    run()
    # As from a backup that was made before the trimming, and before the last entry.
    valkey.ask("DEL", f"{project}:q:mail")
    fill("q:mail", numbered(5))
    run(new_epoch=True)

    (mail,) = verifying.verify(spark, settings, path)
    assert (mail.rows, mail.lost, mail.added, mail.missing) == (2, 4, 6, 0)
    # Only what lies in the gap is excused.
    valkey.ask("DEL", f"{project}:q:mail")
    for entry_id in numbered(5):
        valkey.ask("XADD", f"{project}:q:mail", entry_id, "payload", '"changed"')
    (mail,) = verifying.verify(spark, settings, path)
    assert mail.missing == 1


def test_an_archive_that_lacks_a_row_or_holds_another_is_found_out(
    run, fill, valkey, project, spark, settings, path
):
    fill("q:mail", numbered(3))
    fill("q:other", numbered(3))
    run()
    # The same ids with another content, as after a mix-up of servers.
    for stream in ("q:mail", "q:other"):
        valkey.ask("DEL", f"{project}:{stream}")
    fill("q:mail", numbered(3))
    for entry_id in numbered(3):
        valkey.ask("XADD", f"{project}:q:other", entry_id, "payload", '"changed"')

    found = verifying.verify(spark, settings, path)

    assert [(v.stream, v.missing, v.ok) for v in found] == [
        ("q:mail", 0, True),
        ("q:other", 3, False),
    ]
