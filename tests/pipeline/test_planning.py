"""Plans: how far streams are, where they are cut, and what is gone."""

from __future__ import annotations

import pytest

from agentbus.core.settings import resolve
from agentbus.errors import UsageError
from agentbus.pipeline.rows import streams
from agentbus.pipeline.source import discovery, planning, range_reader
from agentbus.pipeline.source.planning import Head, Range, ReadPosition
from agentbus.pipeline.source.range_reader import RangeReader


@pytest.fixture
def reader(real_url, project):
    with RangeReader(resolve({"url": real_url, "project": project})) as opened:
        yield opened


@pytest.fixture
def add(valkey, project):
    """Return a function that adds entries with chosen ids to a stream of the project."""

    def _add(stream: str, *ids: str) -> None:
        for entry_id in ids:
            valkey.ask("XADD", f"{project}:{stream}", entry_id, "payload", "1")

    return _add


def ids(count: int, *, start: int = 1000) -> list[str]:
    return [f"{start + n // 3}-{n % 3 + 1}" for n in range(count)]


def test_a_head_says_how_many_entries_there_ever_were(reader, add, valkey, project):
    add("q:mail", *ids(10))
    valkey.ask("XTRIM", f"{project}:q:mail", "MAXLEN", "4")

    heads = reader.run(planning.look(reader.scope, ["q:mail", "q:none"]))

    assert heads == {"q:mail": Head("1003-1", 10, 4, "1002-1")}
    assert heads["q:mail"].removed == 6
    assert planning.older("1001-3", heads["q:mail"].trimmed)


def test_a_gap_reaches_as_far_as_its_entries_may_have_been():
    head, start, end = Head("9-0", 10, 4, "6-0"), ReadPosition(), ReadPosition("9-0", 10)

    trimmed = planning.gap("q:mail", 6, start, end, head)
    # Two more were trimmed after the head was read.
    since = planning.gap("q:mail", 8, start, end, head)

    assert (trimmed.lost, trimmed.at, trimmed.before) == (6, planning.before("6-0"), "6-0")
    assert (since.lost, since.at, since.after, since.before) == (8, "9-0", "0-0", None)


def test_a_page_that_cannot_be_decoded_is_an_error(real_url, project, add, monkeypatch):
    def batch(groups):
        if groups[0][1][0][0] == b"1000-3":
            raise ValueError("no such row")
        return [entry[0] for _, page in groups for entry in page]

    add("q:mail", *ids(6))
    monkeypatch.setattr(range_reader, "batch", batch)

    with RangeReader(resolve({"url": real_url, "project": project}), page=2) as reader:
        pages = reader.read([Range("q:mail", planning.START, "2000-0")])

        assert next(pages) == [b"1000-1", b"1000-2"]
        with pytest.raises(ValueError, match="no such row"):
            list(pages)


def test_a_key_that_is_no_stream_is_passed_over(reader, valkey, project):
    valkey.ask("SET", f"{project}:q:mail", "x")

    assert reader.run(planning.look(reader.scope, ["q:mail"])) == {}


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_steps_are_of_even_size_and_leave_nothing_out(reader, add, size):
    add("q:mail", *ids(20))

    parts = reader.run(planning.steps(reader.scope, "q:mail", "1000-2", "1006-1", size))

    assert sum(part.expected for part in parts) == 17
    assert all(part.expected == size for part in parts[:-1])
    assert parts[0].after == "1000-2"
    assert [part.until for part in parts[:-1]] == [part.after for part in parts[1:]]
    assert parts[-1].until == "1006-1"


def test_steps_end_at_so_many_entries(reader, add):
    add("q:mail", *ids(20))

    (part,) = reader.run(planning.steps(reader.scope, "q:mail", "0-0", "9999-0", 5, 5))

    assert part == Range("q:mail", "0-0", "1001-2", 5)


