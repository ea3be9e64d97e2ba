"""The verbs around work, run as real processes: publish, result, dlq."""

from __future__ import annotations

import json
import pathlib
import subprocess

import pytest

import agentbus
from tests.servers import Shell, program

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    real_shell.environment["PYTHONPATH"] = str(ROOT)
    return real_shell


@pytest.fixture
def queue(real_url, project):
    with agentbus.connect(real_url, project=project, agent="ada") as opened:
        yield opened.queue("mail")


def payloads(queue) -> list[object]:
    return [payload for _, payload in queue.peek(1000)]


def work(shell: Shell, script: str, *options: str) -> list[dict]:
    """Work the queue `mail` off with a shell script, and return how each run went."""
    done = shell.run("work", "mail", "--drain", "--json", *options, "--", "sh", "-c", script)
    # Also if tasks were buried.
    assert done.returncode in (0, 8), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# -- publish --


def test_publish_prints_the_id_of_the_task(shell, queue):
    task_id = shell.ok("publish", "mail", "hello").rstrip("\n")

    assert queue.peek() == [(task_id, "hello")]


def test_publish_as_json(shell):
    (record,) = shell.records("publish", "mail", "x", "--priority", "high", "--key", "k")

    assert list(record) == ["task_id", "queue", "priority", "key"]
    assert record["task_id"].endswith("@mail:high")
    assert (record["queue"], record["priority"], record["key"]) == ("mail", "high", "k")


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ('{"to": ["a"]}', {"to": ["a"]}),
        ("[1, 2.5]", [1, 2.5]),
        ("null", None),
        ("17", 17),
        ('"17"', "17"),
        ("hello", "hello"),
    ],
)
def test_what_is_json_is_sent_as_json_and_the_rest_as_text(shell, queue, typed, sent):
    shell.ok("publish", "mail", typed)

    assert payloads(queue) == [sent]


def test_an_argument_in_utf_8_is_taken_where_the_locale_has_another_encoding(shell, queue):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    assert shell.run("publish", "mail", "grüße", env=ascii_only).returncode == 0

    assert payloads(queue) == ["grüße"]


def test_an_argument_that_is_not_utf_8_is_refused_as_such(shell):
    refused = shell.run("publish", "mail", "gr\udcfc")

    assert refused.returncode == 2
    assert refused.stderr == (
        "agentbus: the payload holds text that is not UTF-8\nhint: encode it as UTF-8\n"
    )


@pytest.mark.parametrize("typed", ["{bad", "NaN", "1e400", "12345678901234567890123"])
def test_a_payload_that_only_begins_like_json_has_to_be_called_text(shell, queue, typed):
    refused = shell.run("publish", "mail", typed)
    as_json = shell.run("publish", "mail", typed, "--payload-json")
    shell.ok("publish", "mail", typed, "--text")

    assert (refused.returncode, as_json.returncode) == (2, 2)
    assert "--text" in refused.stderr
    assert "--text" not in as_json.stderr
    assert payloads(queue) == [typed]


def test_text_and_json_decide_what_a_payload_is(shell, queue):
    shell.ok("publish", "mail", "17", "--text")
    shell.ok("publish", "mail", "17", "--payload-json")

    assert payloads(queue) == ["17", 17]
    assert shell.run("publish", "mail", "hello", "--payload-json").returncode == 2
    assert shell.run("publish", "mail", "17", "--text", "--payload-json").returncode == 2


def test_lines_are_text_or_json_as_the_options_say(shell, queue):
    shell.ok("publish", "mail", "--lines", "--text", stdin='{bad\n17\n"x\n')
    done = shell.run("publish", "mail", "--lines", stdin="18\n3f2a\n19\n[INFO] x\n20\n")

    assert payloads(queue) == ["{bad", "17", '"x', 18, "3f2a", 19]
    assert done.returncode == 2
    assert "line 4: the payload begins like JSON" in done.stderr
    assert "(in the queue before that: 3)" in done.stderr


def test_ask_takes_text_and_json_as_publish_does(shell, queue):
    assert shell.run("ask", "mail", "{bad").returncode == 2
    assert shell.run("ask", "mail", "{bad", "--text", "--timeout", "0.01").returncode == 3

    assert payloads(queue) == ["{bad"]


