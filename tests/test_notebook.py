"""Notes: written, found again by key and by tags, and removed, each in one step."""

from __future__ import annotations

import re

import pytest

import agentbus
from agentbus import InvalidName, InvalidPayload, NoteExists, NotFound, UsageError
from tests.servers import Server


@pytest.fixture
def bob(connect):
    return connect("bob")


def keys(notes):
    return [note.key for note in notes]


# -- jot and recall --


def test_a_note_is_recalled_as_it_was_written(bus, bob):
    written = bus.jot("docker-build", "docker build -t app .", tags=["docker", "build"])

    found = bob.recall("docker-build")

    assert found == written
    assert (found.value, found.author, found.tags) == (
        "docker build -t app .",
        "ada",
        ("docker", "build"),
    )
    assert isinstance(found.timestamp, float)


@pytest.mark.parametrize(
    "value",
    ["two\nlines\n", "  spaces  ", "Grüße 🚀", '{"a": "\\"b\\""}', "\x1b[31mred", "x" * 262144],
)
def test_a_value_comes_back_to_the_letter(bus, value):
    bus.jot("note", value)

    assert bus.recall("note").value == value


@pytest.mark.parametrize(
    "key", ["a:b", "ünïcode", "with space", "*", "[a]?", "{x}", "%41", "k" * 256]
)
def test_a_key_is_only_a_name(bus, key):
    bus.jot(key, "here")

    assert bus.recall(key).value == "here"
    assert keys(bus.list_()) == [key]


def test_a_note_that_is_not_there_is_not_found(bus):
    with pytest.raises(NotFound, match="'nothing'") as missing:
        bus.recall("nothing")

    assert missing.value.exit_code == 5


def test_a_note_is_replaced_by_whoever_writes_it_last(bus, bob):
    bus.jot("plan", "first")
    bob.jot("plan", "second")

    found = bus.recall("plan")

    assert (found.value, found.author) == ("second", "bob")
    assert keys(bus.list_()) == ["plan"]


def test_replacing_a_note_replaces_its_tags(bus):
    bus.jot("plan", "1", tags=["old", "kept"])
    bus.jot("plan", "2", tags=["kept", "new"])

    assert keys(bus.notes(["old"])) == []
    assert keys(bus.notes(["kept"])) == ["plan"]
    assert bus.recall("plan").tags == ("kept", "new")


def test_replacing_a_note_without_tags_leaves_it_none(bus):
    bus.jot("plan", "1", tags=["old"])
    bus.jot("plan", "2")

    assert bus.recall("plan").tags == ()
    assert bus.notes(["old"]) == []


def test_a_note_is_written_in_one_request_while_its_tags_stay(own_server: Server):
    def written(tags: list[str]) -> int:
        own_server.ask("CONFIG", "RESETSTAT")
        bus.jot("plan", "build", tags=tags)
        stats = own_server.ask("INFO", "commandstats").decode()
        return int(re.search(r"cmdstat_evalsha:calls=(\d+)", stats)[1])

    with agentbus.connect(own_server.url, agent="ada") as bus:
        bus.jot("plan", "think", tags=["a", "b"])

        assert [written(tags) for tags in (["a", "b"], ["b"], [], [])] == [1, 2, 2, 1]
        assert bus.list_(tag="a") == bus.list_(tag="b") == []


def test_if_absent_writes_a_new_note(bus):
    assert bus.jot("plan", "1", if_absent=True).value == "1"


def test_if_absent_changes_nothing_of_a_note_that_is_there(bus, bob):
    before = bus.jot("plan", "first", tags=["a"])

    with pytest.raises(NoteExists) as refused:
        bob.jot("plan", "second", tags=["b"], if_absent=True)

    assert refused.value.exit_code == 4
    assert bus.recall("plan") == before
    assert bus.notes(["b"]) == []
    assert [m.event for m in bus.overhear()] == ["jotted"]


def test_a_tag_given_twice_counts_once(bus):
    assert bus.jot("plan", "1", tags=["a", "a"]).tags == ("a",)


def test_a_note_is_an_event_on_the_channel(bus):
    bus.jot("plan", "secret contents")
    bus.forget("plan")

    said = list(bus.overhear("knowledge"))

    assert [(m.agent_id, m.event, m.details) for m in said] == [
        ("ada", "jotted", {"note": "plan"}),
        ("ada", "forgotten", {"note": "plan"}),
    ]
    assert "secret" not in said[0].text


