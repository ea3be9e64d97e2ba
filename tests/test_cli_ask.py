"""The verb ask, and replies and webhooks as the shell sees them, run as real processes."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from tests.servers import Shell, program

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    real_shell.environment["PYTHONPATH"] = str(ROOT)
    return real_shell


@contextlib.contextmanager
def served(shell: Shell, script: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Serve the queue `sums` with a shell script for a while."""
    worker = shell.start("work", "sums", *options, "--", "sh", "-c", script)
    try:
        yield worker
    finally:
        worker.terminate()
        worker.communicate()


def test_ask_prints_the_result(shell):
    script = 'python3 -c "import json, sys; print(sum(json.load(sys.stdin)))"'
    with served(shell, script):
        assert shell.ok("ask", "sums", "[1, 2, 3]") == "6\n"
        assert shell.ok("ask", "sums", "-", stdin="[4]", timeout=60) == "4\n"


@pytest.mark.parametrize(
    ("script", "text", "value"),
    [
        ("echo two lines; echo here", "two lines\nhere\n", "two lines\nhere"),
        ("echo '{\"a\": [1]}'", '{"a":[1]}\n', {"a": [1]}),
        ("true", "", None),
    ],
)
def test_ask_prints_results_as_result_does(shell, script, text, value):
    with served(shell, script):
        assert shell.ok("ask", "sums", "x") == text
        (record,) = shell.records("ask", "sums", "x", "--priority", "high")

    assert list(record) == ["task_id", "result"]
    assert record["result"] == value
    assert record["task_id"].endswith("@sums:high")
    assert shell.ok("result", record["task_id"]) == text


def test_a_question_that_failed_is_exit_8_with_the_error(shell):
    with served(shell, "echo no such sum >&2; exit 65"):
        done = shell.run("ask", "sums", "x", "--json")

    assert (done.returncode, done.stdout) == (8, "")
    assert "no such sum" in json.loads(done.stderr)["error"]


def test_no_answer_in_time_is_exit_3(shell):
    done = shell.run("ask", "sums", "x", "--timeout", "0.05")

    assert (done.returncode, done.stdout) == (3, "")
    assert "agentbus result" in done.stderr


def test_a_question_carries_its_headers_and_correlation(shell):
    with served(shell, 'echo "$AGENTBUS_HEADERS $AGENTBUS_CORRELATION_ID"'):
        said = shell.ok("ask", "sums", "x", "--header", "a=b", "--correlation-id", "c")

    assert said == '{"a":"b"} c\n'


def test_what_a_worker_asks_belongs_to_its_task(shell):
    task = shell.ok("publish", "front", "x", "--correlation-id", "c").strip()
    with served(shell, 'echo "$AGENTBUS_CORRELATION_ID $AGENTBUS_CAUSATION_ID"'):
        shell.ok("work", "front", "--drain", "--", program(), "ask", "sums", "y")

    assert shell.ok("result", task) == f"c {task}\n"


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["sums"],
        ["sums", ""],
        ["sums", "a", "b"],
        ["", "x"],
        ["sums", "x", "--timeout", "soon"],
        ["sums", "x", "--priority", "urgent"],
    ],
)
def test_a_question_that_will_not_do_is_a_usage_error(shell, args):
    done = shell.run("ask", *args, stdin="")

    assert (done.returncode, done.stdout) == (2, "")


def test_a_reply_is_work_like_any_other(shell):
    shell.ok("publish", "sums", "[1]", "--reply-to", "answers", "--correlation-id", "order-7")
    shell.ok("work", "sums", "--drain", "--", "echo", "7")

    shell.ok("work", "answers", "--drain", "--", "tee", "reply")

    assert json.loads((shell.home / "reply").read_text())["result"] == 7


def test_a_webhook_that_will_not_do_is_a_usage_error(shell):
    done = shell.run("publish", "sums", "x", "--webhook", "http://example.org/")

    assert done.returncode == 2
    assert "https" in done.stderr
