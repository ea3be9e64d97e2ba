"""`work MODULE:TASKS` runs typed tasks."""

from __future__ import annotations

import json
import pathlib
import signal

import pytest

from tests.servers import Shell, closed

APP = """
import agentbus

tasks = agentbus.Tasks()


@tasks.task(queue="sums")
def add(a: int, b: int = 1) -> int:
    return a + b


@tasks.task(queue="loops")
async def double(n: int) -> int:
    return 2 * n
"""


@pytest.fixture
def app(real_shell: Shell) -> pathlib.Path:
    # Its verbs run there.
    path = real_shell.home / "typedapp.py"
    path.write_text(APP)
    return path


def test_work_runs_all_tasks_of_a_registry(real_shell: Shell, app: pathlib.Path) -> None:
    first = real_shell.ok("publish", "sums", '{"a": 2}').strip()
    second = real_shell.ok("publish", "loops", '{"n": 4}', "--task", "double").strip()

    (end,) = real_shell.records("work", "typedapp:tasks", "--drain")

    assert end == {"queues": ["sums", "loops"], "group": "default", "done": 2, "failed": 0}
    assert json.loads(real_shell.ok("result", first)) == 3
    assert json.loads(real_shell.ok("result", second)) == 8


def test_processes_run_the_tasks_of_a_registry(real_shell: Shell, app: pathlib.Path) -> None:
    for number in range(4):
        real_shell.ok("publish", "sums", f'{{"a": {number}}}')

    (end,) = real_shell.records("work", "typedapp:tasks", "--processes", "2", "--drain")

    assert end == {"queues": ["sums", "loops"], "group": "default", "done": 4, "failed": 0}


def test_work_runs_the_tasks_of_chosen_queues(real_shell: Shell, app: pathlib.Path) -> None:
    real_shell.ok("publish", "sums", '{"a": 2}')
    real_shell.ok("publish", "loops", '{"n": 4}')

    (end,) = real_shell.records("work", "typedapp:tasks", "--queues", "loops", "--drain")

    assert (end["queues"], end["done"]) == (["loops"], 1)


def test_work_exits_8_if_a_task_did_not_fit(real_shell: Shell, app: pathlib.Path) -> None:
    real_shell.ok("publish", "sums", '{"a": "x"}')

    done = real_shell.run("work", "typedapp:tasks", "--drain")

    assert done.returncode == 8
    assert "$.a: expected int, got str" in real_shell.ok("dlq", "list", "sums")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("typedapp:agentbus",), "is a module, not an agentbus.Tasks"),
        (("typedapp:missing",), "cannot be loaded"),
        (("typedapp:tasks", "--queues", "nothing"), "no task is declared for the queue 'nothing'"),
        (("typedapp:tasks", "--attempts", "2"), "--attempts does not go with typed tasks"),
        (("typedapp:tasks", "--drain", "--batch", "2"), "--batch does not go with typed tasks"),
        (("sums", "--reload", "--", "cat"), "--reload is for typed tasks"),
        (("typedapp:tasks", "--reload", "--drain"), "exclude each other"),
    ],
)
def test_a_mistake_is_refused(
    real_shell: Shell, app: pathlib.Path, words: tuple[str, ...], error: str
) -> None:
    done = real_shell.run("work", *words)

    assert done.returncode == 2
    assert error in done.stderr


@pytest.mark.slow
def test_reload_runs_the_changed_tasks(real_shell: Shell, app: pathlib.Path) -> None:
    with real_shell.start("work", "typedapp:tasks", "--reload") as working:
        try:
            first = real_shell.ok("publish", "sums", '{"a": 2}').strip()
            assert json.loads(real_shell.ok("result", first, "--wait", "60")) == 3

            app.write_text(APP.replace("a + b", "a - b"))
            assert working.stderr is not None
            changed = "typedapp.py changed; starting typedapp:tasks again"
            assert any(changed in line for line in working.stderr)
            second = real_shell.ok("publish", "sums", '{"a": 2}').strip()
            assert json.loads(real_shell.ok("result", second, "--wait", "60")) == 1

            working.send_signal(signal.SIGTERM)
            assert working.wait(60) == 0
        finally:
            working.terminate()


def test_no_worker_outlives_the_parent_of_reload_that_is_killed(
    real_shell: Shell, app: pathlib.Path
) -> None:
    with real_shell.start("work", "typedapp:tasks", "--reload") as working:
        first = real_shell.ok("publish", "sums", '{"a": 2}').strip()
        assert json.loads(real_shell.ok("result", first, "--wait", "60")) == 3

        working.kill()

        # The worker has its stdout, too.
        assert working.stdout is not None
        assert closed(working.stdout)
