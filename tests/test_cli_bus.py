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
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len

import agentbus
from agentbus.commands import _format, _progress
from agentbus.commands._output import Out, plain
from agentbus.workers.metrics import Durations, Tally
from tests import inprocess
from tests.servers import Shell, ask, program
from tests.small_worker import Registry
from tests.test_presence import age

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
    tally.count_runs(120, 0.003)
    tally.count_waits(120, 2.0)
    bus._run("flush", tally.flush())
    return ids


def columns(line: str) -> list[str]:
    return line.split()


# -- bus --


def test_stats_prints_a_line_for_each_queue_and_group(shell, bus, filled, project):
    bus.queue("other").publish(1)

    named, head, mail, other = shell.ok("bus", "stats").splitlines()

    row = dict(zip(head.replace(" p95", "_p95").split(), columns(mail), strict=True))
    assert (row["QUEUE"], row["GROUP"], row["BACKLOG"], row["RUN"]) == (
        "mail",
        "default",
        "1",
        "1",
    )
    assert (row["RETRY"], row["DELAYED"], row["DEAD"], row["WORKERS"]) == ("1", "0", "1", "1")
    assert row["RATE/s"] == "2.0"
    assert columns(other)[:3] == ["other", "-", "1"]
    assert named == f"project {project}"


def test_stats_of_one_queue_tells_all_there_is(shell, filled, project):
    shown = shell.ok("bus", "stats", "mail")

    assert shown.startswith(f"project   {project}\nqueue     mail\n")
    assert "backlog   1 (normal 1), the oldest for " in shown
    assert "running   1, the longest for " in shown
    assert "workers   1 live" in shown
    assert "run time  mean 3.0ms, p50 " in shown
    assert "processed 1" in shown


def test_stats_count_no_dead_worker(shell, bus):
    bus.queue("mail").publish_many(range(2))
    bus.queue("mail").fetch()
    (holder,) = bus.queue("mail").groups()[0].consumers
    for name in ("host:1:a", holder.name):
        Registry(bus, "mail", name).beat()
    assert [one["consumers"] for one in shell.records("bus", "stats")] == [2]

    age(bus, holder.name, 60)

    assert [one["consumers"] for one in shell.records("bus", "stats")] == [1]
    assert "workers   1 live" in shell.ok("bus", "stats", "mail")
    assert bus.queue("mail").groups()[0].consumers[0].name == holder.name


def test_stats_as_json(shell, filled):
    (record,) = shell.records("bus", "stats", "mail")

    assert (record["backlog"], record["pending"], record["retrying"]) == (1, 1, 1)
    assert (record["lag"], record["dead"], record["rate"]) == (3, 1, 2.0)
    assert record["running"]["count"] == 120
    assert record["counters"]["retried"] == 1
    assert record["worked"]["received"] == 4


def test_a_project_without_queues_is_named_all_the_same(shell, bus, project):
    ask(bus, "SET", f"{project}:flag:x", "a @ b")

    assert shell.ok("bus", "stats") == f"project {project}: no queues\n"
    assert shell.ok("bus", "list") == f"project {project}: no streams\n"
    assert shell.ok("metrics") == f"project {project}: no counts since 5m\n"
    for view in (["bus", "stats"], ["bus", "list"], ["metrics"], ["metrics", "--raw"]):
        assert shell.records(*view) == []


def test_list_prints_the_streams(shell, filled):
    lines = shell.ok("bus", "list").splitlines()[1:]

    named = [line.rsplit(maxsplit=5)[0].strip() for line in lines[1:]]
    assert named == ["mail", "mail (dead letters of default)", "metrics"]
    assert columns(lines[1])[1] == "5"
    records = shell.records("bus", "list")
    assert [record["kind"] for record in records] == ["queue", "dead letters", "metrics"]
    assert records[0]["first_id"] == filled[0].partition("@")[0]


def test_groups_prints_each_group_with_its_consumers(shell, filled, project):
    named, about, consumer = shell.ok("bus", "groups", "mail").splitlines()

    assert named == f"project {project}"
    assert about.startswith("default: 1 waiting, 1 running, 1 retrying, 1 dead; oldest ")
    assert about.endswith(f"delivered up to normal {filled[3].partition('@')[0]}")
    assert " 1 held, silent for " in consumer
    (record,) = shell.records("bus", "groups", "mail")
    assert record["consumers"][0]["pending"] == 1
    assert record["last_ids"]["normal"] == filled[3].partition("@")[0]


