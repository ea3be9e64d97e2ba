"""What tasks of a replay read by themselves: the rows of their streams, in order, and no others."""

from __future__ import annotations

import os
import pathlib
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest

from agentbus import errors
from agentbus.core.stream import position
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.replays import jobs, reading
from agentbus.pipeline.replays.selection import Wanted
from agentbus.pipeline.replays.survey import ArchiveSurvey, survey
from tests.pipeline.archives import row, write_archive
from tests.pipeline.replaying import DAY, queue_rows
from tests.tiers import nightly

NEXT_DAY = DAY + 86_400_000


def looked(path: pathlib.Path, wanted: Wanted | None = None) -> ArchiveSurvey | None:
    log = ArchiveTable(place(str(path)))
    return survey(log, log.snapshot(), wanted or Wanted())


def read(
    found: ArchiveSurvey, *streams: str, after: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return what a task reads that publishes these streams, all that were found of each."""
    names = streams or tuple(found.streams)
    numbers = {name: 7 + number for number, name in enumerate(names)}
    share = found.share(numbers, {name: found.streams[name].last for name in names})
    before = {name: position(id) for name, id in (after or {}).items()}
    rows = [one for batch in reading.batches(share, before) for one in batch.to_pylist()]
    return [{**one, "number": names[one["number"] - 7]} for one in rows]


def ids(rows: list[dict[str, Any]], stream: str) -> list[str]:
    """Return the ids of one stream, of rows that were read or written."""
    return [one["id"] for one in rows if stream in (one.get("number"), one.get("stream"))]


@pytest.fixture
def archive(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "archive"


def test_each_stream_is_read_in_its_order_from_all_files(archive):
    a, b = queue_rows("q:a", range(40)), queue_rows("q:b", range(30))
    later = queue_rows("q:a", range(25), NEXT_DAY)
    mixed = [one for pair in zip(a, b, strict=False) for one in pair]
    for rows in (mixed[:24], mixed[24:], [*a[30:], *later[:10]], later[10:]):
        write_archive(archive, rows)

    found = looked(archive)

    assert found is not None
    rows = read(found)
    assert ids(rows, "q:a") == ids([*a, *later], "q:a")
    assert ids(rows, "q:b") == ids(b, "q:b")
    assert [
        (one.stream, one.target, one.rows, one.first, one.last) for one in found.sources(Wanted())
    ] == [
        ("q:a", "a", 65, a[0]["id"], later[-1]["id"]),
        ("q:b", "b", 30, b[0]["id"], b[-1]["id"]),
    ]
    assert {one["number"] for one in read(found, "q:b")} == {"q:b"}
    payloads = [one["payload"] for one in rows if one["number"] == "q:b"]
    assert payloads == [one["payload"] for one in b]


def test_a_range_ends_where_it_was_asked_for_and_what_was_published_is_left_out(archive):
    rows = queue_rows("q:a", range(50))
    write_archive(archive, rows, per_commit=9)
    start, end = (position(rows[n]["id"]) for n in (7, 41))

    found = looked(archive, Wanted(start, end))

    assert found is not None
    assert ids(read(found), "q:a") == ids(rows[7:42], "q:a")
    assert ids(read(found, after={"q:a": rows[20]["id"]}), "q:a") == ids(rows[21:42], "q:a")


def test_rows_that_were_archived_after_the_replay_began_are_left_out(archive):
    rows = queue_rows("q:a", range(20))
    write_archive(archive, rows)
    found = looked(archive)
    assert found is not None

    share = found.share({"q:a": 0}, {"q:a": position(rows[11]["id"])})

    read_now = [one for batch in reading.batches(share, {}) for one in batch.to_pylist()]
    assert [one["id"] for one in read_now] == ids(rows[:12], "q:a")


def test_files_are_read_in_the_order_of_their_streams_whatever_their_names_are(archive):
    # Of one commit: what the second task copied ends the first stream, and begins the second.
    a, b = queue_rows("q:a", range(20), DAY + 100), queue_rows("q:b", range(20))
    write_archive(archive, a[:15])
    write_archive(archive, [*a[15:], *b[:5]])
    write_archive(archive, b[5:])
    log = ArchiveTable(place(str(archive)))
    state = log.snapshot()

    found = survey(log, replace(state, files=dict(reversed(state.files.items()))), Wanted())

    assert found is not None
    rows = read(found)
    assert (ids(rows, "q:a"), ids(rows, "q:b")) == (ids(a, "q:a"), ids(b, "q:b"))


def test_large_rows_are_read_a_few_at_a_time(archive):
    write_archive(
        archive,
        [{**one, "payload": os.urandom(100_000).hex()} for one in queue_rows("q:a", range(200))],
    )
    found = looked(archive)
    assert found is not None

    share = found.share({"q:a": 0}, {"q:a": found.streams["q:a"].last})

    sizes = [batch.nbytes for batch in reading.batches(share, {})]
    assert len(sizes) > 3
    assert max(sizes) < 12_000_000


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (queue_rows("q:a", range(5)), Wanted(where="true")),
        ([row("dlq:a:default", f"{DAY}-0")], Wanted(streams=("dlq:a:default",))),
        # The order of the file is not that of the stream.
        ([*queue_rows("q:a", range(5, 9)), *queue_rows("q:a", range(3))], Wanted()),
        # Another program says that the entry belongs elsewhere.
        (queue_rows("q:a", range(5), queue="~webhooks"), Wanted()),
        # Its id is beyond what a row's columns hold.
        ([row("q:a", "253402300799999-0", seq=2**63 - 1)], Wanted()),
    ],
)
def test_what_takes_more_than_reading_is_left_to_spark(archive, rows, wanted):
    write_archive(archive, rows)

    assert looked(archive, wanted) is None


def test_files_that_hold_the_same_entries_are_left_to_spark(archive):
    # As after a failover from which the archive went on.
    write_archive(archive, queue_rows("q:a", range(10)))
    write_archive(archive, queue_rows("q:a", range(6, 15)))

    assert looked(archive) is None


def test_a_file_that_is_missing_or_spoilt_is_left_to_spark_to_tell(archive):
    write_archive(archive, queue_rows("q:a", range(10)))
    log = ArchiveTable(place(str(archive)))
    (file,) = log.snapshot().files.values()
    path = archive / file.path

    path.write_bytes(b"PAR1 is not all")
    assert looked(archive) is None
    path.unlink()
    assert looked(archive) is None


def test_a_task_names_the_file_that_is_missing_since(archive):
    write_archive(archive, queue_rows("q:a", range(10)))
    found = looked(archive)
    assert found is not None
    (file,) = found.files
    (archive / file.path).unlink()

    with pytest.raises(errors.Unhealthy, match=file.path):
        read(found)


def test_only_the_row_groups_that_hold_a_stream_are_read(archive, monkeypatch):
    monkeypatch.setattr(pq, "write_table", _in_small_groups(pq.write_table))
    write_archive(archive, [*queue_rows("q:a", range(10)), *queue_rows("q:b", range(10))])
    found = looked(archive)
    assert found is not None

    (part,) = found.share({"q:b": 0}, {"q:b": found.streams["q:b"].last}).files

    assert part.groups == (2, 3)


def _in_small_groups(write: Any) -> Any:
    return lambda *words, **options: write(*words, row_group_size=5, **options)


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(start=(DAY + 2, 0), end=(DAY + 8, 1)),
        nightly(Wanted()),
        nightly(Wanted(channel=True)),
        nightly(Wanted(streams=("ch:main", "q:a:high"), queue="to")),
    ],
)
def test_spark_counts_what_is_found_without_it(archive, spark, wanted):
    said = [row("ch:main", f"{DAY + n}-0", agent="ada", payload=f'"{n}"') for n in range(5)]
    odd = queue_rows("q:a%3Ab", range(4), queue="a:b")
    high, own = queue_rows("q:a:high", range(7)), queue_rows("q:~own", range(3), queue="~own")
    write_archive(archive, [*queue_rows("q:a", range(30)), *said, *odd, *high, *own])
    rows = jobs.rows_of(spark, place(str(archive)), wanted, None)

    found = looked(archive, wanted)

    assert found is not None
    assert found.sources(wanted) == jobs.count(rows, wanted)
