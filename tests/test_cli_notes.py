"""The verbs of notes: jot, recall, list, forget."""

from __future__ import annotations

import json
import re

import pytest

from tests.servers import Shell

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    return real_shell


def keys(shell: Shell, *args: str) -> list[str]:
    return [record["key"] for record in shell.records(*args)]


# -- jot --


@pytest.mark.parametrize(
    "args",
    [
        ["plan", "the value"],
        ["--key", "plan", "--value", "the value"],
        ["--key=plan", "the value"],
        ["plan", "--value=the value"],
        ["plan", "-"],
        ["plan", "@value.txt"],
        ["--key", "plan", "-"],
    ],
)
def test_a_note_is_written_by_arguments_options_stdin_or_a_file(shell, args):
    (shell.home / "value.txt").write_text("the value")

    assert shell.ok("jot", *args, stdin="the value") == "plan\n"

    assert shell.ok("recall", "plan") == "the value"


def test_jot_as_json(shell):
    (record,) = shell.records("jot", "plan", "x", "--tag", "a,b", "--tag", "c")

    assert list(record) == ["key", "value", "agent_id", "timestamp", "tags", "author"]
    assert re.fullmatch(TIME, record.pop("timestamp"))
    assert record.pop("author") == "ada"
    assert record == {"key": "plan", "value": "x", "agent_id": "ada", "tags": ["a", "b", "c"]}


def test_jot_replaces_value_author_and_tags(shell):
    shell.ok("jot", "plan", "1", "--tag", "old")
    shell.ok("jot", "plan", "2", "--tag", "new", "--agent", "bob")

    (record,) = shell.records("recall", "plan")
    assert (record["value"], record["agent_id"], record["tags"]) == ("2", "bob", ["new"])
    assert shell.ok("recall", "--tag", "old") == ""


def test_if_absent_refuses_an_existing_note_with_exit_4(shell):
    shell.ok("jot", "plan", "1", "--if-absent")

    done = shell.run("jot", "plan", "2", "--if-absent")

    assert (done.returncode, done.stdout) == (4, "")
    assert shell.ok("recall", "plan") == "1"


@pytest.mark.parametrize(
    "args",
    [
        ["plan"],
        ["plan", ""],
        ["plan", "--value", ""],
        ["--value", "x"],
        ["plan", "x", "--value", "y"],
        ["plan", "x", "--key", "y"],
        ["", "x"],
        ["plan", "-"],
        ["plan", "@missing"],
        ["plan", "x", "--tag", "t" * 257],
        ["a", "b", "c"],
    ],
)
def test_a_note_that_will_not_do_is_a_usage_error(shell, args):
    done = shell.run("jot", *args, stdin="")

    assert (done.returncode, done.stdout) == (2, "")
    assert shell.ok("list") == ""


# -- recall --


@pytest.mark.parametrize("value", ["no newline", "one\n", "\n\n two \n\n", "Grüße 🚀\t", "\x1b[1m"])
def test_recall_prints_exactly_the_value(shell, value):
    shell.ok("jot", "plan", "--value", value)

    assert shell.ok("recall", "plan") == value
    assert shell.ok("recall", "--key", "plan") == value
    assert shell.records("recall", "plan")[0]["value"] == value


def test_recall_of_a_missing_note_is_exit_5(shell):
    done = shell.run("recall", "plan")

    assert (done.returncode, done.stdout) == (5, "")
    assert "'plan'" in done.stderr


def test_recall_as_json(shell):
    shell.ok("jot", "plan", "x", "--tag", "a")

    (record,) = shell.records("recall", "plan")

    assert list(record) == ["key", "value", "agent_id", "timestamp", "tags", "author"]
    assert record["tags"] == ["a"]


def test_recall_by_tags_takes_any_newest_first(shell):
    shell.ok("jot", "one", "1", "--tag", "a")
    shell.ok("jot", "two", "2", "--tag", "b")
    shell.ok("jot", "both", "3", "--tag", "a,b")

    assert keys(shell, "recall", "--tag", "a,b") == ["both", "two", "one"]
    assert keys(shell, "recall", "--tag", "a", "--tag", "b") == ["both", "two", "one"]
    assert keys(shell, "recall", "--tag", "a,b", "--all") == ["both"]
    assert keys(shell, "recall", "--tag", "a,b", "--latest", "1") == ["both"]


def test_recall_by_tags_prints_a_line_a_note(shell):
    shell.ok("jot", "one", "first\nsecond", "--tag", "a")

    (line,) = shell.ok("recall", "--tag", "a").splitlines()

    assert line.startswith("one [a] ")
    assert r"first\nsecond" in line