def test_inspect_prints_each_entry_with_what_became_of_it(shell, filled, project):
    named, *lines = shell.ok("bus", "inspect", "mail").splitlines()

    assert named == f"project {project}"
    assert lines[0] == f"{filled[0]} done: 0"
    assert re.fullmatch(rf"{filled[1]} retrying until \S+Z, attempts 1: 1", lines[1])
    assert lines[2] == f"{filled[2]} dead: 2"
    assert lines[3].startswith(f"{filled[3]} running by ")
    assert lines[4] == f"{filled[4]} waiting: 4"
    for words, shown in (
        (["--last", "1"], lines[4:]),
        (["--from", filled[4]], lines[4:]),
        (["--limit", "1"], lines[:1]),
    ):
        assert shell.ok("bus", "inspect", "mail", *words).splitlines() == [named, *shown]
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


def test_metrics_prints_sums_and_percentiles(shell, filled, project):
    named, head, mail = shell.ok("metrics").splitlines()

    assert named == f"project {project}"
    assert columns(mail)[:8] == ["mail", "default", "120", "0", "0", "0", "0", "0"]
    assert len(head) <= 100
    (record,) = shell.records("metrics", "--queue", "mail", "--since", "1h")
    assert record["counts"] == {"received": 4, "processed": 120}
    assert record["running"]["mean"] == pytest.approx(0.003)


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


