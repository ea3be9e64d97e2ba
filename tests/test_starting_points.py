"""Where an agent starts that has no cursor, and what it is told of what it skips."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from agentbus import UsageError
from agentbus.core.timespec import following, preceding
from agentbus.store.steps import Command, one_step
from tests.servers import Shell
from tests.tiers import on_one_store


@pytest.fixture
def bob(connect):
    return connect("bob")


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    return real_shell


def said(bus, *texts, topic=None):
    return [bus.speak(text, topic=topic).id for text in texts]


def texts(messages):
    return [m.text for m in messages if m.event != "skipped"]


def skips(messages):
    return [(m.topic, m.details["skipped"]) for m in messages if m.event == "skipped"]


# -- the library --


def test_by_default_a_new_agent_starts_at_the_first_message(bus, bob):
    said(bus, "one", "two", "three")

    assert [m.text for m in bob.overhear(limit=2)] == ["one", "two"]


def test_a_new_agent_may_start_at_the_newest_messages_in_order(bus, bob):
    said(bus, "one", "two", "three")

    found = list(bob.overhear(limit=2, start="newest"))

    assert texts(found) == ["two", "three"]
    assert skips(found) == [(None, "1")]
    assert texts(bob.overhear(start="newest")) == []


def test_with_room_for_all_nothing_is_skipped(bus, bob):
    said(bus, "one", "two")

    found = list(bob.overhear(limit=2, start="newest"))

    assert (texts(found), skips(found)) == (["one", "two"], [])


def test_after_the_id_of_the_report_the_skipped_messages_follow(bus, bob):
    said(bus, "one", "two", "three", "four")

    (report, *_) = bob.overhear(limit=1, start="newest")

    assert texts(bob.overhear(since=report.id)) == ["one", "two", "three", "four"]
    assert report.agent_id == "bob"


def test_the_newest_of_a_topic_are_counted_by_topic(bus, bob):
    said(bus, "b1", "b2", "b3", topic="build")
    said(bus, "d1", "d2", topic="deploy")

    found = list(bob.overhear("build", limit=2, start="newest"))

    assert (texts(found), skips(found)) == (["b2", "b3"], [(None, "1")])


def test_the_newest_of_others_leave_out_ones_own(bus, bob):
    said(bus, "one", "two")
    said(bob, "mine", "mine too")

    found = list(bob.overhear(limit=1, start="newest", others=True))

    assert (texts(found), skips(found)) == (["two"], [(None, "1")])


def test_a_known_agents_new_topic_starts_at_its_cursor_for_all_topics(bus, bob):
    said(bus, "heard", "heard too", topic="build")
    list(bob.overhear())
    said(bus, "new", topic="build")

    found = list(bob.overhear("build", start="newest"))

    assert (texts(found), skips(found)) == (["new"], [("build", "2")])
    assert texts(bob.overhear("build", start="newest")) == []


def test_what_a_new_topic_skips_is_reported_once_even_if_nothing_is_behind_it(bus, bob):
    said(bus, "b1", "b2", topic="build")
    list(bob.overhear())

    assert skips(bob.overhear("build", start="newest")) == [("build", "2")]
    assert skips(bob.overhear("build", start="newest")) == []
    said(bus, "b3", topic="build")
    list(bob.overhear())
    assert texts(bob.overhear("build", start="newest")) == ["b3"]


def test_a_cursor_that_exists_is_where_reading_goes_on(bus, bob):
    said(bus, "one")
    list(bob.overhear())
    said(bus, "two", "three", "four")

    found = list(bob.overhear(limit=2, start="newest"))

    assert (texts(found), skips(found)) == (["two", "three"], [])


def test_an_empty_cursor_of_another_program_is_refused(bus, bob):
    said(bus, "one")
    bob.runner.run(one_step(Command("SET", bob.scope.keys.cursor("bob"), "")))

    with pytest.raises(UsageError, match="is not a stream id"):
        list(bob.overhear(start="newest"))


def test_peeking_from_the_newest_moves_nothing(bus, bob):
    said(bus, "one", "two")

    for _ in range(2):
        assert texts(bob.overhear(limit=1, start="newest", peek=True)) == ["two"]


def test_a_start_that_is_none_is_refused(bob):
    with pytest.raises(UsageError, match="start is"):
        list(bob.overhear(start="last"))


@on_one_store
def test_thousands_of_messages_are_counted(bus, bob):
    said(bus, *map(str, range(2500)))

    found = list(bob.overhear(limit=3, start="newest"))

    assert (texts(found), skips(found)) == (["2497", "2498", "2499"], [(None, "2497")])


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_an_id_follows_the_one_before_it(milliseconds, sequence):
    if (milliseconds, sequence) != (0, 0):
        before = tuple(map(int, preceding((milliseconds, sequence)).split("-")))
        assert following(before) == f"{milliseconds}-{sequence}"


# -- the verb --


def test_the_verb_starts_at_the_newest_and_says_what_it_skips(shell):
    for text in ("one", "two", "three"):
        shell.ok("speak", text)

    done = shell.run("overhear", "--max", "2", "--agent", "bob")

    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["two", "three"]
    report = done.stderr.splitlines()[0]
    assert "1 message was skipped" in report
    since = report.split("--since ")[1].split("'")[0]
    assert "one" in shell.ok("overhear", "--since", since)


def test_a_skip_is_a_record_as_json(shell):
    for text in ("one", "two"):
        shell.ok("speak", text)

    skip, two = shell.records("overhear", "--max", "1", "--agent", "bob")

    assert (skip["event"], skip["skipped"], skip["agent_id"]) == ("skipped", 1, "bob")
    assert two["message"] == "two"


@pytest.mark.parametrize("option", ["--from-start", "--reset"])
def test_the_verb_may_start_at_the_first(shell, option):
    for text in ("one", "two"):
        shell.ok("speak", text)

    assert shell.records("overhear", "--max", "1", option)[0]["message"] == "one"


def test_a_follower_starts_at_the_first(shell):
    for text in ("one", "two"):
        shell.ok("speak", text)

    found = shell.records("overhear", "--follow", "--timeout", "0.1", "--max", "1")

    assert [message["message"] for message in found] == ["one"]


def test_an_agent_that_is_far_behind_learns_how_many_remain(shell):
    shell.ok("overhear")
    for text in ("zero", "one", "two", "three"):
        shell.ok("speak", text)
        if text == "zero":
            shell.ok("overhear")

    done = shell.run("overhear", "--max", "1")

    assert "one" in done.stdout
    assert done.stderr == "agentbus: 2 more remain; --catch-up marks them as heard\n"


def test_catch_up_marks_all_as_heard_and_says_how_to_go_back(shell):
    shell.ok("speak", "zero")
    shell.ok("overhear")
    for text in ("one", "two"):
        shell.ok("speak", text)

    done = shell.run("overhear", "--catch-up")

    assert (done.returncode, done.stdout) == (0, "")
    assert "2 messages were skipped" in done.stderr
    since = done.stderr.split("--since ")[1].split("'")[0]
    assert shell.ok("overhear") == ""
    assert "one" in shell.ok("overhear", "--since", since, "--max", "1")
    assert shell.run("overhear", "--catch-up").stderr == ""


def test_catch_up_of_a_topic_leaves_the_others(shell):
    for topic in ("a", "b"):
        shell.ok("speak", topic, "--topic", topic)

    (skip,) = shell.records("overhear", "--catch-up", "--topic", "a")

    assert (skip["event"], skip["skipped"]) == ("skipped", 1)
    assert shell.records("overhear", "--topic", "a,b")[0]["message"] == "b"


@pytest.mark.parametrize("option", [("--peek",), ("--last", "1"), ("--follow",), ("--max", "3")])
def test_catch_up_goes_with_a_topic_alone(shell, option):
    assert shell.run("overhear", "--catch-up", *option).returncode == 2


def test_topics_may_be_given_with_commas_and_all_at_once(shell):
    for topic in ("a", "b", "c"):
        shell.ok("speak", topic, "--topic", topic)

    assert [m["message"] for m in shell.records("overhear", "--topic", "c,a")] == ["a", "c"]
    assert [m["message"] for m in shell.records("overhear", "--topic", "all")] == ["a", "b", "c"]
    assert shell.ok("overhear") == ""


def test_notes_are_listed_by_any_of_several_tags(shell):
    for key, tag in (("x", "a"), ("y", "b"), ("z", "c")):
        shell.ok("jot", key, "v", "--tag", tag)

    assert {note["key"] for note in shell.records("list", "--tag", "a,b")} == {"x", "y"}
    assert json.loads(shell.ok("list", "--tag", "c", "--json"))["key"] == "z"
