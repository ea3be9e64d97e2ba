"""The verbs of talk, and what all verbs share: bodies, global options, errors, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import pytest

from tests.servers import Shell, program

ID = r"\d+-\d+"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    return real_shell


def heard(shell: Shell, *args: str, **options: object) -> list[str]:
    return [record["message"] for record in shell.records("overhear", *args, **options)]


def error_of(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    (line,) = done.stderr.splitlines()
    return json.loads(line)


# -- speak --


def test_speak_prints_the_id_of_the_entry(shell, valkey, project):
    said = shell.ok("speak", "hi", "--topic", "build")

    assert re.fullmatch(ID + "\n", said)
    ((entry_id, fields),) = valkey.ask("XRANGE", f"{project}:ch:main", "-", "+")
    assert entry_id.decode() == said.strip()
    assert fields == [b"agent_id", b"ada", b"message", b"hi", b"topic", b"build"]


def test_speak_as_json(shell):
    (record,) = shell.records("speak", "hi", "--topic", "build")

    assert list(record) == ["id", "agent_id", "topic", "message", "timestamp", "reach"]
    assert re.fullmatch(ID, record["id"])
    assert re.fullmatch(TIME, record["timestamp"])
    assert (record["agent_id"], record["topic"], record["message"]) == ("ada", "build", "hi")


def test_speak_without_a_topic_has_none(shell):
    (record,) = shell.records("speak", "hi")

    assert record["topic"] is None


@pytest.mark.parametrize(
    "args", [["--msg", "hi"], ["--msg=hi"], ["-"], ["@body.txt"], ["--", "hi"]]
)
def test_a_body_comes_from_an_argument_an_option_stdin_or_a_file(shell, args):
    (shell.home / "body.txt").write_text("hi")

    shell.ok("speak", *args, stdin="hi")

    assert heard(shell) == ["hi"]


@pytest.mark.parametrize("text", ["-", "@body.txt", "--json"])
def test_an_option_takes_a_body_literally(shell, text):
    shell.ok("speak", f"--msg={text}")

    assert heard(shell) == [text]


@pytest.mark.parametrize(
    ("stdin", "body"),
    [
        ("two\n  lines: Grüße 🚀\n\n", "two\n  lines: Grüße 🚀\n"),
        ("one\n", "one"),
        ("one\r\n", "one"),
        ("one\r", "one\r"),
        ("no newline", "no newline"),
    ],
)
def test_a_body_from_stdin_is_kept_but_for_its_last_newline(shell, stdin, body):
    shell.ok("speak", "-", stdin=stdin.encode())

    assert heard(shell) == [body]


def test_a_fifo_that_nobody_writes_to_is_an_empty_body(shell):
    os.mkfifo(shell.home / "fifo")

    assert shell.run("speak", f"@{shell.home}/fifo").returncode == 2


def test_a_pipe_is_read_until_its_writer_ends(shell):
    done = subprocess.run(
        ["bash", "-c", f"{program()} speak @<(read -t 0.2 <> <(:); echo later) --json"],
        env=shell.environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert json.loads(done.stdout)["message"] == "later\n"


def test_a_body_from_a_file_is_kept_with_its_last_newline(shell):
    (shell.home / "body.txt").write_bytes(b"one\n")
    shell.ok("speak", f"@{shell.home}/body.txt")

    assert heard(shell) == ["one\n"]


@pytest.mark.parametrize(
    ("args", "stdin"),
    [
        (["speak", ""], None),
        (["speak", "--msg", ""], None),
        (["speak", "-"], ""),
        (["speak", "-"], "\n"),
        (["speak", "@empty"], None),
        (["speak"], None),
        (["speak", "hi", "--msg", "hi"], None),
        (["speak", "hi", "there"], None),
        (["speak", "@missing"], None),
        (["speak", "@."], None),
        (["speak", "-"], b"\xff\xfe"),
        (["speak", "-"], "x" * 262145),
        (["speak", "a", "--topic", ""], None),
        (["speak", "a", "--topic", "t" * 257], None),
    ],
)
def test_a_body_or_topic_that_will_not_do_is_a_usage_error(shell, args, stdin):
    (shell.home / "empty").write_text("")

    done = shell.run(*args, stdin=stdin)

    assert (done.returncode, done.stdout) == (2, "")
    assert 1 <= len(done.stderr.splitlines()) <= 2
    assert heard(shell) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("@reviewer", "--msg @reviewer"),
        ("@reviewer, please look", "--msg '@reviewer, please look'"),
        *(("@", "--msg @"), ("@a\nb", "--msg '@a"), ("@a/b/c d", "--msg '@a/b/c d'")),
        *(("@" + "a" * 300, "--msg @…"), ("@x " + "é/" * 3000, "--msg @…")),
    ],
)
def test_a_text_that_begins_with_an_at_sign_and_names_no_file_is_refused(shell, text, told):
    done = shell.run("speak", text)

    assert (done.returncode, done.stdout) == (2, "")
    assert "names no file" in done.stderr
    assert told in done.stderr
    assert len(done.stderr) < 300
    assert heard(shell) == []


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("jot", "how", "@ada knows"), "--value '@ada knows'"),
        (("publish", "mail", "@ada knows"), "'\"@…\"'"),
    ],
)
def test_what_is_no_text_to_speak_is_refused_so_too(shell, argv, told):
    done = shell.run(*argv)

    assert (done.returncode, told in done.stderr) == (2, True)


def test_a_text_of_several_lines_names_no_file_though_there_is_one(shell):
    (shell.home / "a\nb").write_text("secret")

    assert shell.run("speak", "@a\nb").returncode == 2


def test_a_file_may_have_spaces_in_its_name(shell):
    (shell.home / "my report").write_text("hi")

    shell.ok("speak", "@my report")

    assert heard(shell) == ["hi"]


# -- overhear --


def test_two_shells_hear_a_message_once_each_for_its_topic(shell):
    shell.ok("speak", "hi", "--topic", "build", "--agent", "bob")

    assert "bob [build] hi" in shell.ok("overhear", "--topic", "build")
    assert shell.ok("overhear", "--topic", "build") == ""
    assert "bob [build] hi" in shell.ok("overhear")
    assert shell.ok("overhear") == ""


def test_overhear_as_json(shell):
    (said,) = shell.records("speak", "hi", "--topic", "build")

    assert said.pop("reach") == 0
    assert shell.records("overhear") == [said]


def test_the_bus_own_entries_carry_their_event_and_subject(shell):
    shell.ok("announce", "building")
    shell.ok("jot", "plan", "x")

    announced, jotted = shell.records("overhear")

    assert (announced["topic"], announced["event"], announced["flag"]) == (
        "coordination",
        "announced",
        "building",
    )
    assert isinstance(announced["token"], int)
    assert (jotted["topic"], jotted["event"], jotted["note"]) == ("knowledge", "jotted", "plan")


def test_a_message_is_one_line_for_people(shell):
    shell.ok("speak", "two\nlines\x1b[31m")

    (line,) = shell.ok("overhear").splitlines()

    assert r"two\nlines\x1b[31m" in line


def test_topics_may_be_repeated(shell):
    for topic in ("a", "b", "c"):
        shell.ok("speak", topic, "--topic", topic)

    assert heard(shell, "--topic", "c", "--topic", "a") == ["a", "c"]


@pytest.mark.parametrize("option", ["--max", "--limit"])
def test_max_bounds_how_many_come(shell, option):
    for text in ("one", "two", "three"):
        shell.ok("speak", text)

    assert heard(shell, "--from-start", option, "2") == ["one", "two"]
    assert heard(shell) == ["three"]


def test_since_last_and_peek_move_no_cursor(shell):
    (one,) = shell.records("speak", "one")
    shell.ok("speak", "two")

    assert heard(shell, "--since", one["id"]) == ["two"]
    assert heard(shell, "--since", "30m") == ["one", "two"]
    assert heard(shell, "--since", one["timestamp"]) == ["one", "two"]
    assert heard(shell, "--last", "1") == ["two"]
    assert heard(shell, "--peek") == ["one", "two"]
    assert heard(shell) == ["one", "two"]


def test_others_leaves_out_what_the_agent_said_itself(shell):
    shell.ok("speak", "mine")
    shell.ok("speak", "yours", "--agent", "bob")

    assert heard(shell, "--others") == ["yours"]


@pytest.mark.parametrize(
    "args",
    [
        ["--max", "x"],
        ["--last", "-1"],
        ["--since", "yesterday"],
        ["--timeout", "5"],
        ["--last", "1", "--since", "1h"],
        ["--last", "1", "--follow"],
        ["--follow", "--timeout", "soon"],
        ["topic"],
    ],
)
def test_what_overhear_cannot_do_is_a_usage_error(shell, args):
    done = shell.run("overhear", *args)

    assert (done.returncode, done.stdout) == (2, "")


def test_follow_starts_at_the_cursor_and_goes_on(shell):
    shell.ok("speak", "before")
    following = shell.start("overhear", "--follow", "--timeout", "60", "--json", "--max", "2")

    assert json.loads(following.stdout.readline())["message"] == "before"
    shell.ok("speak", "after")
    assert json.loads(following.stdout.readline())["message"] == "after"
    assert following.wait(30) == 0
    following.communicate()
    assert heard(shell) == []


def test_follow_that_runs_out_of_time_is_done(shell):
    assert shell.ok("overhear", "--follow", "--timeout", "0.1") == ""


def test_a_follower_that_is_interrupted_exits_130_without_a_word(shell):
    shell.ok("speak", "before")
    following = shell.start("overhear", "--follow")
    following.stdout.readline()

    following.send_signal(signal.SIGINT)

    _, said = following.communicate(timeout=30)
    assert (following.returncode, said) == (130, "")


def test_a_reader_that_leaves_stops_the_follower_quietly(shell):
    shell.ok("speak", "one")
    following = shell.start("overhear", "--follow")
    following.stdout.readline()
    following.stdout.close()

    shell.ok("speak", "two")

    assert following.wait(30) != 0
    assert following.stderr.read() == ""
    following.stderr.close()
    assert heard(shell) == ["two"]


def test_a_gap_is_a_record_as_json_and_a_warning_as_text(shell, valkey, project):
    shell.ok("speak", "heard")
    for agent in ("ada", "bob"):
        shell.ok("overhear", "--agent", agent)
    for text in ("lost", "lost too", "kept"):
        shell.ok("speak", text)
    valkey.ask("XTRIM", f"{project}:ch:main", "MAXLEN", "1")

    gap, kept = shell.records("overhear")
    as_text = shell.run("overhear", "--agent", "bob")

    assert (gap["event"], gap["missed"], kept["message"]) == ("gap", 2, "kept")
    assert len(as_text.stdout.splitlines()) == 1
    assert "2 messages" in as_text.stderr
    assert "bob" in as_text.stderr


def test_one_message_that_was_trimmed_is_one_message(shell, valkey, project):
    shell.ok("speak", "heard")
    shell.ok("overhear", "--agent", "bob")
    for text in ("lost", "kept"):
        shell.ok("speak", text)
    valkey.ask("XTRIM", f"{project}:ch:main", "MAXLEN", "1")

    done = shell.run("overhear", "--agent", "bob")

    assert "1 message was trimmed before bob read it; that is gone for good" in done.stderr


def test_a_server_that_went_back_in_time_is_exit_1_and_says_what_to_do(shell, valkey, project):
    shell.ok("speak", "one")
    valkey.ask("SET", f"{project}:last:ada", "99999999999999-0")

    done = shell.run("overhear")

    assert (done.returncode, done.stdout) == (1, "")
    assert "--reset" in done.stderr
    assert heard(shell, "--reset") == ["one"]


# -- global options --


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    "options", [["--agent", "bob"], ["--agent=bob"], ["--json", "--agent", "bob"]]
)
def test_global_options_stand_before_or_after_the_verb(shell, before, options):
    verb = ["speak", "hi"]

    shell.ok(*(options + verb if before else verb + options))

    assert [record["agent_id"] for record in shell.records("overhear")] == ["bob"]


@pytest.mark.parametrize("option", ["--project", "--project-prefix"])
@pytest.mark.parametrize("before", [True, False])
def test_the_project_may_be_given_before_or_after_the_verb(shell, option, before, project):
    choice = [option, f"{project}-other"]

    shell.ok(*(choice if before else []), "speak", "hi", *([] if before else choice))

    assert heard(shell) == []
    assert heard(shell, *choice) == ["hi"]


@pytest.mark.parametrize("option", ["--url", "--redis-url"])
def test_the_server_may_be_given(shell, option, valkey):
    shell.ok("speak", "hi", option, valkey.tcp_url, env={"AGENTBUS_URL": "redis://127.0.0.1:1"})

    assert heard(shell) == ["hi"]


def test_agentbus_json_switches_json_on(shell):
    said = shell.ok("speak", "hi", env={"AGENTBUS_JSON": "1"})

    assert json.loads(said)["message"] == "hi"
    assert re.fullmatch(ID + "\n", shell.ok("speak", "hi", env={"AGENTBUS_JSON": "0"}))


@pytest.mark.parametrize(
    ("environment", "agent"),
    [
        ({"AGENTBUS_AGENT": "one", "AGENT_ID": "two"}, "one"),
        ({"AGENTBUS_AGENT": "", "AGENT_ID": "two"}, "two"),
        ({"AGENTBUS_AGENT": "", "LOGNAME": "me"}, f"me@{os.uname().nodename}~{os.getsid(0)}"),
    ],
)
def test_the_agent_is_the_first_found(shell, environment, agent):
    (record,) = shell.records("speak", "hi", env=environment)

    assert record["agent_id"] == agent


def test_a_topic_may_be_called_like_an_option(shell):
    shell.ok("speak", "hi", "--topic=--json")

    assert [r["topic"] for r in shell.records("overhear")] == ["--json"]


# -- errors --


def test_an_error_as_text_is_a_line_and_a_hint(shell):
    done = shell.run("recall", "nothing")

    first, second = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (5, "")
    assert first.startswith("agentbus: ")
    assert second.startswith("hint: ")


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["recall", "nothing"], 5),
        (["speak", ""], 2),
        (["speak"], 2),
        (["spaek", "hi"], 2),
        (["speak", "hi", "--no-such-option"], 2),
        (["overhear", "--max", "x"], 2),
        (["await", "never", "--timeout", "0.05"], 3),
        (["release", "x"], 4),
        (["speak", "hi", "--url", "redis://127.0.0.1:1", "--deadline", "0.3"], 1),
        (["speak", "hi", "--url", "carrier-pigeon://coop"], 2),
        (["speak", "hi", "--project", "a b"], 2),
        (["speak", "hi", "--config", "missing.yaml"], 2),
    ],
)
@pytest.mark.parametrize("how", ["before", "after", "environment"])
def test_an_error_as_json_is_one_object_on_stderr(shell, args, code, how):
    words = {"before": ["--json", *args], "after": [*args, "--json"], "environment": args}[how]

    done = shell.run(*words, env={"AGENTBUS_JSON": "1" if how == "environment" else ""})

    told = error_of(done)
    assert (done.returncode, done.stdout) == (code, "")
    assert list(told) == ["error", "code", "hint"]
    assert told["code"] == code
    assert isinstance(told["error"], str)
    assert told["hint"] is None or isinstance(told["hint"], str)


def test_a_misspelt_verb_is_guessed(shell):
    done = shell.run("spaek", "hi")

    assert done.returncode == 2
    assert "'speak'" in done.stderr


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_every_exit_code(shell, option):
    said = shell.ok(option)

    for code in ("0", "1", "2", "3", "4", "5", "6", "7", "130"):
        assert re.search(rf"^ +{code} +\S", said, re.MULTILINE)


def test_no_verb_is_a_usage_error_that_shows_the_help(shell):
    done = shell.run()

    assert (done.returncode, done.stdout) == (2, "")
    assert "overhear" in done.stderr


def test_version_is_data(shell):
    assert re.fullmatch(r"agentbus \d+\.\d+\.\d+\S*\n", shell.ok("--version"))