class Kept(Out):
    """An output that keeps its lines, on a terminal of some width or on none."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__(json=False)
        self.lines: list[str] = []
        self.warned: list[str] = []
        self._terminal = terminal

    def is_terminal(self) -> bool:
        return self._terminal

    def drawn(self, line: str) -> None:
        self.lines.append(line)

    def warn(self, text: str) -> None:
        self.warned.append(text)


def shown(rows, columns, *, left, width=None) -> Kept:
    out = Kept(terminal=width is not None)
    with inprocess.environment({"COLUMNS": str(width), "NO_COLOR": "1"} if width else {}):
        _format.show(out, rows, columns, left=left)
    return out


NAMES = st.text(min_size=1).filter(lambda name: not name.isspace())


@given(
    st.lists(st.tuples(NAMES, st.integers(0, 10**9)), min_size=1, max_size=5),
    st.sampled_from([20, 40, 80, 120]),
)
def test_a_table_fits_the_terminal_whatever_a_queue_is_called(rows, width):
    columns = {"QUEUE": lambda row: row[0] * 50, "GROUP": lambda row: row[0] * 9}
    columns |= {f"COLUMN {number}": lambda row: str(row[1]) for number in range(6)}

    out = shown(rows, columns, left=2, width=width)

    assert max(map(cell_len, out.lines)) <= width
    assert len(out.lines) > len(rows)


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_a_table_in_a_pipe_has_whole_names_and_a_line_for_each(names):
    columns = {"QUEUE": lambda name: name * 50, "BACKLOG": lambda _: "17"}

    out = shown(names, columns, left=1)

    assert [line.rpartition("  ")[0].strip() for line in out.lines[1:]] == [
        plain(name * 50).strip() for name in names
    ]
    assert len({cell_len(line) for line in out.lines}) == 1


@pytest.mark.parametrize("width", [None, 80])
def test_wide_characters_are_aligned(width):
    names = ["mail", "邮件队列", "🚀 launches", "e\u0301te\u0301"]

    out = shown(names, {"QUEUE": str, "N": lambda _: "17"}, left=1, width=width)

    assert [cell_len(line) for line in out.lines] == [15] * 5
    assert [line.split()[-1] for line in out.lines] == ["N", *["17"] * 4]


def test_figures_that_say_nothing_go_before_names_are_folded():
    rows = [("thumbnails-of-large-pictures", "1234567", "0", "99")]
    columns = {"QUEUE": 0, "BACKLOG": 1, "DELAYED": 2, "DEAD": 3}
    columns = {name: lambda row, at=at: row[at] for name, at in columns.items()}

    assert shown(rows, columns, left=1, width=80).lines[0].split() == [*columns]
    assert shown(rows, columns, left=1, width=80).warned == []
    assert shown(rows, columns, left=1, width=42).warned == [
        "no room for DELAYED; a wider terminal, a pipe or --json shows all"
    ]
    assert shown(rows, columns, left=1, width=42).lines == [
        "QUEUE                        BACKLOG DEAD",
        "thumbnails-of-large-pictures 1234567   99",
    ]
    assert shown(rows, columns, left=1, width=30).lines == [
        "QUEUE             BACKLOG DEAD",
        "thumbnails-of-lar 1234567   99",
        "ge-pictures",
    ]


def test_figures_without_room_are_named():
    columns = {"QUEUE": str, "BACKLOG": lambda _: "12", "DEAD": lambda _: "3"}

    out = shown(["thumbnails-of-pictures"], columns, left=1, width=24)

    assert out.lines == ["QUEUE            BACKLOG", "thumbnails-of-pi      12", "ctures"]
    assert out.warned == ["no room for DEAD; a wider terminal, a pipe or --json shows all"]


def test_a_sentence_on_a_terminal_breaks_between_words():
    out, text = Kept(terminal=True), "warning   lag: the oldest task was sent an hour ago"

    with inprocess.environment({"COLUMNS": "40", "NO_COLOR": "1"}):
        _format.sentence(out, {}, text, indent=10)

    assert out.lines == ["warning   lag: the oldest task was sent", "          an hour ago"]


def test_a_sentence_in_a_pipe_is_one_line():
    out, text = Kept(), "warning   lag: " + "word " * 40

    _format.sentence(out, {}, text.strip(), indent=10)

    assert out.lines == [text.strip()]


def test_stats_fit_a_terminal_of_80_columns_and_are_whole_in_a_pipe(shell, bus):
    name = "thumbnails-of-very-large-pictures-for-the-web-shop"
    queue = bus.queue(name)
    queue.publish_many(range(3))
    queue.fetch()[0].bury("broken")

    shown = Terminal(shell, "bus", "stats", width=80, out=True).end().splitlines()
    piped = shell.ok("bus", "stats").splitlines()

    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown]
    assert max(map(len, plain)) <= 80
    assert "".join(line.split()[0] for line in plain[2:]) == name
    assert piped[2].startswith(f"{name}  default ")
    assert piped[1].endswith("WORKERS  RATE/s  RUN p95  WAIT p95")


@pytest.mark.parametrize(
    ("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_what_is_critical_is_red_on_a_terminal(shell, filled, env, coloured):
    for verb in (["bus", "stats"], ["health", "--strict"]):
        shown = Terminal(shell, *verb, out=True, width=80, **env).end(codes=(0, 6))

        assert ("\x1b[1;31m" in shown) == (coloured and verb[0] == "bus")
        assert ("\x1b[" in shown) == (coloured and verb[0] == "bus")
    assert "\x1b" not in shell.ok("bus", "stats")


def test_a_critical_finding_is_red_on_a_terminal():
    out = Kept(terminal=True)
    with inprocess.environment({"TERM": "xterm"}, without=["NO_COLOR"]):
        out.record({}, "critical lag: 'critical' has 600 tasks to do", red="critical")

    assert out.lines == ["\x1b[1;31mcritical\x1b[0m lag: 'critical' has 600 tasks to do"]


def test_no_verb_without_a_table_loads_rich(shell):
    done = shell.run("bus", "groups", "mail", env={"PYTHONPROFILEIMPORTTIME": "1"})

    assert "agentbus.commands.bus" in done.stderr
    assert " rich" not in done.stderr


def test_list_leaves_out_priorities_in_which_nothing_is(shell, bus):
    bus.queue("mail").publish(1, priority="high")
    bus.queue("mail").fetch()
    bus.queue("empty").publish(1)
    bus.queue("empty").fetch()[0].ack()

    lines = shell.ok("bus", "list").splitlines()

    assert [line.rsplit(maxsplit=5)[0].strip() for line in lines[2:]] == ["empty", "mail (high)"]
    records = shell.records("bus", "list")
    assert [(one["queue"], one["priority"]) for one in records] == [
        ("empty", "normal"),
        ("mail", "high"),
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *((None, "-"), (0.0, "0.0ms"), (0.0042, "4.2ms"), (0.25, "250ms"), (1.26, "1.3s")),
        *((59.9, "59s"), (60.0, "1m"), (61.0, "1m1s"), (3600.0, "1h"), (5400.0, "1h30m")),
        *((86_400.0, "1d"), (90_000.0, "1d1h"), (-3600.0, "0.0ms")),
    ],
)
def test_ages_are_written_as_people_read_them(seconds, said):
    assert _format.age(seconds) == said


def test_a_percentile_in_the_first_bucket_is_shown_as_its_bound():
    timing = Durations(3, 0.0002, 0.0005, 0.001, 0.004)

    assert _format.durations(timing) == "mean 0.2ms, p50 <1ms, p95 <1ms, p99 4.0ms"
    assert [_format.share(one, "p95") for one in (timing, None)] == ["<1ms", "-"]


def test_a_name_that_a_terminal_would_obey_is_shown_harmlessly(shell, bus):
    bus.queue("evil\u202e name").publish("\u2066")

    for action in (["list"], ["stats"], ["inspect", "evil\u202e name"]):
        shown = shell.ok("bus", *action)
        assert "evil" in shown
        assert not {"\u202e", "\u2066"} & set(shown)


# -- the progress of a drain --


class Terminal:
    """A terminal of some width on a program's stderr, or its stdout, and what it was shown."""

    def __init__(
        self,
        shell: Shell,
        *args: str,
        width: int = 60,
        term: str = "xterm",
        out: bool = False,
        **env: str,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        self.process = subprocess.Popen(
            [program(), *args],
            stdin=subprocess.DEVNULL,
            stdout=slave if out else subprocess.PIPE,
            stderr=subprocess.PIPE if out else slave,
            env={**shell.environment, "TERM": term, **env},
            cwd=shell.home,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""

    def read_until(self, there: Callable[[str], bool]) -> None:
        while not there(self.shown):
            self.shown += os.read(self._master, 65536).decode()

    def end(self, codes: Sequence[int] = (0,)) -> str:
        """Wait for the program to end well, and return what it wrote to stdout."""
        with contextlib.suppress(OSError):
            while data := os.read(self._master, 65536):
                self.shown += data.decode()
        out, _ = self.process.communicate(timeout=60)
        os.close(self._master)
        assert self.process.returncode in codes, self.shown
        return self.shown if out is None else out.decode()

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
    quiet = ("--drain", "--log-level", "warning")
    terminal = Terminal(shell, "work", "mail", *quiet, "--", "sh", "-c", SLOW)

    # then it says so while it runs
    terminal.read_until(lambda shown: "mail: 0 done, 3 left" in shown)
    (shell.home / "go").write_text("")

    # and leaves nothing behind, nor anything of it on stdout
    out = terminal.end()
    assert (out, terminal.screen()) == ("", [""])


def test_what_the_program_says_stands_on_lines_of_its_own(shell, bus):
    bus.queue("mail").publish(1)
    script = f"{SLOW}; echo 'said so' >&2"
    terminal = Terminal(shell, "work", "mail", "--drain", "--", "sh", "-c", script)
    terminal.read_until(lambda shown: "1 left" in shown)

    (shell.home / "go").write_text("")
    terminal.end()

    said = [line for line in terminal.screen() if "said so" in line]
    assert [line.partition(" | ")[2] for line in said] == ["said so"]
    assert not any(" left" in line for line in terminal.screen())


def test_the_line_fits_a_narrow_terminal(shell, bus):
    bus.queue("thumbnails").publish(1)
    quiet = ("--drain", "--log-level", "warning")
    terminal = Terminal(
        shell, "work", "thumbnails", *quiet, "--", "sh", "-c", SLOW, width=16, NO_COLOR="1"
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
    quiet = (*options, "--log-level", "warning")
    terminal = Terminal(shell, "work", "mail", *quiet, "--", "sh", "-c", "sleep 1.3", term=term)

    terminal.end()

    assert terminal.shown == ""


def test_nothing_is_shown_where_there_is_no_terminal(shell, bus):
    bus.queue("mail").publish(1)

    quiet = ("--drain", "--log-level", "warning")
    done = shell.run("work", "mail", *quiet, "--", "sh", "-c", "sleep 1.3")

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
