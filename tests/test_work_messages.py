"""What somebody is told who makes a mistake with work: in words, and before anything happens."""

from __future__ import annotations

import subprocess

import pytest

from agentbus.client.bus import Bus
from agentbus.errors import InvalidPayload, UsageError
from tests.servers import Shell, program


@pytest.mark.parametrize(
    ("verb", "missing"),
    [
        ("publish", "QUEUE"),
        ("work", "QUEUE"),
        ("result", "ID"),
        ("ask", "QUEUE"),
        ("dlq list", "QUEUE"),
        ("rerun", "QUEUE"),
    ],
)
def test_an_argument_that_is_missing_is_named(real_shell: Shell, verb: str, missing: str) -> None:
    """Nobody who types too little reads of types or of None."""
    ran = real_shell.run(*verb.split())

    assert ran.returncode == 2
    assert f"missing argument '{missing}'" in ran.stderr


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("pause", "[QUEUE]"),
        ("dlq", "ACTION QUEUE [ID...]"),
        ("publish", "QUEUE [PAYLOAD|-|@FILE]"),
        ("work", "QUEUE [-- CMD...]"),
    ],
)
def test_help_puts_what_may_be_left_out_in_brackets(
    real_shell: Shell, words: str, usage: str
) -> None:
    """As every other program does."""
    first, *_ = real_shell.run(words, "--help").stdout.splitlines()

    assert first.endswith(usage)


def test_a_payload_that_looks_like_a_file_is_told_how_to_be_text(real_shell: Shell) -> None:
    """The way that the hint names works."""
    refused = real_shell.run("publish", "mail", "@nobody")
    real_shell.run("publish", "mail", '"@nobody"')

    assert refused.returncode == 2
    assert "as a JSON text" in refused.stderr
    assert '"@nobody"' in real_shell.run("bus", "inspect", "mail").stdout


def test_a_handler_that_fails_shows_in_the_last_line(real_shell: Shell) -> None:
    """A drain that buried everything does not look like one that had nothing to do."""
    real_shell.run("publish", "mail", "1")

    ran = real_shell.run("work", "mail", "--drain", "--attempts", "1", "--handler", "operator:neg")

    assert " INFO agentbus: mail: 0 done, 1 run failed\n" in ran.stderr


def test_one_of_a_kind_is_no_plural(real_shell: Shell) -> None:
    """Figures are read by people."""
    real_shell.run("publish", "mail", "1")
    real_shell.run("work", "mail", "--drain", "--", "true")

    ran = real_shell.run("rerun", "mail", "--from", "1h")

    assert ran.stdout.startswith("mail: 1 is delivered again to default")


def test_a_worker_of_a_paused_queue_says_why_it_does_nothing(real_shell: Shell) -> None:
    """It says so, and not that there is nothing to do."""
    real_shell.run("publish", "mail", "1")
    real_shell.run("pause", "mail", "--why", "it moves", "--agent", "boss")
    work = subprocess.Popen(
        [program(), "work", "mail", "--drain", "--", "true"],
        env=real_shell.environment,
        cwd=real_shell.home,
        stderr=subprocess.PIPE,
        text=True,
    )

    assert work.stderr is not None
    started, told = work.stderr.readline(), work.stderr.readline()
    real_shell.run("resume", "mail")

    assert " worker of mail started: " in started
    assert told == "agentbus: queue mail is paused by boss: it moves; it waits\n"
    assert work.wait(30) == 0
    work.stderr.close()


@pytest.mark.parametrize("payloads", ["abc", b"abc", {"a": 1}])
def test_one_payload_is_not_taken_for_many(bus: Bus, payloads: object) -> None:
    """A text is no list of its letters."""
    queue = bus.queue("mail")

    with pytest.raises(UsageError, match="the payloads are one"):
        queue.publish_many(payloads)
    with pytest.raises(UsageError, match="the payloads are one"):
        list(queue.publish_stream(payloads))

    assert queue.peek() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [({"handler": 5}, "the handler is 5"), ({"backoff": 5}, "the backoff is 5")],
)
def test_a_worker_that_could_not_work_is_not_made(
    bus: Bus, options: dict[str, object], words: str
) -> None:
    """It would bury what it takes, or end at the first failure."""
    with pytest.raises(UsageError, match=words):
        bus.subscribe("mail", **{"handler": print, **options})


def test_headers_that_are_no_mapping_are_refused(bus: Bus) -> None:
    """In our words."""
    with pytest.raises(InvalidPayload, match="the headers are a list"):
        bus.queue("mail").publish(1, headers=["a"])


@pytest.mark.parametrize("start", [None, [1]])
def test_what_is_no_time_is_no_point_to_start_from(bus: Bus, start: object) -> None:
    """Neither for the metrics nor for a replay."""
    with pytest.raises(UsageError, match="not a point to start from"):
        bus.metrics(since=start)
    with pytest.raises(UsageError, match="not a point to start from"):
        bus.queue("mail").replay_from(start)