def test_recall_by_tags_takes_ten_by_default(shell, bus_of):
    for number in range(11):
        bus_of.jot(f"note-{number}", "x", tags=["a"])

    assert len(keys(shell, "recall", "--tag", "a")) == 10


def test_recall_by_a_tag_that_nothing_has_is_no_error(shell):
    assert shell.ok("recall", "--tag", "a") == ""


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["plan", "--tag", "a"],
        ["plan", "--key", "plan"],
        ["--tag", "a", "--latest", "x"],
        ["a", "b"],
    ],
)
def test_what_cannot_be_recalled_is_a_usage_error(shell, args):
    done = shell.run("recall", *args)

    assert (done.returncode, done.stdout) == (2, "")


# -- list --


@pytest.fixture
def bus_of(real_url, project):
    import agentbus

    with agentbus.connect(real_url, project=project, agent="ada") as opened:
        yield opened


def test_list_shows_notes_without_values_newest_first(shell):
    shell.ok("jot", "one", "secret", "--tag", "a")
    shell.ok("jot", "two", "secret")

    first, second = shell.records("list")

    assert list(first) == ["key", "agent_id", "timestamp", "tags", "author"]
    assert (first["key"], second["key"], second["tags"]) == ("two", "one", ["a"])
    assert re.fullmatch(TIME, first["timestamp"])
    assert "secret" not in shell.ok("list")


def test_list_of_a_tag(shell):
    shell.ok("jot", "one", "1", "--tag", "a")
    shell.ok("jot", "two", "2", "--tag", "b")

    assert keys(shell, "list", "--tag", "a") == ["one"]


def test_list_shows_fifty_notes_by_default(shell, bus_of):
    for number in range(51):
        bus_of.jot(f"note-{number}", "x")

    assert len(keys(shell, "list")) == 50
    assert len(keys(shell, "list", "--latest", "51")) == 51


def test_list_flags(shell):
    shell.ok("announce", "building", "--ttl", "60")
    shell.ok("satisfy", "ready", "--note", "go")

    building, ready = shell.records("list", "--flags")

    fields = ["flag", "state", "agent_id", "timestamp", "ttl", "token", "note"]
    assert list(building) == list(ready) == fields
    assert (building["state"], ready["state"], ready["note"]) == ("held", "satisfied", "go")
    assert 0 < building["ttl"] <= 60
    assert re.fullmatch(TIME, building["timestamp"])


def test_list_agents(shell):
    shell.ok("speak", "one")
    shell.ok("speak", "two")
    shell.ok("overhear", "--from-start", "--max", "1", "--agent", "bob")

    found = {record["agent_id"]: record for record in shell.records("list", "--agents")}

    assert list(found["bob"]) == ["agent_id", "last_seen", "heard", "unheard"]
    assert (found["bob"]["unheard"], found["ada"]["unheard"], found["ada"]["heard"]) == (
        1,
        None,
        None,
    )


def test_list_topics(shell):
    shell.ok("speak", "hi", "--topic", "build")

    (record,) = shell.records("list", "--topics")

    assert list(record) == ["topic", "last_spoken"]
    assert record["topic"] == "build"


def test_list_queues_of_a_project_without_any(shell):
    assert shell.ok("list", "--queues") == ""


@pytest.mark.parametrize("args", [["--flags", "--agents"], ["--flags", "--tag", "a"], ["notes"]])
def test_what_cannot_be_listed_is_a_usage_error(shell, args):
    done = shell.run("list", *args)

    assert (done.returncode, done.stdout) == (2, "")


# -- forget --


def test_forget_removes_the_note_and_its_tags(shell):
    shell.ok("jot", "plan", "x", "--tag", "a")

    assert shell.ok("forget", "plan") == "plan\n"

    assert shell.run("recall", "plan").returncode == 5
    assert shell.ok("list") == shell.ok("recall", "--tag", "a") == ""


def test_forget_as_json(shell):
    shell.ok("jot", "plan", "x")

    assert shell.records("forget", "plan") == [{"key": "plan"}]


def test_forgetting_what_is_not_there_is_exit_5(shell):
    done = shell.run("forget", "plan", "--json")

    assert (done.returncode, done.stdout) == (5, "")
    assert json.loads(done.stderr)["code"] == 5


def test_forget_needs_a_key(shell):
    assert shell.run("forget").returncode == 2


def test_a_default_takes_the_place_of_a_note_that_is_absent(shell):
    assert shell.ok("recall", "image", "--default", "none") == "none"
    (record,) = shell.records("recall", "image", "--default", "none")
    assert (record["key"], record["value"], record["agent_id"]) == ("image", "none", None)

    shell.ok("jot", "image", "v7")

    assert shell.ok("recall", "image", "--default", "none") == "v7"
    assert shell.run("recall", "--tag", "a", "--default", "none").returncode == 2
