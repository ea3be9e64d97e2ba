"""The page of a dashboard about notes: filtered by key and tag, a page at a time, with values cut."""

from __future__ import annotations

from agentbus.core.keys import Keys
from agentbus.dashboard import Pages, RowRange
from tests.servers import ask


def keys_of(page):
    return [one.key for one in page.notes]


def test_notes_are_those_of_the_other_views(bus):
    bus.jot("db-engine", "postgres", tags=["decision"])
    bus.jot("style", "plain")

    found = Pages(bus).notes()

    assert list(found.notes) == bus.notes()
    assert (found.matching, found.tags, found.cut) == (2, {"decision": 1}, {})


def test_notes_are_filtered_by_key_and_tag(bus):
    bus.jot("db-engine", "postgres", tags=["decision", "db"])
    bus.jot("db-host", "localhost", tags=["db"])
    bus.jot("style", "plain", tags=["decision"])
    pages = Pages(bus)

    assert keys_of(pages.notes(RowRange(match="DB-"))) == ["db-host", "db-engine"]
    assert keys_of(pages.notes(tag="decision")) == ["style", "db-engine"]
    assert keys_of(pages.notes(RowRange(match="db"), tag="decision")) == ["db-engine"]
    assert keys_of(pages.notes(tag="none")) == []
    assert list(pages.notes().tags) == ["db", "decision"]


def test_a_text_to_match_is_no_pattern(bus):
    bus.jot("a*b", "1")
    bus.jot("axb", "2")

    assert keys_of(Pages(bus).notes(RowRange(match="*"))) == ["a*b"]


def test_notes_are_paged(bus):
    for number in range(120):
        bus.jot(f"n{number}", "x")

    found = Pages(bus).notes(RowRange(offset=100, limit=100))

    assert keys_of(found) == [f"n{number}" for number in range(19, -1, -1)]
    assert found.matching == 120


def test_a_long_value_is_cut(bus):
    bus.jot("long", "ü" * 3000)

    found = Pages(bus).notes()

    assert found.notes[0].value == "ü" * 1999
    assert found.cut == {"long": 6000}


def test_notes_of_another_program_are_listed(bus):
    keys = Keys(bus.project)
    ask(bus, "HSET", keys.jot("theirs"), "value", b"\xff", "tags", "x,y", "timestamp", "soon")
    ask(bus, "SET", keys.jot("wrong"), "text")
    bus.jot("ours", "1")

    found = Pages(bus).notes()

    assert keys_of(found) == ["ours", "theirs"]
    assert found.notes[1].value == "\\xff"


async def test_an_async_bus_has_the_same_notes(abus):
    await abus.jot("k", "v")

    assert keys_of(await Pages(abus).notes()) == ["k"]