@pytest.mark.parametrize("value", ["", "nul\0", "x" * 262145, None, 7])
def test_a_value_that_no_sink_could_keep_is_refused(bus, value):
    with pytest.raises(InvalidPayload):
        bus.jot("note", value)

    assert bus.list_() == []


@pytest.mark.parametrize("tag", ["", "a,b", "a\nb", "t" * 257])
def test_a_bad_tag_is_refused(bus, tag):
    with pytest.raises(InvalidName):
        bus.jot("note", "value", tags=[tag])


def test_a_text_in_place_of_a_list_of_tags_is_refused(bus):
    with pytest.raises(UsageError):
        bus.jot("note", "value", tags="docker")


# -- by tags --


def test_notes_with_any_tag_come_newest_first_across_tags(bus):
    bus.jot("one", "1", tags=["a"])
    bus.jot("two", "2", tags=["b"])
    bus.jot("three", "3", tags=["a", "b"])
    bus.jot("other", "4", tags=["c"])

    assert keys(bus.notes(["a", "b"])) == ["three", "two", "one"]


def test_notes_with_all_tags_have_every_one(bus):
    bus.jot("one", "1", tags=["a"])
    bus.jot("both", "2", tags=["a", "b"])

    assert keys(bus.notes(["a", "b"], all=True)) == ["both"]


def test_notes_without_tags_are_all_notes_newest_first(bus):
    for key in ("one", "two", "three"):
        bus.jot(key, key)

    assert keys(bus.notes()) == ["three", "two", "one"]


def test_a_note_that_is_written_again_is_the_newest(bus):
    for key in ("one", "two", "one"):
        bus.jot(key, key, tags=["a"])

    assert keys(bus.notes(["a"])) == ["one", "two"]


def test_latest_bounds_how_many_notes_come(bus):
    for number in range(12):
        bus.jot(f"note-{number}", "x", tags=["a"])

    assert keys(bus.notes(["a"], latest=2)) == ["note-11", "note-10"]
    assert keys(bus.notes(latest=2)) == ["note-11", "note-10"]
    assert len(bus.notes(["a"])) == 10
    assert bus.notes(["a"], latest=0) == []


def test_all_looks_past_the_newest_notes_that_lack_a_tag(bus):
    bus.jot("wanted", "x", tags=["a", "b"])
    for number in range(110):
        bus.jot(f"a-{number}", "x", tags=["a"])
        bus.jot(f"b-{number}", "x", tags=["b"])

    assert keys(bus.notes(["a", "b"], all=True, latest=1)) == ["wanted"]


def test_a_list_has_no_values(bus):
    bus.jot("note", "value", tags=["a"])

    (listed,) = bus.list_(tag="a")

    assert (listed.key, listed.value, listed.author, listed.tags) == ("note", None, "ada", ("a",))


# -- forget --


def test_a_forgotten_note_is_gone_with_its_tags(bus):
    bus.jot("note", "value", tags=["a", "b"])

    bus.forget("note")

    with pytest.raises(NotFound):
        bus.recall("note")
    assert bus.notes(["a", "b"]) == []
    assert bus.list_() == []


def test_forgetting_what_is_not_there_is_not_found(bus):
    with pytest.raises(NotFound):
        bus.forget("nothing")

    assert list(bus.overhear()) == []


# -- all or nothing --


@pytest.fixture
def spoilt(valkey: Server, project):
    """A project in which another program has put something else where a tag's index belongs."""
    valkey.ask("SET", f"{project}:jots_by_tag:bad", "no index")
    with agentbus.connect(valkey.url, project=project, agent="ada") as opened:
        yield opened


def test_a_note_that_cannot_be_written_whole_is_not_written_at_all(spoilt):
    spoilt.jot("note", "before", tags=["good"])

    with pytest.raises(agentbus.AgentBusError):
        spoilt.jot("note", "after", tags=["good", "bad"])

    assert spoilt.recall("note").value == "before"
    assert keys(spoilt.notes(["good"])) == ["note"]
    assert [m.event for m in spoilt.overhear()] == ["jotted"]


def test_a_note_has_at_most_a_thousand_tags(bus):
    """One script writes and reads them, and everybody waits for it."""
    tags = [f"t{number}" for number in range(1001)]
    bus.jot("k", "v", tags=tags[1:])
    assert [note.key for note in bus.notes(tags=tags[1:], all=True)] == ["k"]

    for refused in (lambda: bus.jot("k", "v", tags=tags), lambda: bus.notes(tags=tags)):
        with pytest.raises(UsageError, match="there are 1001 tags"):
            refused()
