"""Streams that go on, were created again, or went back in time."""

from __future__ import annotations

import pytest

import agentbus
from agentbus.core.settings import resolve
from agentbus.errors import EpochMismatch
from agentbus.pipeline.source import epochs, planning
from agentbus.pipeline.source.epochs import Epoch
from agentbus.pipeline.source.planning import Head, ReadPosition
from agentbus.pipeline.source.range_reader import RangeReader

READ = ReadPosition("5-0", 5)


def head(last, added, length, first, final=None, deleted="0-0"):
    return Head(last, added, length, first, final or (last if length else None), deleted)


@pytest.mark.parametrize(
    ("found", "is_"),
    [
        pytest.param(head("5-0", 5, 5, "1-0"), Epoch.SAME, id="nothing new"),
        pytest.param(head("9-0", 9, 9, "1-0"), Epoch.SAME, id="it goes on"),
        pytest.param(head("9-0", 9, 2, "8-0"), Epoch.SAME, id="it goes on and is trimmed"),
        pytest.param(head("9-0", 9, 0, None), Epoch.SAME, id="it goes on and is emptied"),
        pytest.param(head("9-0", 5, 0, None), Epoch.SAME, id="emptied, and its last id set on"),
        pytest.param(head("9-0", 5, 5, "1-0", "5-0"), Epoch.SAME, id="its last id was set on"),
        pytest.param(head("0-0", 0, 0, None), Epoch.RECREATED, id="created again without entries"),
        pytest.param(head("9-0", 2, 2, "8-0"), Epoch.RECREATED, id="created again"),
        pytest.param(
            head("9-0", 9, 9, "6-0"), Epoch.RECREATED, id="created again, and has outgrown it"
        ),
        pytest.param(
            head("9-0", 5, 5, "6-0"), Epoch.RECREATED, id="created again, and has as many"
        ),
        pytest.param(head("9-0", 5, 2, "8-0"), Epoch.UNSURE, id="fewer, and trimmed"),
        pytest.param(head("9-0", 8, 4, "6-0"), Epoch.UNSURE, id="more than came, and trimmed"),
        pytest.param(head("9-0", 4, 0, None), Epoch.UNSURE, id="fewer, and emptied"),
        pytest.param(head("4-0", 4, 4, "1-0"), Epoch.BACK, id="the last id went back"),
        pytest.param(head("4-0", 9, 4, "1-0"), Epoch.BACK, id="the last id alone went back"),
        pytest.param(head("9-0", 4, 4, "1-0"), Epoch.BACK, id="it went on since it went back"),
        pytest.param(head("9-0", 5, 5, "1-0"), Epoch.BACK, id="it has as many again"),
        pytest.param(head("5-0", 6, 6, "1-0"), Epoch.BACK, id="the same end by other entries"),
        pytest.param(head("5-0", 4, 4, "1-0"), Epoch.BACK, id="the same end by fewer entries"),
    ],
)
def test_the_ends_of_a_stream_tell_what_became_of_it(found, is_):
    assert epochs.epoch(found, READ) is is_


def test_a_stream_that_was_never_read_has_no_past():
    assert epochs.epoch(head("9-0", 3, 3, "1-0"), ReadPosition()) is Epoch.SAME


@pytest.mark.parametrize(
    ("deleted", "first", "is_"),
    [
        ("0-0", "1-0", Epoch.BACK),
        ("4-0", "1-0", Epoch.BACK),
        ("5-0", "1-0", Epoch.SAME),
        ("7-0", "1-0", Epoch.SAME),
        ("0-0", "6-0", Epoch.SAME),
    ],
)
def test_an_entry_that_was_read_is_there_unless_it_was_trimmed_or_deleted(deleted, first, is_):
    found = head("9-0", 20, 9, first, deleted=deleted)

    assert epochs.epoch(found, READ, there=False) is is_


@pytest.mark.parametrize(
    ("rows", "now", "so"),
    [
        pytest.param(4, head("9-0", 9, 9, "1-0"), True, id="as many as came"),
        pytest.param(5, head("9-0", 9, 9, "1-0"), False, id="more than came"),
        pytest.param(5, None, False, id="more than came, and deleted since"),
        pytest.param(3, head("9-0", 9, 9, "1-0"), False, id="fewer"),
        pytest.param(3, head("9-0", 9, 9, "1-0", deleted="6-0"), True, id="fewer by a deletion"),
        pytest.param(3, head("9-0", 9, 9, "1-0", deleted="5-0"), False, id="one before deleted"),
        pytest.param(3, head("9-0", 9, 3, "7-0"), True, id="fewer by trimming"),
        pytest.param(3, head("9-0", 9, 0, None), True, id="fewer as it was emptied"),
        pytest.param(3, None, True, id="fewer as it was deleted"),
    ],
)
def test_only_trimming_and_deletion_leave_fewer_than_came(rows, now, so):
    assert epochs.fits(READ, 4, rows, now) is so


def test_what_is_new_is_from_the_position_to_the_head():
    found = Head("9-0", 9, 9, "1-0")

    new = epochs.news({"q:a": found, "q:b": found}, {"q:a": ReadPosition("9-0", 9)})

    assert new == {"q:b": (ReadPosition(), ReadPosition("9-0", 9))}


@pytest.fixture
def reader(real_url, project):
    with RangeReader(resolve({"url": real_url, "project": project})) as opened:
        yield opened


@pytest.fixture
def ask(valkey, project):
    """Return a function that sends a command about one stream of the project."""

    def _ask(command: str, *args):
        return valkey.ask(command, f"{project}:q:mail", *args)

    return _ask


