"""Archives of a server that went back in time: nothing is lost, counted as lost, or archived twice."""

from __future__ import annotations

import collections

import pyarrow.dataset
import pytest

from agentbus.errors import EpochMismatch
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.files import archive_files
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.verify import status, verify


@pytest.fixture
def run(run):
    """Return a function that archives what there is now, and returns the rows and the losses."""
    return lambda **options: [(done.rows, done.lost) for done in run(**options)]


@pytest.fixture
def mail(valkey, project):
    """Return a function that sends a command about one queue."""

    def _mail(command: str, *args):
        return valkey.ask(command, f"{project}:q:mail", *args)

    return _mail


def add(mail, ids) -> None:
    for entry_id in ids:
        mail("XADD", entry_id, "payload", f'"{entry_id}"')


def numbered(*numbers: int) -> list[str]:
    return [f"{n}-1" for n in numbers]


def restore(mail, ids) -> None:
    """Make the stream one that has these entries alone, as of a backup."""
    mail("DEL")
    add(mail, ids)


def archived(path):
    """Return the ids that any reader of Parquet sees, and the fields of gaps."""
    found = pyarrow.dataset.dataset(archive_files(path), partitioning="hive")
    table = found.to_table(["id", "kind", "fields"])
    rows = table.to_pylist()
    ids = collections.Counter(row["id"] for row in rows if row["kind"] != "gap")
    return ids, [dict(row["fields"]) for row in rows if row["kind"] == "gap"]


def test_a_server_that_lost_its_end_and_outgrew_the_archive_lost_nothing_else(
    run, mail, settings, path
):
    add(mail, numbered(*range(1, 106)))
    run()
    restore(mail, numbered(*range(1, 101)))
    add(mail, numbered(*range(200, 225)))

    with pytest.raises(EpochMismatch, match="went back in time"):
        run()
    with pytest.raises(EpochMismatch, match="went back in time"):
        status(settings, path)
    told: list[str] = []
    done = run(new_epoch=True, warn=told.append)

    assert done == [(25, 0)]
    assert told == ["the server went back in time: 5 archived entries are not on it (q:mail)"]
    ids, gaps = archived(path)
    assert ids == dict.fromkeys(numbered(*range(1, 106), *range(200, 225)), 1)
    assert gaps == [{"after": "100-1", "archive_only": "5"}]
    assert (run(), status(settings, path).lag) == ([], 0)


def test_what_came_at_ids_that_the_archive_has_passed_is_archived(run, mail, path):
    add(mail, numbered(*range(1, 11)))
    run()
    # The clock of the server that it failed over to is behind; one id was given to another entry.
    restore(mail, [*numbered(*range(1, 7)), "7-0", "7-2", "9-0", "9-1"])

    assert run(new_epoch=True) == [(3, 0)]
    # Also what comes at such ids later on, but nothing twice.
    add(mail, ["9-5", "10-1", "12-1"])
    assert run() == [(2, 0)]
    assert run() == []
    ids, _ = archived(path)
    assert ids == dict.fromkeys([*numbered(*range(1, 11), 12), "7-0", "7-2", "9-0", "9-5"], 1)
    position = ArchiveTable(place(path)).snapshot().positions["q:mail"]
    assert (position.id, position.rows, position.lost) == ("12-1", 15, 0)
    assert position.rows == position.base + position.added


def test_a_shorter_stream_may_be_gone_on_with_at_once(run, mail, settings, path):
    add(mail, numbered(*range(1, 9)))
    run()
    restore(mail, numbered(*range(1, 6)))

    with pytest.raises(EpochMismatch, match="went back in time"):
        run()
    assert run(new_epoch=True) == [(0, 0)]
    # From now on it is as any other.
    assert (run(), status(settings, path).lag) == ([], 0)
    add(mail, numbered(20, 21))
    assert run() == [(2, 0)]
    assert sum(archived(path)[0].values()) == 10


@pytest.mark.slow
def test_a_stream_that_may_have_gone_back_has_an_unknown_loss(run, mail, path):
    add(mail, numbered(*range(1, 101)))
    run()
    restore(mail, numbered(*range(1, 91), *range(200, 220)))
    mail("XTRIM", "MAXLEN", 15)

    with pytest.raises(EpochMismatch, match="deleted, made again"):
        run()
    told: list[str] = []

    assert run(new_epoch=True, warn=told.append) == [(15, 0)]
    assert told == [
        "an unknown number of entries may have been gone before they could be archived (q:mail)"
    ]
    assert archived(path)[1] == [{"after": "100-1", "before": "205-1"}]
    assert run() == []


def test_what_was_found_only_while_it_was_copied_is_not_committed(run, mail, path):
    add(mail, numbered(*range(1, 11)))
    run()
    # The entry that was read last is there, two before it are not, and more came than were added.
    restore(mail, numbered(*range(1, 8), 10, 20, 21, 22))

    with pytest.raises(EpochMismatch, match="went back in time"):
        run()

    assert ArchiveTable(place(path)).snapshot().version == 1
    assert sum(archived(path)[0].values()) == 10


def test_entries_that_only_the_archive_or_only_the_server_has_are_named(
    run, mail, spark, settings, path
):
    add(mail, numbered(*range(1, 111)))
    run()
    restore(mail, [*numbered(*range(1, 81)), "85-0", *numbered(*range(200, 240))])
    # What was trimmed is not gone, and what lies beyond the archive is not missing.
    mail("XTRIM", "MAXLEN", 100)

    (found,) = verify(spark, settings, path)

    assert not found.ok
    assert (found.rows, found.lost, found.added, found.duplicates) == (110, 0, 110, 0)
    assert (found.gone, found.gone_ids) == (30, tuple(numbered(*range(81, 101))))
    assert (found.missing, found.missing_ids) == (1, ("85-0",))


@pytest.mark.slow
def test_what_was_noted_when_the_archive_went_on_is_history(run, mail, spark, settings, path):
    add(mail, numbered(*range(1, 21)))
    run()
    restore(mail, numbered(*range(1, 16), *range(30, 36)))
    run(new_epoch=True)
    (before,) = verify(spark, settings, path)

    restore(mail, numbered(*range(1, 16), *range(30, 35), 40, 41))
    (after,) = verify(spark, settings, path)

    assert before.ok
    assert (after.ok, after.gone, after.gone_ids, after.missing) == (False, 1, ("35-1",), 0)


@pytest.mark.slow
def test_what_was_deleted_by_itself_is_not_gone(run, mail, spark, settings, path):
    add(mail, numbered(*range(1, 11)))
    run()
    mail("XDEL", "7-1", "3-1")
    add(mail, numbered(20))

    (found,) = verify(spark, settings, path)

    assert found.ok
