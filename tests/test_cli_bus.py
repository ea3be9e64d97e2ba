"""What an operator types to look at queues: bus and metrics; and the line that a long drain shows."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

import agentbus
from agentbus.commands import _format, _progress
from agentbus.workers.metrics import Tally
from tests.servers import Shell, ask, program

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    real_shell.environment["PYTHONPATH"] = str(ROOT)
    return real_shell


@pytest.fixture
def bus(real_url, project):
    with agentbus.connect(real_url, project=project, agent="ada") as opened:
        yield opened


@pytest.fixture
def filled(bus):
    """A queue with a task in each state, and what a worker counted."""
    queue = bus.queue("mail")
    ids = queue.publish_many(range(5))
    done, aside, buried, _ = queue.fetch(count=4)
    done.ack()
    aside.retry(600.0)
    buried.bury("broken")
    tally = Tally(bus.scope, "mail", "default", "w1")
    tally.note("received", 4)
    tally.note("processed", 120)
    tally.ran(120, 0.003)
    tally.waited(120, 2.0)
    bus._run("flush", tally.flush())
    return ids


def columns(line: str) -> list[str]:
    return line.split()


# -- bus --


def test_stats_prints_a_line_for_each_queue_and_group(shell, bus, filled):
    bus.queue("other").publish(1)

    head, mail, other = shell.ok("bus", "stats").splitlines()

    row = dict(zip(head.replace(" p95", "_p95").split(), columns(mail), strict=True))
    assert (row["QUEUE"], row["GROUP"], row["BACKLOG"], row["HELD"]) == (
        "mail",
        "default",
        "1",
        "1",
    )
    assert (row["RETRY"], row["DELAYED"], row["DEAD"], row["WORKERS"]) == ("1", "0", "1", "1")
    assert row["RATE/s"] == "2.0"
    assert columns(other)[:3] == ["other", "-", "1"]


def test_stats_of_one_queue_tells_all_there_is(shell, filled):
    shown = shell.ok("bus", "stats", "mail")

    assert "backlog   1 (normal 1), the oldest for " in shown
    assert "held      1 by 1 consumer," in shown
    assert "running   mean 3.0ms, p50 " in shown
    assert "processed 1" in shown


def test_stats_as_json(shell, filled):
    (record,) = shell.records("bus", "stats", "mail")

    assert (record["backlog"], record["pending"], record["retrying"]) == (1, 1, 1)
    assert (record["lag"], record["dead"], record["rate"]) == (3, 1, 2.0)
    assert record["running"]["count"] == 120
    assert record["counters"]["retried"] == 1
    assert record["worked"]["received"] == 4


def test_nothing_is_printed_where_there_are_no_queues(shell):
    assert shell.ok("bus", "stats") == ""
    assert shell.ok("bus", "list") == ""
    assert shell.ok("metrics") == ""


def test_list_prints_the_streams(shell, filled):
    lines = shell.ok("bus", "list").splitlines()

    named = [line.rsplit(maxsplit=5)[0].strip() for line in lines[1:]]
    assert named == [
        *("mail (critical)", "mail (high)", "mail", "mail (low)"),
        *("mail (dead letters of default)", "metrics"),
    ]
    assert columns(lines[3])[1] == "5"
    records = shell.records("bus", "list")
    assert [record["kind"] for record in records] == ["queue"] * 4 + ["dead letters", "metrics"]
    assert records[2]["first_id"] == filled[0].partition("@")[0]


def test_groups_prints_each_group_with_its_consumers(shell, filled):
    about, consumer = shell.ok("bus", "groups", "mail").splitlines()

    assert about.startswith("default: 1 waiting, 1 held, 1 retrying, 1 dead; oldest ")
    assert about.endswith(f"delivered up to normal {filled[3].partition('@')[0]}")
    assert " 1 held, silent for " in consumer
    (record,) = shell.records("bus", "groups", "mail")
    assert record["consumers"][0]["pending"] == 1
    assert record["last_ids"]["normal"] == filled[3].partition("@")[0]


def test_inspect_prints_each_entry_with_what_became_of_it(shell, filled):
    lines = shell.ok("bus", "inspect", "mail").splitlines()

    assert lines[0] == f"{filled[0]} done: 0"
    assert lines[1] == f"{filled[1]} retrying, attempts 1: 1"
    assert lines[2] == f"{filled[2]} done: 2"
    assert lines[3].startswith(f"{filled[3]} pending by ")
    assert lines[4] == f"{filled[4]} waiting: 4"
    assert shell.ok("bus", "inspect", "mail", "--last", "1").splitlines() == lines[4:]
    assert shell.ok("bus", "inspect", "mail", "--from", filled[4]).splitlines() == lines[4:]
    assert shell.ok("bus", "inspect", "mail", "--limit", "1").splitlines() == lines[:1]
    (record,) = shell.records("bus", "inspect", "mail", "--last", "1", "--group", "other")
    assert (record["state"], record["payload"], record["holder"]) == ("waiting", 4, None)


def test_inspect_marks_what_cannot_be_read(shell, bus, project):
    ask(bus, "XADD", f"{project}:q:mail", "*", "payload", b"{\x1b[2Jbad")

    shown = shell.ok("bus", "inspect", "mail")

    assert "waiting: malformed: " in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("action", ["stats", "groups", "inspect"])
def test_a_queue_that_is_not_there_is_exit_5(shell, action):
    done = shell.run("bus", action, "mail")

    assert (done.returncode, done.stdout) == (5, "")


@pytest.mark.parametrize(
    "args",
    [
        ["bus"],
        ["bus", "frob"],
        ["bus", "groups"],
        ["bus", "inspect"],
        ["bus", "list", "mail"],
        ["bus", "stats", "mail", "--last", "1"],
        ["bus", "groups", "mail", "--group", "g"],
        ["bus", "inspect", "mail", "--last", "1", "--from", "1h"],
        ["bus", "inspect", "mail", "--from", "nonsense"],
        ["bus", "inspect", "mail", "--group", ""],
        ["bus", "stats", ""],
        ["metrics", "--since", "yesterday"],
        ["metrics", "--queue", ""],
        ["metrics", "--follow"],
        ["metrics", "extra"],
    ],
)
def test_what_cannot_be_asked_is_a_usage_error(shell, args):
    assert shell.run(*args).returncode == 2


# -- metrics --


def test_metrics_prints_sums_and_percentiles(shell, filled):
    head, mail = shell.ok("metrics").splitlines()

    assert columns(mail)[:8] == ["mail", "default", "120", "0", "0", "0", "0", "0"]
    assert len(head) <= 100
    (record,) = shell.records("metrics", "--queue", "mail", "--since", "1h")
    assert record["counts"] == {"received": 4, "processed": 120}
    assert record["running"]["mean"] == pytest.approx(0.003)
    assert shell.records("metrics", "--queue", "other") == []


def test_metrics_raw_prints_the_entries_as_json(shell, filled):
    (line,) = shell.ok("metrics", "--raw").splitlines()

    entry = json.loads(line)
    assert (entry["kind"], entry["worker"], entry["ran"]) == ("work", "w1", [0, 0, 120])
    assert entry["start"].endswith("Z")


def test_metrics_follows_what_is_told_later(shell, bus, filled):
    following = shell.start("metrics", "--raw", "--follow")
    assert json.loads(following.stdout.readline())["counts"]["processed"] == 120
    tally = Tally(bus.scope, "mail", "default", "w2")
    tally.note("received")

    bus._run("flush", tally.flush())

    assert json.loads(following.stdout.readline())["worker"] == "w2"
    following.kill()
    following.communicate()


# -- tables --


class Kept:
    """An output that keeps its lines."""

    json = False

    def __init__(self) -> None:
        self.lines: list[str] = []

    def record(self, _fields: object, text: str) -> None:
        self.lines.append(text)


@given(
    st.lists(st.tuples(st.text(min_size=1), st.integers(0, 10**9)), min_size=1, max_size=5),
)
def test_a_table_fits_a_hundred_columns_whatever_a_queue_is_called(rows):
    out = Kept()
    columns = {"QUEUE": lambda row: row[0] * 50, "GROUP": lambda row: row[0] * 9}
    columns |= {f"COLUMN{number}": lambda row: str(row[1]) for number in range(6)}
    _format.show(out, rows, columns, left=2)

    assert len(out.lines) == len(rows) + 1
    assert all(len(line) <= _format.WIDTH for line in out.lines)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *((None, "-"), (0.0, "0.0ms"), (0.0042, "4.2ms"), (0.25, "250ms"), (1.26, "1.3s")),
        *((59.9, "59s"), (60.0, "1m"), (61.0, "1m1s"), (3600.0, "1h"), (5400.0, "1h30m")),
        *((86_400.0, "1d"), (90_000.0, "1d1h")),
    ],
)
def test_ages_are_written_as_people_read_them(seconds, said):
    assert _format.age(seconds) == said


def test_a_name_that_a_terminal_would_obey_is_shown_harmlessly(shell, bus):
    bus.queue("evil\u202e name").publish("\u2066")

    for action in (["list"], ["stats"], ["inspect", "evil\u202e name"]):
        shown = shell.ok("bus", *action)
        assert "evil" in shown
        assert not {"\u202e", "\u2066"} & set(shown)


# -- the progress of a drain --


class Terminal:
    """A terminal of some width on a program's stderr, and what it was shown."""

    def __init__(
        self, shell: Shell, *args: str, width: int = 60, term: str = "xterm", **env: str
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        self.process = subprocess.Popen(
            [program(), *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=slave,
            env={**shell.environment, "TERM": term, **env},
            cwd=shell.home,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""

    def read_until(self, there: Callable[[str], bool]) -> None:
        while not there(self.shown):
            self.shown += os.read(self._master, 65536).decode()

    def end(self) -> str:
        """Wait for the program to end well, and return what it wrote to stdout."""
        with contextlib.suppress(OSError):
            while data := os.read(self._master, 65536):
                self.shown += data.decode()
        out = self.process.communicate(timeout=60)[0].decode()
        os.close(self._master)
        assert self.process.returncode == 0, self.shown
        return out

    def screen(self) -> list[str]:
        """Return what is left on the lines of the terminal."""
        lines, at = [""], 0
        for part in re.split(r"(\x1b\[[0-9?]*[A-Za-z]|\r\n|\n|\r)", self.shown):
            if part in ("\r\n", "\n"):
                at += 1
                lines += [""] * (at + 1 - len(lines))
            elif part == "\x1b[1A":
                at -= 1
            elif part == "\x1b[2K":
                lines[at] = ""
            elif not part.startswith(("\x1b", "\r")):
                lines[at] += part
        return [*(line.rstrip() for line in lines[: at + 1]), *filter(None, lines[at + 1 :])]


# Works until it is told that it was watched for long enough.
SLOW = "until [ -e go ]; do sleep 0.02; done"


def test_a_long_drain_shows_how_far_it_is_and_cleans_up(shell, bus):
    # given a drain that takes long
    bus.queue("mail").publish_many(range(3))
    terminal = Terminal(shell, "work", "mail", "--drain", "--", "sh", "-c", SLOW)

    # then it says so while it runs
    terminal.read_until(lambda shown: "mail: 0 done, 3 left" in shown)
    (shell.home / "go").write_text("")

    # and leaves nothing behind, nor anything of it on stdout
    out = terminal.end()
    assert [line.split()[1] for line in out.splitlines()] == ["done"] * 3
    assert terminal.screen() == [""]


def test_what_the_program_says_stands_on_lines_of_its_own(shell, bus):
    bus.queue("mail").publish(1)
    script = f"{SLOW}; echo 'said so' >&2"
    terminal = Terminal(shell, "work", "mail", "--drain", "--", "sh", "-c", script)
    terminal.read_until(lambda shown: "1 left" in shown)

    (shell.home / "go").write_text("")
    terminal.end()

    assert terminal.screen() == ["said so", ""]


def test_the_line_fits_a_narrow_terminal(shell, bus):
    bus.queue("thumbnails").publish(1)
    terminal = Terminal(
        shell, "work", "thumbnails", "--drain", "--", "sh", "-c", SLOW, width=16, NO_COLOR="1"
    )
    terminal.read_until(lambda shown: "thumbnails: " in shown)
    (shell.home / "go").write_text("")
    terminal.end()

    drawn = re.split(r"\x1b\[[0-9?]*[A-Za-z]|[\r\n]", terminal.shown)
    assert max(map(len, drawn)) <= 16
    assert terminal.screen() == [""]


@pytest.mark.parametrize(
    ("options", "term"), [(["--drain", "--json"], "xterm"), (["--drain"], "dumb")]
)
def test_who_does_not_want_the_line_does_not_get_it(shell, bus, options, term):
    bus.queue("mail").publish(1)
    terminal = Terminal(shell, "work", "mail", *options, "--", "sh", "-c", "sleep 1.3", term=term)

    terminal.end()

    assert terminal.shown == ""


def test_nothing_is_shown_where_there_is_no_terminal(shell, bus):
    bus.queue("mail").publish(1)

    done = shell.run("work", "mail", "--drain", "--", "sh", "-c", "sleep 1.3")

    assert done.stderr == ""


def test_the_line_tells_speed_and_the_time_that_is_left():
    now, left = 100.0, 100
    shown = _progress.Countdown(lambda: left, lambda left: f"mail: {left} left", lambda: now)
    assert shown.line() == "mail: 100 left"
    now, left = 105.0, 80
    assert shown.line() == "mail: 80 left"
    now, left = 110.0, 60

    # Whoever does it: 4 a second less, 60 to go.
    assert shown.line() == "mail: 60 left, 4.0/s, about 15s"
