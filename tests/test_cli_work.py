"""Working programs and functions off a queue, as real processes: the verb work."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess

import pytest

import agentbus
from tests.servers import Shell, ask, closed

ROOT = pathlib.Path(__file__).resolve().parent.parent
HANDLERS = """
import asyncio, sys, threading
def double(delivery):
    return delivery.payload * 2
async def slowly(delivery):
    await asyncio.sleep(0)
    return [delivery.queue, delivery.attempt]
def fails(delivery):
    raise ValueError("no such address")
def endless(delivery):
    print("began", flush=True)
    threading.Event().wait()
def leaves(delivery):
    sys.exit(5)
NOTHING = 1
"""


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    real_shell.environment["PYTHONPATH"] = str(ROOT)
    return real_shell


@pytest.fixture
def queue(real_url, project):
    with agentbus.connect(real_url, project=project, agent="ada") as opened:
        yield opened.queue("mail")


@pytest.fixture
def fifo(tmp_path):
    """A pipe with a name, by which a program under test says where it is."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def work(shell: Shell, script: str, *options: str) -> list[dict]:
    """Work the queue `mail` off with a shell script, and return how each run went."""
    done = shell.run("work", "mail", "--drain", "--json", *options, "--", "sh", "-c", script)
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    buried = any(run["outcome"] == "dead" for run in runs)
    assert done.returncode == (8 if buried else 0), done.stderr[-1000:]
    return runs


def started(shell: Shell, script: str, *options: str) -> subprocess.Popen[str]:
    return shell.start("work", "mail", "--json", *options, "--", "sh", "-c", script)


# -- work --


def test_a_program_gets_the_payload_on_stdin_and_the_rest_in_its_environment(shell):
    envelope = ("--correlation-id", "c1", "--causation-id", "c0", "--reply-to", "answers")
    task_id = shell.ok("publish", "mail", '{"to": "a"}', *envelope, "--priority", "low").strip()

    work(shell, "cat > got; env | grep ^AGENTBUS_ > env")

    assert json.loads((shell.home / "got").read_text()) == {"to": "a"}
    found = dict(line.split("=", 1) for line in (shell.home / "env").read_text().splitlines())
    assert found["AGENTBUS_TASK_ID"] == task_id
    assert (found["AGENTBUS_QUEUE"], found["AGENTBUS_GROUP"]) == ("mail", "default")
    assert (found["AGENTBUS_ATTEMPT"], found["AGENTBUS_PRIORITY"]) == ("1", "low")
    assert found["AGENTBUS_CORRELATION_ID"] == "c1"
    assert found["AGENTBUS_CAUSATION_ID"] == "c0"
    assert found["AGENTBUS_REPLY_TO"] == "answers"
    assert "AGENTBUS_WEBHOOK" not in found


@pytest.mark.parametrize(
    ("script", "result"),
    [("echo '{\"n\": 1}'", {"n": 1}), ("echo one; echo two", "one\ntwo"), ("printf 7", 7)],
)
def test_what_a_program_prints_is_the_result(shell, script, result):
    task_id = shell.ok("publish", "mail", "x").strip()

    (run,) = work(shell, script)

    assert list(run) == ["task_id", "attempt", "outcome", "error", "took_ms"]
    assert (run["task_id"], run["attempt"], run["outcome"], run["error"]) == (
        task_id,
        1,
        "done",
        None,
    )
    (record,) = shell.records("result", task_id)
    assert (record["task_id"], record["result"]) == (task_id, result)


def test_a_program_that_prints_nothing_leaves_no_result(shell):
    task_id = shell.ok("publish", "mail", "x").strip()

    work(shell, "true")

    (record,) = shell.records("result", task_id)
    assert (record["task_id"], record["result"]) == (task_id, None)


def test_a_result_that_is_too_large_is_told_and_the_task_is_done(shell):
    shell.ok("publish", "mail", "x")

    done = shell.run("work", "mail", "--drain", "--", "head", "-c", "300000", "/dev/zero")

    assert done.returncode == 0
    assert "result is not kept" in done.stderr
    assert shell.ok("dlq", "list", "mail") == ""


