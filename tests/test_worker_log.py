"""What the log of a worker says on stderr, for handlers, typed tasks and programs."""

from __future__ import annotations

import json
import os

import pytest

from tests.servers import Shell

APP = """
import logging
import subprocess
import agentbus

tasks = agentbus.Tasks()

def handle(delivery):
    logging.getLogger("shop").info("order %s", delivery.payload)
    if delivery.payload == 2:
        raise ValueError("no such address")
    if delivery.payload == 3:
        delivery.bury("never")

async def slowly(delivery):
    return handle(delivery)

def later(delivery):
    return slowly(delivery)

def runs(delivery):
    subprocess.run(["sh", "-c", "echo said; exit 3"], check=True, capture_output=True, text=True)

def nothing():
    pass

@tasks.task(queue="orders")
def add(order: int) -> int:
    if order == 2:
        raise ValueError("no such address")
    return order
"""
ONCE = ("--drain", "--attempts", "1")


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    (real_shell.home / "app.py").write_text(APP)
    return real_shell


def messages(log: str) -> list[str]:
    """Return the lines of a log without their times."""
    return [line.partition(" ")[2] for line in log.splitlines()]


@pytest.mark.parametrize("handler", ["handle", "slowly", "later"])
def test_a_worker_logs_its_start_each_task_each_failure_and_its_totals(shell, handler):
    tasks = [shell.ok("publish", "mail", str(number)).strip() for number in (1, 2)]

    log = shell.run("work", "mail", "--handler", f"app:{handler}", *ONCE).stderr

    said = messages(log)
    project = json.loads(shell.ok("whoami", "--json"))["project"]
    assert said[0].startswith("INFO agentbus: worker of mail started: ")
    assert f"project {project}, server " in said[0]
    assert "INFO shop: order 1" in said
    assert any(line.startswith(f"INFO agentbus: {tasks[0]} done in ") for line in said)
    failed = f"WARNING agentbus: {tasks[1]} failed (group default, attempt 1): ValueError"
    assert f"{failed}: no such address" in said
    assert "INFO agentbus: mail: 1 done, 1 run failed" in said
    assert "Traceback (most recent call last):" in log.splitlines()


def test_a_traceback_begins_at_the_handler(shell):
    shell.ok("publish", "mail", "2")

    log = shell.run("work", "mail", "--handler", "app:handle", *ONCE).stderr

    frames = [line for line in log.splitlines() if line.startswith("  File ")]
    assert [frame.rpartition(" ")[2] for frame in frames] == ["handle"]
    (letter,) = shell.records("dlq", "list", "mail")
    (shown,) = shell.records("dlq", "show", "mail", letter["id"])
    assert shown["traceback"].splitlines()[1].endswith(", in handle")


def test_an_error_with_output_of_a_subprocess_keeps_its_traceback(shell):
    shell.ok("publish", "mail", "1")

    log = shell.run("work", "mail", "--handler", "app:runs", *ONCE).stderr

    assert "subprocess.CalledProcessError: Command " in log
    (letter,) = shell.records("dlq", "list", "mail")
    (shown,) = shell.records("dlq", "show", "mail", letter["id"])
    assert ", in runs" in shown["traceback"]


@pytest.mark.parametrize("options", [(), ("--match",)])
def test_a_handler_that_takes_no_delivery_is_refused_before_a_task_is_taken(shell, options):
    task = shell.ok("publish", "mail", "1").strip()

    done = shell.run("work", "mail", *options, "--handler", "app:nothing")

    assert (done.returncode, "with a delivery alone" in done.stderr) == (2, True)
    assert shell.records("task", "show", task)[0]["state"] == "waiting"


def test_a_task_that_its_handler_has_buried_is_not_called_done(shell):
    task = shell.ok("publish", "mail", "3").strip()

    log = shell.run("work", "mail", "--handler", "app:handle", *ONCE).stderr

    assert f"{task} done" not in log
    assert f"{task} dead" in log


def test_typed_tasks_are_logged_with_their_names(shell):
    first = shell.ok("publish", "orders", '{"order": 1}', "--task", "add").strip()

    log = shell.run("work", "app:tasks", "--drain").stderr

    assert f"INFO agentbus: {first} (add) done in " in log
    assert "worker of orders started: " in log
    assert "INFO agentbus: orders: 1 done" in messages(log)


def test_processes_log_their_tasks_and_the_parent_the_totals(shell):
    tasks = [shell.ok("publish", "mail", "1").strip() for _ in range(4)]

    log = shell.run("work", "mail", "--handler", "app:handle", "--processes", "2", "--drain").stderr

    assert log.count(" started: ") == 1
    assert all(f"{task} done in " in log for task in tasks)
    assert "INFO agentbus: mail: 4 done" in messages(log)


def test_many_tasks_within_a_second_are_counted(shell):
    shell.ok("publish", "mail", "--lines", stdin="1\n" * 2_000)

    log = shell.run("work", "mail", "--handler", "app:handle", "--drain").stderr

    done = [line for line in messages(log) if " done in " in line]
    more = [line for line in messages(log) if " more tasks done within the second" in line]
    counted = sum(int(line.split()[2].replace(",", "")) for line in more)
    assert len(done) + counted == 2_000
    assert len(done) < 2_000


