"""The verb `schedule`: what it prints, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from tests.servers import Shell, program


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    return real_shell


def record(shell: Shell, *words: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(shell.ok("schedule", *words, "--json"))
    return found


def test_a_schedule_is_added_once_and_changed_when_it_differs(shell):
    first = record(shell, "add", "poll", "fetch", '{"x": 1}', "--every", "30s", "--header", "a=b")
    again = record(shell, "add", "poll", "fetch", '{"x": 1}', "--every", "30", "--header", "a=b")
    other = record(shell, "add", "poll", "fetch", "--every", "30s", "--missed", "all")

    assert [one["change"] for one in (first, again, other)] == ["added", "none", "changed"]
    assert [one["version"] for one in (first, again, other)] == [1, 1, 2]
    assert (first["payload"], first["envelope"]) == ({"x": 1}, {"headers": {"a": "b"}})
    assert (other["payload"], other["missed"], other["due"]) == (None, "all", first["due"])


def test_a_schedule_is_shown_with_its_next_due_times(shell):
    shell.ok("schedule", "add", "leap", "mail", "--cron", "0 0 29 2 *", "--timezone", "Asia/Tokyo")

    shown = shell.ok("schedule", "show", "leap")
    upcoming = record(shell, "show", "leap")["upcoming"]

    assert "times     0 0 29 2 * Asia/Tokyo" in shown
    assert "payload   null" in shown
    assert [str(one)[4:] for one in upcoming] == ["-02-28T15:00:00Z"] * 5  # type: ignore[attr-defined]


def test_a_paused_schedule_is_listed_as_such(shell):
    shell.ok("schedule", "add", "poll", "fetch", "--every", "30s")
    shell.ok("schedule", "add", "tidy", "chores", "--cron", "@daily")

    assert shell.ok("schedule", "pause", "poll") == "poll: every 30 s to fetch, paused\n"
    lines = shell.ok("schedule", "list").splitlines()
    assert [line.split()[0] for line in lines] == ["SCHEDULE", "poll", "tidy"]
    assert " paused " in lines[1]
    assert record(shell, "resume", "poll")["state"] == "active"


def test_a_scheduler_prints_each_tick_and_ends_with_0_on_sigterm(shell):
    shell.ok("schedule", "add", "poll", "fetch", "--every", "20ms")

    with subprocess.Popen(
        [program(), "schedule", "run", "--json"], env=shell.environment, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        ticks = [json.loads(running.stdout.readline()) for _ in range(3)]
        running.send_signal(signal.SIGTERM)
        running.stdout.read()

    assert running.returncode == 0
    assert [set(one) for one in ticks] == [{"schedule", "due", "task_id", "error"}] * 3
    assert len({one["task_id"] for one in ticks}) == len({one["due"] for one in ticks}) == 3


def test_a_scheduler_says_that_a_queue_is_full(shell):
    (shell.home / "config.yaml").write_text("queues: {fetch: {bound: 1}}\n")
    shell.environment["AGENTBUS_CONFIG"] = str(shell.home / "config.yaml")
    shell.ok("publish", "fetch", "x")
    shell.ok("schedule", "add", "poll", "fetch", "--every", "20ms")

    with subprocess.Popen(
        [program(), "schedule", "run"],
        env=shell.environment,
        cwd=shell.home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        line = running.stdout.readline().decode()
        running.send_signal(signal.SIGTERM)
        running.communicate()

    assert "the queue 'fetch' holds 1 unfinished task; the limit is 1" in line
    assert "refused   1 time since" in shell.ok("schedule", "show", "poll")


def test_a_triggered_schedule_prints_the_id_of_its_task(shell):
    shell.ok("schedule", "add", "poll", "fetch", "hi", "--every", "1h", "--expires", "60")

    task_id = shell.ok("schedule", "trigger", "poll").strip()

    shown = json.loads(shell.ok("task", "show", task_id, "--json"))
    assert shown["payload"] == "hi"
    assert shown["envelope"] == {
        "expires": 60.0,
        "headers": {"schedule": "poll"},
        "correlation_id": task_id,
    }


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("add poll", 2, "schedule add takes a name and a queue"),
        ("add poll fetch", 2, "has no times"),
        ("add poll fetch --every 1 --cron *", 2, "exclude each other"),
        ("add poll fetch --every 1 --timezone UTC", 2, "--timezone goes with --cron alone"),
        ("add poll fetch --cron @never", 2, "has 1 field"),
        ("add poll fetch {bad --every 1", 2, "begins like JSON"),
        ("show poll --every 1", 2, "--every goes with add alone"),
        ("list poll", 2, "schedule list takes nothing"),
        ("run poll", 2, "schedule run takes nothing"),
        ("show", 2, "schedule show takes the name of a schedule"),
        ("show poll fetch", 2, "schedule show takes the name of a schedule"),
        ("show poll", 5, "there is no schedule 'poll'"),
        ("trigger poll", 5, "there is no schedule 'poll'"),
        ("remove poll", 5, "there is no schedule 'poll'"),
    ],
)
def test_a_mistake_is_named(shell, words, code, said):
    done = shell.run("schedule", *words.split())

    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert done.stdout == ""


def test_an_expression_with_a_mistake_is_refused_with_its_place(shell):
    done = shell.run("schedule", "add", "poll", "fetch", "--cron", "0 25 * * *")

    assert done.returncode == 2
    assert "'25' at character 3 is not valid as the hour" in done.stderr