def test_exit_65_buries_at_once_with_the_end_of_the_output(shell):
    shell.ok("publish", "mail", "x")

    (run,) = work(shell, "seq 1 9999 >&2; echo 'no such address' >&2; exit 65")

    assert (run["attempt"], run["outcome"]) == (1, "dead")
    (letter,) = shell.records("dlq", "list", "mail")
    (shown,) = shell.records("dlq", "show", "mail", letter["id"])
    assert (shown["attempts"], shown["payload"]) == (1, "x")
    assert "exit 65: no such address" in shown["error"]
    assert shown["traceback"].endswith("9999\nno such address")
    assert len(shown["traceback"]) < 17_000


def test_any_other_exit_is_tried_again_and_buried_after_the_last_attempt(shell):
    shell.ok("publish", "mail", "x")

    runs = work(shell, "exit 3", "--attempts", "2")

    assert [(run["attempt"], run["outcome"]) for run in runs] == [(1, "failed"), (2, "dead")]
    (letter,) = shell.records("dlq", "list", "mail")
    assert letter["attempts"] == 2


def test_a_task_may_be_done_at_its_second_attempt(shell):
    task_id = shell.ok("publish", "mail", "x").strip()

    work(shell, '[ "$AGENTBUS_ATTEMPT" = 2 ] && echo done')

    assert shell.ok("result", task_id) == "done\n"
    assert shell.ok("dlq", "list", "mail") == ""


def test_a_program_that_is_killed_counts_as_failed(shell):
    shell.ok("publish", "mail", "x")

    (run,) = work(shell, "kill -9 $$", "--attempts", "1")

    assert run["error"] == "killed by SIGKILL"


def test_at_the_timeout_a_program_is_killed_with_its_children(shell, fifo):
    shell.ok("publish", "mail", "x")
    worker = started(
        shell,
        f"exec 3>{fifo}; echo began >&2; sleep 1000 & sleep 1000",
        *("--timeout", "2", "--attempts", "1", "--drain"),
    )

    # The end of this file comes when nobody holds the pipe any longer.
    assert fifo.read_text() == ""

    (run,) = [json.loads(line) for line in worker.communicate()[0].splitlines()]
    assert (run["outcome"], run["error"]) == ("dead", "killed: took longer than 2 s")
    (letter,) = shell.records("dlq", "list", "mail")
    (shown,) = shell.records("dlq", "show", "mail", letter["id"])
    assert "began" in shown["traceback"]


def test_the_smaller_of_the_limits_of_task_and_worker_holds(shell):
    shell.ok("publish", "mail", "a", "--time-limit", "0.2")
    shell.ok("publish", "mail", "b", "--time-limit", "1h")

    runs = work(shell, "sleep 1000", "--timeout", "0.5", "--attempts", "1", "--concurrency", "2")

    errors = [f"killed: took longer than {seconds} s" for seconds in (0.2, 0.5)]
    assert sorted(one["error"] for one in runs) == errors


def test_what_a_program_leaves_behind_ends_with_it(shell, fifo):
    task_id = shell.ok("publish", "mail", "x").strip()
    worker = started(shell, f"exec 3>{fifo}; sleep 1000 & echo done", "--drain")

    assert fifo.read_text() == ""

    worker.communicate()
    assert shell.ok("result", task_id) == "done\n"


def test_a_program_need_not_read_its_task(shell):
    shell.ok("publish", "mail", "-", stdin="x" * 200_000)

    (run,) = work(shell, "true")

    assert run["outcome"] == "done"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_told_to_stop_a_worker_finishes_what_runs(shell, fifo, number, code):
    task_id = shell.ok("publish", "mail", "x").strip()
    worker = started(shell, f"echo began > {fifo}; cat {fifo}")
    assert fifo.read_text() == "began\n"

    worker.send_signal(number)
    fifo.write_text("finished")

    assert json.loads(worker.communicate()[0])["outcome"] == "done"
    assert worker.returncode == code
    assert shell.ok("result", task_id) == "finished\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 1), (signal.SIGINT, 130)])