def test_a_program_that_prints_a_number_with_too_many_digits_has_a_text_as_its_result(shell):
    task = shell.ok("publish", "mail", "x").strip()
    work(shell, "echo '[12345678901234567890123]'")

    assert shell.records("result", task)[0]["result"] == "[12345678901234567890123]"


def test_a_payload_comes_from_stdin_or_a_file(shell, queue):
    (shell.home / "task.json").write_text('{"a": 1}')

    shell.ok("publish", "mail", "@task.json")
    shell.ok("publish", "mail", "-", stdin="from stdin")

    assert payloads(queue) == [{"a": 1}, "from stdin"]


def test_the_same_key_returns_the_first_task_and_appends_nothing(shell, queue):
    first = shell.ok("publish", "mail", "1", "--key", "k")

    assert shell.ok("publish", "mail", "2", "--key", "k") == first
    assert payloads(queue) == [1]


def test_each_line_becomes_a_task(shell, queue):
    ids = shell.ok("publish", "mail", "--lines", stdin='1\n\n two \n{"a": 3}\r\nlast').split()

    assert [task_id for task_id, _ in queue.peek()] == ids
    assert payloads(queue) == [1, " two ", {"a": 3}, "last"]


def test_lines_are_published_while_more_may_come(shell):
    process = shell.start("publish", "mail", "--lines", stdin=subprocess.PIPE)
    process.stdin.write("one\n")
    process.stdin.flush()

    assert process.stdout.readline().endswith("@mail\n")

    process.stdin.write("two\n")
    assert process.communicate()[0].endswith("@mail\n")


def test_more_lines_than_one_request_carries_keep_their_order(shell, queue):
    ids = shell.ok("publish", "mail", "--lines", stdin="\n".join(map(str, range(1200)))).split()

    assert len(set(ids)) == 1200
    assert [payload for _, payload in queue.peek(1200)] == list(range(1200))


def test_lines_are_published_though_nobody_reads_their_ids(shell, queue):
    script = f"set -o pipefail; seq 3000 | {program()} publish mail --lines | head -1"

    done = subprocess.run(
        ["bash", "-c", script], env=shell.environment, capture_output=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert len(queue.peek(5000)) == 3000


def test_a_bad_line_is_named_though_nobody_reads_the_ids(shell, queue):
    script = f"seq 1000 | sed '900s/.*/\\x00/' | {program()} publish mail --lines | true"

    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script}"],
        env=shell.environment,
        capture_output=True,
        check=False,
    )

    assert done.returncode == 2
    assert b"line 900" in done.stderr
    assert len(queue.peek(5000)) == 899


def test_a_bad_line_is_named_and_the_lines_before_it_are_published(shell, queue):
    done = shell.run("publish", "mail", "--lines", stdin=b"one\n\xff\nthree\n")

    assert (done.returncode, len(done.stdout.split())) == (2, 1)
    assert "line 2" in done.stderr
    assert payloads(queue) == ["one"]


def test_lines_with_headers_carry_them(shell):
    shell.ok("publish", "mail", "--lines", "--header", "a=b=c", stdin="1\n2\n")

    work(shell, 'echo "$AGENTBUS_HEADERS" >> headers')

    assert (shell.home / "headers").read_text() == '{"a":"b=c"}\n' * 2


def test_a_full_queue_of_one_task_says_task(project, valkey):
    with agentbus.connect(valkey.url, project=project) as bus:
        queue = bus.queue("mail", bound=1)
        queue.publish(1)

        with pytest.raises(agentbus.QueueFull, match="holds 1 unfinished task; the limit is 1"):
            queue.publish(2)


def test_a_full_queue_refuses_with_exit_1(shell):
    shell.ok("publish", "agent.x", "--lines", stdin="x\n" * 100)

    done = shell.run("publish", "agent.x", "one more")

    assert (done.returncode, done.stdout) == (1, "")
    assert "the limit is 100" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["mail"],
        ["mail", ""],
        ["mail", "a", "b"],
        ["a\nb", "x"],
        ["", "x"],
        ["mail", "x", "--priority", "urgent"],
        ["mail", "x", "--header", "nothing"],
        ["mail", "x", "--delay", "soon"],
        ["mail", "x", "--delay", "401d"],
        ["mail", "x", "--lines"],
        ["mail", "--lines", "--key", "k"],
        ["mail", "@missing"],
        ["mail", "-"],
    ],
)
def test_a_task_that_will_not_do_is_a_usage_error(shell, queue, args):
    done = shell.run("publish", *args, stdin="")

    assert (done.returncode, done.stdout) == (2, "")
    assert payloads(queue) == []


