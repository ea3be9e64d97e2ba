"""`agentbus replay`: what it prints, and how it ends."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.pipeline.archives import row, write_archive
from tests.servers import Shell
from tests.terminals import Terminal

START = 1_763_600_000_000


@pytest.fixture
def archive(tmp_path: pathlib.Path) -> str:
    path = str(tmp_path / "archive")
    rows = [row("q:mail:high", f"{START + n}-0", payload=str(n), topic="build") for n in range(20)]
    write_archive(path, [*rows, row("q:other", f"{START}-0", payload="0")])
    return path


@pytest.mark.slow
def test_a_replay_tells_what_it_did_and_that_it_is_finished(real_shell: Shell, archive):
    wishes = ("replay", archive, "--stream", "q:mail:high", "--where", "topic = 'build'")
    wishes = (*wishes, "--from", str(START + 5), "--to-queue", "again", "--rate", "100000")

    (done,) = real_shell.records(*wishes, timeout=240)

    assert done.pop("seconds") > 0
    name = done.pop("id")
    source = {
        "stream": "q:mail:high",
        "target": "again",
        "priority": "high",
        "rows": 15,
        "first": f"{START + 5}-0",
        "last": f"{START + 19}-0",
    }
    assert done == {
        "rows": 15,
        "published": 15,
        "skipped": 0,
        "streams": [source],
        "dry_run": False,
        "finished": None,
    }
    (task, *_) = real_shell.records("bus", "inspect", "again", "--limit", "1")
    assert task["payload"] == 5
    # From here on nothing needs Spark.
    (again,) = real_shell.records(*wishes)
    assert (again["id"], again["published"], again["skipped"]) == (name, 0, 15)
    assert again["finished"].endswith("Z")
    said = real_shell.ok(*wishes)
    assert said.startswith(f"replay {name}: nothing to do, its 15 rows were published by 20")
    table = real_shell.ok(*wishes, "--dry-run").splitlines()
    assert table[0].split() == ["STREAM", "TO", "PRIORITY", "ROWS", "FIRST", "LAST"]
    assert table[1].split() == [
        *("q:mail:high", "again", "high", "15", f"{START + 5}-0", f"{START + 19}-0")
    ]
    assert table[2] == f"replay {name}: 15 rows would be published, 15 of them are"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--stream", "metrics"], 2, "not a stream that can be replayed"),
        (["--stream", "q:nobody"], 5, "holds nothing of 'q:nobody'"),
        (["--rate", "0"], 2, "not a number above 0"),
        (["--to-queue", "a", "--to-channel"], 2, "to one of them"),
        (["--from", "tomorrow"], 2, "not a point to start from"),
        (["--id", ""], 2, "the replay is empty"),
    ],
)
def test_a_mistake_is_told_at_once(real_shell: Shell, archive, words, code, told):
    done = real_shell.run("replay", archive, *words)

    assert done.returncode == code
    assert told in done.stderr
    assert done.stdout == ""


def test_there_must_be_an_archive(real_shell: Shell, tmp_path):
    missing = real_shell.run("replay", str(tmp_path / "nowhere"), "--json")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x.parquet").write_text("no archive")
    foreign = real_shell.run("replay", str(tmp_path / "foreign"))

    assert (missing.returncode, json.loads(missing.stderr)["code"]) == (5, 5)
    assert foreign.returncode == 2
    assert "is not an archive" in foreign.stderr


def test_a_server_that_is_not_there_is_told(real_shell: Shell, archive):
    done = real_shell.run("replay", archive, "--url", "redis://127.0.0.1:1", "--deadline", "0.3")

    assert done.returncode == 1
    assert "redis://127.0.0.1:1" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("compact", "--before", "2999-01-01"), "compact: 0 of 21 rows"),
        (("verify", "--project", "demo"), "verify: 21 rows in 1 file"),
    ],
)
def test_a_terminal_shows_how_far_compact_and_verify_are(real_shell: Shell, archive, words, shown):
    action, *options = words

    terminal = Terminal(real_shell, "archive", action, archive, *options)

    terminal.read_until(shown)
    terminal.process.kill()
    terminal.process.wait()