def test_after_the_grace_a_worker_leaves_a_python_function_alone(shell, number, code):
    (shell.home / "handlers.py").write_text(HANDLERS)
    shell.ok("publish", "mail", "x")
    worker = shell.start("work", "mail", "--grace", "0", "--handler", "handlers:endless")
    assert worker.stdout.readline() == "began\n"

    worker.send_signal(number)

    _, said = worker.communicate()
    assert (worker.returncode, "the handler did not end in time" in said) == (code, True)


def test_after_the_grace_a_program_is_killed_and_another_worker_does_its_task(shell, fifo):
    task_id = shell.ok("publish", "mail", "x").strip()
    worker = started(shell, f"exec 3>{fifo}; echo began >&3; sleep 1000", "--grace", "0")
    with fifo.open() as told:
        assert told.readline() == "began\n"
        worker.terminate()
        assert told.read() == ""
    worker.communicate()
    assert worker.returncode == 0

    (run,) = work(shell, "echo done")

    assert (run["task_id"], run["attempt"]) == (task_id, 2)
    assert shell.ok("result", task_id) == "done\n"


def test_a_worker_that_is_killed_loses_nothing(shell, fifo):
    ids = shell.ok("publish", "mail", "--lines", stdin="1\n2\n3\n4\n5\n").split()
    script = (
        f'read n; [ "$n$AGENTBUS_ATTEMPT" = 31 ] || exec echo done; echo $$ > {fifo}; sleep 1000'
    )
    first = started(shell, script, "--visibility", "0.5")
    fifo.read_text()

    first.kill()
    before = [json.loads(line) for line in first.communicate()[0].splitlines()]
    second = started(shell, script, "--visibility", "0.5", "--count", str(5 - len(before)))

    after = [json.loads(line) for line in second.communicate()[0].splitlines()]
    assert [run["task_id"] for run in before] == ids[:2]
    assert sorted(run["task_id"] for run in after) == ids[2:]
    assert {run["outcome"] for run in before + after} == {"done"}
    assert [shell.ok("result", task_id) for task_id in ids] == ["done\n"] * 5
    assert shell.ok("dlq", "list", "mail") == ""


def test_a_task_whose_envelope_no_program_can_get_is_buried_at_once(shell, queue):
    """Another program wrote it; `publish` refuses it."""
    meta = json.dumps({"headers": {"x": "y" * 200_000}})
    ask(queue._bus, "XADD", f"{queue._bus.project}:q:mail", "*", "payload", "1", "meta", meta)

    (run,) = work(shell, "true")

    assert (run["outcome"], run["attempt"]) == ("dead", 1)
    assert "Argument list too long" in run["error"]


@pytest.mark.parametrize("concurrency", ["1", "2"])
def test_programs_end_with_their_worker_when_that_is_killed(shell, fifo, concurrency):
    shell.ok("publish", "mail", "--lines", stdin="1\n2\n3\n")
    # The last to hold the pipe open is the child of a program that ignores signals.
    script = f"trap '' TERM HUP; exec 3>{fifo}; sleep 100 & echo >&3; wait"
    worker = started(shell, script, "--concurrency", concurrency)
    with fifo.open() as told:
        for _ in range(int(concurrency)):
            assert told.readline() == "\n"

        worker.kill()

        assert closed(told)
    worker.communicate()


def test_programs_run_side_by_side(shell, fifo):
    # Each of the two can end only while the other runs.
    shell.ok("publish", "mail", "--lines", stdin="1\n2\n")
    script = f'read n; if [ "$n" = 1 ]; then echo hello > {fifo}; else cat {fifo}; fi'

    runs = work(shell, script, "--concurrency", "2")

    assert [run["outcome"] for run in runs] == ["done", "done"]


def test_count_stops_after_so_many(shell):
    shell.ok("publish", "mail", "--lines", stdin="1\n2\n3\n")

    done = shell.ok("work", "mail", "--count", "2", "--json", "--", "true")

    assert len(done.splitlines()) == 2