def test_a_payload_that_is_too_large_is_a_usage_error(shell, queue):
    done = shell.run("publish", "mail", "-", stdin="y" * 262145)

    assert (done.returncode, done.stdout) == (2, "")
    assert payloads(queue) == []


# -- result --


def test_result_waits_until_the_task_is_done(shell):
    task_id = shell.ok("publish", "mail", "x").strip()
    waiting = shell.start("result", task_id, "--wait", "60")

    work(shell, "echo done")

    assert waiting.communicate()[0] == "done\n"
    assert waiting.returncode == 0


def test_a_result_that_does_not_come_in_time_is_exit_3(shell):
    task_id = shell.ok("publish", "mail", "x").strip()

    assert shell.run("result", task_id, "--wait", "0.05").returncode == 3


def test_a_result_that_is_not_there_is_exit_5(shell):
    done = shell.run("result", "1-1@mail", "--wait", "60")

    assert (done.returncode, done.stdout) == (5, "")


def test_a_task_that_came_to_nothing_prints_nothing(shell):
    task_id = shell.ok("publish", "mail", "x").strip()
    work(shell, "true")

    assert shell.ok("result", task_id) == ""
    (record,) = shell.records("result", task_id)
    assert (record["task_id"], record["result"]) == (task_id, None)


def test_the_result_of_a_buried_task_is_exit_8_with_its_error(shell):
    task_id = shell.ok("publish", "mail", "x").strip()
    work(shell, "echo no such address >&2; exit 65")

    done = shell.run("result", task_id, "--wait", "60")

    assert (done.returncode, done.stdout) == (8, "")
    assert "no such address" in done.stderr
    assert "dlq show mail" in done.stderr


def test_each_group_has_its_result(shell):
    task_id = shell.ok("publish", "mail", "x").strip()
    for group in ("one", "two"):
        work(shell, 'echo "$AGENTBUS_GROUP"', "--group", group)

    assert shell.ok("result", task_id, "--group", "two") == "two\n"
    assert shell.run("result", task_id).returncode == 2


@pytest.mark.parametrize("task_id", ["nonsense", "1-1", "1-1@mail:urgent"])
def test_what_is_no_task_id_is_exit_2(shell, task_id):
    done = shell.run("result", task_id, "--wait", "60")

    assert (done.returncode, done.stdout) == (2, "")


def test_an_id_that_is_no_text_is_refused_in_a_sentence(shell):
    done = shell.run("result", b"\xff")

    assert done.returncode == 2
    assert "unexpectedly" not in done.stderr


# -- dlq --


@pytest.fixture
def letters(shell):
    """The dead letters of three tasks, two of which failed alike."""
    for key, payload in (("a", "timeout"), ("b", "timeout"), ("c", "refused")):
        shell.ok("publish", "mail", payload, "--key", key, "--correlation-id", key)
    work(shell, "cat >&2; exit 65")
    return [letter["id"] for letter in shell.records("dlq", "list", "mail")]


def test_dlq_list_prints_a_line_for_each_with_its_error(shell, letters):
    lines = shell.ok("dlq", "list", "mail").splitlines()

    assert [line.split()[0] for line in lines] == letters
    assert lines[2].endswith('ProgramRefused: exit 65: "refused"')
    assert shell.ok("dlq", "list", "mail", "--limit", "1").splitlines() == lines[:1]
    assert shell.ok("dlq", "list", "mail", "--match", "refused").splitlines() == lines[2:]
    assert shell.ok("dlq", "list", "mail", "--group", "other") == ""