def add(ask, *ids: str) -> None:
    for entry_id in ids:
        ask("XADD", entry_id, "payload", "1")


@pytest.fixture
def going_on(reader):
    """Return a function that says where to go on from a position, and how the stream went back, if so."""

    def _going_on(start: ReadPosition, *, may: bool = False, counts: bool = True):
        heads = reader.run(planning.look(reader.scope, ["q:mail"]))
        found = epochs.continued(
            *(reader.scope, heads, {"q:mail": start}),
            counts=lambda _name: counts,
            may=lambda _name: may,
        )
        starts, back = reader.run(found)
        return starts["q:mail"], back.get("q:mail")

    return _going_on


def test_a_stream_that_lost_its_end_and_outgrew_it_went_back(ask, going_on):
    add(ask, *(f"{n}-0" for n in (*range(1, 96), *range(110, 160))))

    # Five were lost; without counting, the entry that was read is missed.
    with pytest.raises(EpochMismatch, match="went back in time"):
        going_on(ReadPosition("100-0", 100), counts=False)
    assert going_on(ReadPosition("100-0", 100), may=True) == (
        ReadPosition("100-0", 95),
        Epoch.BACK,
    )


def test_a_lost_end_whose_last_id_was_given_again_is_counted(ask, going_on):
    # Of 91 to 100 only 100 was added again.
    add(ask, *(f"{n}-0" for n in (*range(1, 91), 100, *range(110, 130))))

    with pytest.raises(EpochMismatch, match="went back in time"):
        going_on(ReadPosition("100-0", 100))


def test_a_stream_that_grew_into_its_lost_end_is_counted(ask, going_on):
    # Twice as many up to the position as there were.
    add(ask, *(f"{n}-{m}" for n in range(1, 11) for m in (0, 1)), "10-2", "20-0")

    with pytest.raises(EpochMismatch, match="went back in time"):
        going_on(ReadPosition("10-1", 10))


@pytest.mark.parametrize("counts", [True, False])
def test_a_deletion_in_the_middle_is_no_way_back(ask, going_on, counts):
    add(ask, *(f"{n}-0" for n in range(1, 21)))
    ask("XDEL", "10-0", "9-0", "15-0")

    assert going_on(ReadPosition("10-0", 10), counts=counts) == (ReadPosition("10-0", 10), None)


@pytest.mark.parametrize("purged", [["2-0"], ["4-0"], ["5-0"], ["6-0", "3-0"]], ids=" ".join)
def test_dead_letters_go_on_after_a_purge(valkey, real_url, project, reader, purged):
    name, key = "dlq:mail:default", f"{project}:dlq:mail:default"
    for n in range(1, 6):
        valkey.ask("XADD", key, f"{n}-0", "payload", "1", "error", "e")
    valkey.ask("XTRIM", key, "MAXLEN", 4)
    read = reader.run(planning.look(reader.scope, [name]))[name].end
    valkey.ask("XADD", key, "6-0", "payload", "1", "error", "e")

    with agentbus.connect(real_url, project=project) as bus:
        assert [bus.queue("mail").purge(one) for one in purged] == [1] * len(purged)

    heads = reader.run(planning.look(reader.scope, [name]))
    found = epochs.continued(reader.scope, heads, {name: read}, counts=lambda _name: True)
    assert reader.run(found) == ({name: read}, {})
    assert (heads[name].last, heads[name].added) == ("6-0", 6)


def test_a_stream_trimmed_beyond_the_position_goes_on(ask, going_on):
    add(ask, *(f"{n}-0" for n in range(1, 21)))
    ask("XTRIM", "MAXLEN", 3)

    assert going_on(ReadPosition("10-0", 10)) == (ReadPosition("10-0", 10), None)


def test_a_forged_count_is_no_loss(ask, going_on):
    add(ask, *(f"{n}-0" for n in range(1, 21)))
    ask("XSETID", "20-0", "ENTRIESADDED", 1_000_000)

    with pytest.raises(EpochMismatch, match="went back in time"):
        going_on(ReadPosition("10-0", 10))


def test_an_end_that_was_set_on_is_no_way_back(ask, reader, going_on):
    add(ask, "1-0", "2-0")
    ask("XSETID", "10-0")
    heads = reader.run(planning.look(reader.scope, ["q:mail"]))
    add(ask, "11-0")

    assert going_on(heads["q:mail"].end) == (ReadPosition("2-0", 2), None)


def test_an_emptied_and_new_stream_with_a_group_alone_has_nothing_new(
    ask, valkey, project, going_on
):
    valkey.ask("XGROUP", "CREATE", f"{project}:q:mail", "default", "0", "MKSTREAM")

    assert going_on(ReadPosition("10-0", 10)) == (ReadPosition("10-0", 0), None)


def test_a_running_server_that_trimmed_a_new_stream_did_not_go_back(ask, valkey, going_on):
    # After the server's start, which is known by the second.
    now = (int(valkey.ask("TIME")[0]) + 10) * 1000
    add(ask, *(f"{now + n}-0" for n in range(1, 9)))
    ask("XTRIM", "MAXLEN", 3)

    # The position is younger than the server: it was created again. An older one may be of another server.
    assert going_on(ReadPosition(f"{now}-0", 100)) == (ReadPosition(f"{now}-0", 0), None)
    with pytest.raises(EpochMismatch, match="deleted, made again"):
        going_on(ReadPosition("5-0", 100))
    assert going_on(ReadPosition("5-0", 100), may=True) == (ReadPosition("5-0", 5), Epoch.UNSURE)