def test_higher_priorities_are_done_first(shell):
    for priority in ("low", "normal", "critical", "high"):
        shell.ok("publish", "mail", priority, "--priority", priority)

    work(shell, "cat >> order")

    assert (shell.home / "order").read_text().split() == [
        *('"critical"', '"high"', '"normal"', '"low"')
    ]


def test_each_group_gets_every_task(shell):
    shell.ok("publish", "mail", "x")

    assert len(work(shell, "true", "--group", "a")) == 1
    assert len(work(shell, "true", "--group", "b")) == 1
    assert len(work(shell, "true", "--group", "a")) == 0


def test_what_a_program_publishes_belongs_to_its_task(shell):
    task_id = shell.ok("publish", "next", "x", "--correlation-id", "c1").strip()
    publish = "agentbus publish mail y --project $AGENTBUS_PROJECT"
    path = {"PATH": f"{pathlib.Path(os.sys.executable).parent}:{os.environ['PATH']}"}
    shell.ok("work", "next", "--drain", "--", "sh", "-c", publish, env=path)

    work(shell, 'echo "$AGENTBUS_CAUSATION_ID $AGENTBUS_CORRELATION_ID" > chain')

    assert (shell.home / "chain").read_text() == f"{task_id} c1\n"


def test_a_function_that_exits_ends_the_worker_which_says_so(shell):
    (shell.home / "handlers.py").write_text(HANDLERS)
    shell.ok("publish", "mail", "x")

    done = shell.run("work", "mail", "--drain", "--handler", "handlers:leaves")

    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [
        "agentbus: 'work' was ended by the code that it runs (SystemExit: 5)",
        "hint: let that raise another error: then its task or event alone has failed",
    ]


@pytest.mark.parametrize(("handler", "result"), [("double", 14), ("slowly", ["mail", 1])])
def test_a_python_function_may_be_the_handler(shell, handler, result):
    (shell.home / "handlers.py").write_text(HANDLERS)
    task_id = shell.ok("publish", "mail", "7").strip()

    (told,) = shell.records("work", "mail", "--drain", "--handler", f"handlers:{handler}")

    assert told == {"queue": "mail", "group": "default", "done": 1, "failed": 0}
    assert shell.records("result", task_id)[0]["result"] == result


def test_the_real_error_of_a_python_function_is_in_its_dead_letter(shell):
    (shell.home / "handlers.py").write_text(HANDLERS)
    shell.ok("publish", "mail", "7")

    done = shell.run("work", "mail", "--drain", "--attempts", "1", "--handler", "handlers:fails")
    assert done.returncode == 8

    (letter,) = shell.records("dlq", "list", "mail")
    assert letter["error"] == "ValueError: no such address"
    assert "in fails" in shell.ok("dlq", "show", "mail", letter["id"])


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["mail"], 2),
        (["mail", "--handler", "handlers:double", "--", "true"], 2),
        (["mail", "--handler", "handlers"], 2),
        (["mail", "--handler", "handlers:missing"], 2),
        (["mail", "--handler", "handlers:NOTHING"], 2),
        (["mail", "--handler", "missing:f"], 2),
        (["mail", "--attempts", "0", "--", "true"], 2),
        (["mail", "--concurrency", "0", "--", "true"], 2),
        (["mail", "--concurrency", "100001", "--", "true"], 2),
        (["mail", "--processes", "1001", "--", "true"], 2),
        (["a\nb", "--", "true"], 2),
        (["mail", "--group", "", "--", "true"], 2),
        (["mail", "--", "./missing"], 127),
        (["mail", "--", "./handlers.py"], 126),
    ],
)
def test_what_cannot_work_takes_no_task(shell, queue, args, code):
    (shell.home / "handlers.py").write_text(HANDLERS)
    shell.ok("publish", "mail", "x")

    done = shell.run("work", *args)

    assert (done.returncode, done.stdout) == (code, "")
    assert len(queue.fetch()) == 1