def test_dlq_list_says_that_there_are_more_than_a_hundred(shell, letters):
    shell.ok("publish", "mail", "--lines", stdin="1\n" * 98)
    work(shell, "cat >&2; exit 65")

    cut = shell.run("dlq", "list", "mail")
    last = cut.stdout.splitlines()[-1].split()[0]
    rest, asked = (
        shell.run("dlq", "list", "mail", *words) for words in (["--after", last], ["--limit", "2"])
    )

    assert f"there are more; print them with --after {last}" in cut.stderr
    assert [len(one.stdout.splitlines()) for one in (cut, rest, asked)] == [100, 1, 2]
    assert (rest.stderr, asked.stderr) == ("", "")


def test_dlq_show_tells_all(shell, letters):
    (shown,) = shell.records("dlq", "show", "mail", letters[0])

    assert shown["payload"] == "timeout"
    assert shown["envelope"]["correlation_id"] == "a"
    assert shown["task_id"].startswith(shown["original_id"])
    text = shell.ok("dlq", "show", "mail", letters[0])
    assert "correlation id a\n" in text


def test_a_replayed_task_runs_again_with_its_key_and_once(shell, letters):
    first = shell.records("dlq", "replay", "mail", letters[0])
    again = shell.records("dlq", "replay", "mail", letters[0])

    (run,) = work(shell, 'echo "$AGENTBUS_KEY"')
    assert first == again
    assert first[0]["task_id"] == run["task_id"]
    assert shell.ok("result", run["task_id"]) == "a\n"
    assert shell.records("dlq", "list", "mail", "--replayed")[0]["replayed"] == run["task_id"]


def test_replay_of_all_leaves_out_what_was_replayed(shell, letters):
    shell.ok("dlq", "replay", "mail", letters[0])

    assert len(shell.records("dlq", "replay", "mail", "--match", "refused")) == 1
    assert len(shell.records("dlq", "replay", "mail", "--to", "elsewhere")) == 1
    assert shell.records("dlq", "replay", "mail") == []
    assert len(work(shell, "true")) == 2


def test_dlq_list_shows_what_is_undecided_and_the_replayed_when_asked(shell, letters):
    first, second, third = letters
    shell.ok("dlq", "replay", "mail", first)

    def listed(*args: str) -> list[str]:
        return [one["id"] for one in shell.records("dlq", "list", "mail", *args)]

    assert listed() == [second, third]
    assert listed("--limit", "1") == [second]
    assert listed("--replayed") == [first]
    assert listed(first, second) == [first, second]
    assert "(replayed as " in shell.ok("dlq", "list", "mail", "--replayed")
    shell.ok("dlq", "purge", "mail", second)
    assert listed() == [third]
    assert shell.run("dlq", "replay", "mail", "--replayed").returncode == 2


@pytest.mark.parametrize("action", ["replay", "purge"])
def test_a_limit_of_dead_letters_goes_with_their_list_alone(shell, letters, action):
    refused = shell.run("dlq", action, "mail", "--limit", "100")

    assert refused.returncode == 2
    assert "--limit goes with list alone" in refused.stderr
    assert len(shell.ok("dlq", "list", "mail").splitlines()) == len(letters)


def test_purge_removes_those_named_or_all(shell, letters):
    assert shell.records("dlq", "purge", "mail", letters[0])[0]["purged"] == 1
    assert shell.records("dlq", "purge", "mail", "--match", "refused")[0]["purged"] == 1
    assert shell.records("dlq", "purge", "mail")[0]["purged"] == 1
    assert shell.ok("dlq", "list", "mail") == ""


@pytest.mark.parametrize("action", ["show", "replay", "purge"])
@pytest.mark.parametrize("letter", ["1-1", "nonsense"])
def test_a_letter_that_is_not_there_is_exit_5(shell, action, letter):
    assert shell.run("dlq", action, "mail", letter).returncode == 5


@pytest.mark.parametrize(
    "args",
    [[], ["list"], ["frob", "mail"], ["show", "mail"], ["list", "mail", "--to", "x"], ["list", ""]],
)
def test_what_dlq_cannot_do_is_a_usage_error(shell, args):
    assert shell.run("dlq", *args).returncode == 2


def test_a_quiet_publish_prints_nothing(shell):
    assert shell.ok("publish", "mail", "1", "--quiet") == ""
    assert shell.ok("publish", "mail", "--lines", "--quiet", "--json", stdin="2\n3\n") == ""

    assert shell.records("bus", "stats", "mail")[0]["backlog"] == 3