def test_the_log_can_be_json(shell):
    task = shell.ok("publish", "mail", "2").strip()

    done = shell.run("work", "mail", "--handler", "app:handle", *ONCE, "--log-format", "json")

    records = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert records[0]["event"] == "started"
    (failed,) = [record for record in records if record.get("outcome") == "failed"]
    assert (failed["level"], failed["id"], failed["attempt"]) == ("WARNING", task, 1)
    assert failed["error"] == "ValueError: no such address"
    assert "in handle" in failed["exc_info"]
    (app,) = [record for record in records if record["logger"] == "shop"]
    assert app["message"] == "order 2"


def test_the_log_level_also_holds_for_the_programs_own_log(shell):
    shell.ok("publish", "mail", "1")
    shell.ok("publish", "mail", "2")

    log = shell.run(
        "work", "mail", "--handler", "app:handle", *ONCE, "--log-level", "warning"
    ).stderr

    assert "failed (group default" in log
    assert "order" not in log.replace("no such address", "")
    assert " INFO " not in log


def test_a_program_that_configures_logging_keeps_its_handlers(shell):
    (shell.home / "own.py").write_text(
        "import logging\nlogging.basicConfig(format='own %(message)s', level='INFO')\n"
        "def handle(delivery):\n    pass\n"
    )
    task = shell.ok("publish", "mail", "1").strip()

    log = shell.run("work", "mail", "--handler", "own:handle", "--drain").stderr

    assert any(line.startswith(f"own {task} done in ") for line in log.splitlines())
    assert log.count(f"{task} done in ") == 1


def test_the_operations_log_can_be_stderr(shell):
    done = shell.run("speak", "hi", env={"AGENTBUS_LOG": "-"})

    assert json.loads(done.stderr)["verb"] == "speak"
    assert not os.path.exists(shell.home / "-")


# -- programs --


def test_the_output_of_a_program_is_prefixed_by_its_task_and_kept_in_its_letter(shell):
    task = shell.ok("publish", "tests", "x").strip()
    script = "echo FAILED test_a; echo warning >&2; exit 1"

    done = shell.run("work", "tests", *ONCE, "--", "sh", "-c", script)

    assert {f"{task} | FAILED test_a", f"{task} | warning"} <= {*done.stderr.splitlines()}
    assert done.stdout == ""
    assert f"ERROR agentbus: {task} dead (attempt 1): exit 1: warning" in messages(done.stderr)
    assert "INFO agentbus: tests: 0 done, 1 run failed" in messages(done.stderr)
    (letter,) = shell.records("dlq", "list", "tests")
    (shown,) = shell.records("dlq", "show", "tests", letter["id"])
    assert shown["traceback"] == "stdout:\nFAILED test_a\nstderr:\nwarning"


def test_a_letter_keeps_the_end_of_both_streams(shell):
    shell.ok("publish", "tests", "x")
    script = "echo first; seq 1 20000 >&2; echo last; exit 1"

    shell.run("work", "tests", *ONCE, "--", "sh", "-c", script)

    (letter,) = shell.records("dlq", "list", "tests")
    (shown,) = shell.records("dlq", "show", "tests", letter["id"])
    assert shown["traceback"].startswith("stdout:\nfirst\nlast\nstderr:\n")
    assert shown["traceback"].endswith("\n19999\n20000")
    assert 16_000 < len(shown["traceback"]) < 16_500


def test_lines_of_programs_side_by_side_are_not_mixed(shell):
    for number in range(8):
        shell.ok("publish", "tests", str(number))
    script = "read n; for i in 1 2 3 4 5 6 7 8 9; do printf $n; printf $n; echo $n; done"

    log = shell.run(
        "work", "tests", "--drain", "--concurrency", "8", "--", "sh", "-c", script
    ).stderr

    lines = [line.partition(" | ")[2] for line in log.splitlines() if " | " in line]
    assert sorted(lines) == sorted(f"{n}{n}{n}" for n in range(8) for _ in range(9))


def test_on_github_the_output_is_a_group_and_a_failure_an_annotation(shell):
    task = shell.ok("publish", "tests", "x").strip()
    script = "echo ::warning::forged; echo 50%; exit 1"

    log = shell.run(
        *("work", "tests", *ONCE, "--", "sh", "-c", script), env={"GITHUB_ACTIONS": "true"}
    ).stderr.splitlines()

    start = log.index(next(line for line in log if line.startswith(f"::group::{task} ")))
    assert log[start + 1 : start + 4] == [
        *(f"{task} | ::warning::forged", f"{task} | 50%", "::endgroup::")
    ]
    (annotation,) = [line for line in log if line.startswith("::error")]
    assert (
        annotation == f"::error title=agentbus work tests::{task} dead (attempt 1): exit 1: 50%25"
    )


def test_the_output_of_a_program_is_not_shown_below_info(shell):
    shell.ok("publish", "tests", "x")

    log = shell.run("work", "tests", "--drain", "--log-level", "error", "--", "echo", "hi").stderr

    assert log == ""


def test_a_programs_colours_are_kept_and_nothing_else_of_control_characters(shell):
    task = shell.ok("publish", "tests", "x").strip()
    script = r"printf '\033[31mred\033[2Jgone\n\r::error::forged\n'"

    log = shell.run("work", "tests", "--drain", "--", "sh", "-c", script).stderr

    assert f"{task} | \x1b[31mred\\x1b[2Jgone\x1b[0m\n" in log
    assert f"{task} | \\r::error::forged\n" in log
