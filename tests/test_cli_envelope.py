"""What the shell puts into a task's envelope: `publish`, `ask`, and programs that `work` runs."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import agentbus
from agentbus.queues.delivery import Delivery
from tests.servers import Shell, program

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    return real_shell


@pytest.fixture
def queue(real_url, project) -> Iterator[agentbus.Queue]:
    with agentbus.connect(real_url, project=project, agent="ada") as opened:
        yield opened.queue("mail")


def fetched(queue: agentbus.Queue) -> list[Delivery]:
    return queue.fetch(count=100)


def work(shell: Shell, *words: str) -> list[Any]:
    """Work the queue `mail` off, and return how each run went."""
    done = shell.run("work", "mail", "--drain", "--json", *words)
    # Also if tasks were buried.
    assert done.returncode in (0, 8), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_publish_fills_the_envelope(shell, queue):
    shell.ok(
        *("publish", "mail", "x", "--topic", "billing", "--source", "shop", "--tenant", "acme"),
        *("--traceparent", TRACE, "--attempts", "2", "--expires", "1h"),
        *("--time-limit", "5m"),
    )

    (task,) = fetched(queue)
    assert (task.topic, task.source, task.tenant) == ("billing", "shop", "acme")
    assert (task.traceparent, task.attempts, task.expires) == (TRACE, 2, 3600)
    assert task.time_limit == 300


def test_lines_and_questions_have_the_same_envelope(shell, queue):
    shell.ok("publish", "mail", "--lines", "--tenant", "acme", "--expires", "60", stdin="1\n2\n")
    shell.run("ask", "mail", "3", "--tenant", "acme", "--expires", "60", "--timeout", "0.01")

    assert [(d.payload, d.tenant, d.expires) for d in fetched(queue)] == [
        (n, "acme", 60) for n in (1, 2, 3)
    ]


# -- correlation --


def test_a_task_always_has_a_correlation_id(shell, queue):
    shell.ok("publish", "mail", "x")
    shell.run("ask", "mail", "y", "--timeout", "0.01")
    shell.ok("publish", "mail", "--lines", stdin="1\n2\n")

    found = [uuid.UUID(task.correlation_id) for task in fetched(queue)]
    assert found[2] == found[3]
    assert len({*found}) == 3


def test_a_correlation_id_that_was_given_is_that_of_all_lines(shell, queue):
    shell.ok("publish", "mail", "--lines", "--correlation-id", "c1", stdin="1\n2\n")

    assert [task.correlation_id for task in fetched(queue)] == ["c1", "c1"]


def test_what_a_program_publishes_has_the_correlation_of_its_task(shell, queue):
    first = shell.ok("publish", "front", "x").strip()
    script = f"echo $AGENTBUS_CORRELATION_ID > id; {program()} publish mail y"
    shell.ok("work", "front", "--drain", "--", "sh", "-c", script)

    (task,) = fetched(queue)
    assert task.causation_id == first
    assert task.correlation_id == (shell.home / "id").read_text().strip()


# -- traces --


def test_the_trace_of_the_environment_is_that_of_the_task(shell, queue):
    shell.ok("publish", "mail", "1", env={"TRACEPARENT": TRACE})
    shell.ok("publish", "mail", "2", "--traceparent", OTHER, env={"TRACEPARENT": TRACE})
    # It is other programs' variable: one that is no trace must not make publishing fail.
    shell.ok("publish", "mail", "3", env={"TRACEPARENT": "nonsense"})

    assert [task.traceparent for task in fetched(queue)] == [TRACE, OTHER, None]
    assert shell.run("publish", "mail", "4", "--traceparent", "nonsense").returncode == 2


def test_a_program_is_within_the_trace_of_its_task_not_of_its_worker(shell, queue):
    shell.ok("publish", "front", "traced", "--traceparent", TRACE)
    shell.ok("publish", "front", "plain")

    script = f'echo "$TRACEPARENT" >> traces; {program()} publish mail -'
    shell.ok("work", "front", "--drain", "--", "sh", "-c", script, env={"TRACEPARENT": OTHER})

    assert (shell.home / "traces").read_text().split("\n") == [TRACE, "", ""]
    assert [(task.payload, task.traceparent) for task in fetched(queue)] == [
        ("traced", TRACE),
        ("plain", None),
    ]


# -- times --


def test_at_delivers_at_a_time(shell, queue):
    ahead = time.gmtime(time.time() + 7200)
    shell.ok("publish", "mail", "later", "--at", time.strftime("%Y-%m-%dT%H:%M:%SZ", ahead))
    shell.ok("publish", "mail", "now", "--at", "2024-01-20T15:30:00Z")

    assert [task.payload for task in fetched(queue)] == ["now"]
    (stats,) = shell.records("bus", "stats", "mail")
    assert stats["delayed"] == 1


@pytest.mark.parametrize(
    "options",
    [
        *(["--at", "tomorrow"], ["--at", "30m"], ["--at", "2024-01-20", "--delay", "5"]),
        *(["--attempts", "0"], ["--attempts", "1001"], ["--attempts", "x"]),
        *(["--expires", "0"], ["--expires", "x"], ["--expires", "401d"], ["--time-limit", "0"]),
        *(["--expires", "60", "--delay", "60"], ["--expires", "60", "--at", "2099-01-01"]),
        *(["--topic", ""], ["--topic", "a\nb"]),
    ],
    ids=" ".join,
)
def test_an_envelope_that_makes_no_sense_is_a_usage_error(shell, queue, options):
    done = shell.run("publish", "mail", "x", *options)

    assert (done.returncode, done.stdout) == (2, "")
    assert queue.peek() == []


# -- limits, as work shows them --


def test_a_program_runs_as_often_as_its_task_allows(shell):
    shell.ok("publish", "mail", "once", "--attempts", "1")

    (run,) = work(shell, "--attempts", "3", "--", "false")

    assert (run["attempt"], run["outcome"]) == (1, "dead")
    assert shell.records("dlq", "list", "mail")[0]["attempts"] == 1


def test_a_program_whose_task_would_expire_before_the_next_attempt_buries_it(shell):
    policy = "queues: {mail: {backoff: {first: 600, longest: 600}}}"
    (shell.home / "config.yaml").write_text(policy)
    shell.environment["AGENTBUS_CONFIG"] = str(shell.home / "config.yaml")
    shell.ok("publish", "mail", "x", "--expires", "200")

    (run,) = work(shell, "--", "false")

    assert (run["outcome"], run["error"]) == ("dead", "exit 1")
    (letter,) = shell.records("dlq", "list", "mail")
    assert (letter["attempts"], letter["error"]) == (1, "ProgramFailed: exit 1")


def test_a_program_finds_the_limits_in_its_environment(shell):
    shell.ok("publish", "mail", "x", "--attempts", "2", "--expires", "60")

    shell.ok("work", "mail", "--drain", "--", "sh", "-c", "env | grep ^AGENTBUS_ > env")

    found = (shell.home / "env").read_text().splitlines()
    assert {"AGENTBUS_ATTEMPTS=2", "AGENTBUS_EXPIRES=60.0"} <= set(found)


def test_an_expired_task_is_not_run(shell, queue, real_url, project):
    queue.publish("old", expires=0.001)
    assert shell.run("work", "mail", "--drain", "--", "touch", "ran").returncode == 8

    assert not (shell.home / "ran").exists()
    (letter,) = shell.records("dlq", "list", "mail")
    assert letter["error"].startswith("Expired: the task expired at ")


def test_a_correlation_is_a_random_uuid(shell, queue):
    shell.ok("publish", "mail", "--lines", stdin="1\n2\n")
    shell.ok("publish", "mail", "3")

    one, two, three = (uuid.UUID(task.correlation_id) for task in fetched(queue))
    assert one == two != three
    assert {(found.version, found.variant) for found in (one, three)} == {(4, uuid.RFC_4122)}