@pytest.mark.parametrize("parts", [1, 2, 5, 50])
@pytest.mark.parametrize("number", [1, 2, 60])
def test_a_cut_stream_is_whole(reader, add, parts, number):
    add("q:mail", *ids(number))
    heads = reader.run(planning.look(reader.scope, ["q:mail"]))

    ranges = reader.run(planning.cut(reader.scope, "q:mail", "0-0", heads["q:mail"], parts))

    rows = [batch for part in ranges for batch in reader.read([part])]
    found = [entry_id for batch in rows for entry_id in batch.column("id").to_pylist()]
    assert found == ids(number)
    assert len(ranges) <= parts


def test_a_stream_whose_entries_share_a_moment_is_cut_by_their_numbers(reader, add):
    add("q:mail", *(f"1000-{n}" for n in range(1, 101)))
    heads = reader.run(planning.look(reader.scope, ["q:mail"]))

    ranges = reader.run(planning.cut(reader.scope, "q:mail", "0-0", heads["q:mail"], 4))

    rows = [sum(b.num_rows for b in reader.read([part])) for part in ranges]
    assert len(rows) == 4
    assert sum(rows) == 100
    assert max(rows) <= 26


def test_a_stream_that_grows_unevenly_is_cut_evenly(reader, add):
    # Nine tenths of all entries in the last tenth of the time.
    add("q:mail", *(f"{n * 90 + 1}-0" for n in range(100)))
    add("q:mail", *(f"{9001 + n}-0" for n in range(900)))
    heads = reader.run(planning.look(reader.scope, ["q:mail"]))

    ranges = reader.run(planning.cut(reader.scope, "q:mail", "0-0", heads["q:mail"], 4))

    rows = [sum(b.num_rows for b in reader.read([part])) for part in ranges]
    assert sum(rows) == 1000
    assert max(rows) < 400


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ch:main", "channel"),
        ("metrics", "metrics"),
        ("q:mail", "queue"),
        ("q:mail:high", "queue"),
        ("q:mail:odd", None),
        ("q:", None),
        ("dlq:mail:default", "dead_letter"),
        ("dlq:mail:default:replayed", None),
        ("dlq:mail", None),
        ("ev:shop%3Aorders", "event"),
        ("ev:shop%3Aorders:relay", None),
        ("ev:", None),
        ("ev", None),
        ("inbox:bob", "inbox"),
        ("inbox:a%3Ab", "inbox"),
        ("inbox:bob:bell", None),
        ("inbox", None),
        ("ch:other", None),
        ("metrics:x", None),
        ("jot:x", None),
    ],
)
def test_a_streams_name_says_what_it_is(name, kind):
    assert streams.kind(name) == kind


@pytest.mark.parametrize("words", ["", " , ", "queue", "jot:x", "q:*:x", "*"])
def test_words_that_name_no_streams_are_refused(words):
    with pytest.raises(UsageError):
        discovery.Selection(words)


def test_streams_are_found_by_kind_and_by_name(reader, add):
    add("q:mail", "1-1")
    add("q:mail:high", "1-1")
    add("q:other", "1-1")
    add("dlq:mail:default", "1-1")
    add("ch:main", "1-1")
    add("inbox:bob", "1-1")
    add("inbox:bob:bell", "1-1")

    def found(words: str) -> list[str]:
        return reader.run(discovery.Discovery(reader.scope, discovery.Selection(words)).op())

    assert found("queues") == ["q:mail", "q:mail:high", "q:other"]
    assert found("dead-letters,q:mail") == ["dlq:mail:default", "q:mail"]
    assert found("channel,metrics") == ["ch:main", "metrics"]
    assert found("inboxes") == ["inbox:bob"]


def test_a_queue_that_registers_is_found_without_going_through_all_keys(
    reader, add, valkey, project
):
    clock = iter([0.0, 1.0, 2.0, 100.0])
    looking = discovery.Discovery(
        reader.scope, discovery.Selection("queues"), monotonic=lambda: next(clock)
    )
    assert reader.run(looking.op()) == []

    add("q:new", "1-1")
    assert reader.run(looking.op()) == []
    valkey.ask("ZADD", f"{project}:queues", 1, "new")

    assert "q:new" in reader.run(looking.op())
    assert "q:new" in reader.run(looking.op())
