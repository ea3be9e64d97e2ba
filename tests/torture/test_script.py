"""`scripts/torture`: what it runs, what it tells, what it refuses, and that nothing of it stays behind.

The mode that it runs is a small one of the tests' own; the others have tests elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import pty
import re
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from agentbus.commands._output import Out
from agentbus.core import settings
from agentbus.errors import ConfigError, UsageError
from tests.repositories import make_repository
from tests.servers import ROOT, Server, scrubbed
from tests.torture import modes, report, tiny
from tests.torture.__main__ import main
from tests.torture.ending import by_signals, kill_those_with, with_variable
from tests.torture.mode import Mode, Trial
from tests.torture.verdict import Verdict

# The command as it is, with the small mode in the place of one that takes longer.
PROGRAM = """
import fcntl, sys, termios
from tests.torture import modes, report, tiny
from tests.torture.__main__ import main
from tests.torture import tiny
from tests.repositories import make_repository
modes.MODES.update(talk=tiny.MODE)
if "--terminal" in sys.argv:
    sys.argv.remove("--terminal")
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.exit(main())
"""
SHORT = ("talk", "--minutes", "0.05")
KEYS = [
    *("timestamp", "mode", "control", "seed", "seconds", "faults", "wanted", "figures"),
    *("violations", "verdict", "history", "again"),
]


@pytest.fixture
def temporary() -> Iterator[pathlib.Path]:
    """A directory for temporary files, in whose place nothing else lies."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as place:
        yield pathlib.Path(place)


def environment(temporary: pathlib.Path, **more: str) -> dict[str, str]:
    return {
        **scrubbed(dict(os.environ)),
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm",
        **more,
    }


def torture(temporary: pathlib.Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env=environment(temporary, **more),
        cwd=temporary.parent,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


# -- what it runs, and tells ----------------------------------------------------------------------


def test_a_run_that_passes_tells_its_seed_and_its_faults_and_leaves_nothing(temporary):
    done = torture(temporary, *SHORT, "--seed", "4217")

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "seed 4217: talk, 0.05 min each, on its own servers",
        "  talk  one client counts",
        "talk",
    ]
    assert lines[3] == "  faults: kill 2, server_kill 1"
    assert lines[4].startswith("  figures: numbers ")
    assert lines[5].startswith("  verdict: passed in ")
    assert (len(lines), list(temporary.iterdir())) == (6, [])


def test_controls_are_caught_or_missed_and_what_is_missed_is_kept(temporary):
    done = torture(temporary, *SHORT, "--controls", "--json")

    assert done.returncode == 6
    caught, missed = [json.loads(line) for line in done.stdout.splitlines()]
    assert list(caught) == list(missed) == KEYS
    assert (caught["control"], caught["verdict"], caught["history"]) == ("by_heart", "caught", None)
    assert (missed["control"], missed["verdict"], missed["violations"]) == ("well", "missed", {})
    assert caught["seed"] == missed["seed"]
    found = caught["violations"]["twice"]
    assert found["count"] >= len(found["examples"]) > 0
    history = pathlib.Path(missed["history"])
    assert (history / "histories/one").stat().st_size > 0
    assert list(history.parent.parent.iterdir()) == [history.parent]
    assert stat.S_IMODE(history.parent.stat().st_mode) == 0o700
    assert {path.name for path in history.parent.iterdir() if path.is_dir()} == {"talk-well"}
    assert done.stderr.startswith(f"torture: seed {missed['seed']}: talk, 0.05 min each")


def test_too_few_faults_fail_and_what_is_told_repeats_them(temporary):
    done = torture(temporary, "talk", "--minutes", "0.005")

    assert done.returncode == 6
    told = dict(line.strip().split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert told["too few faults"] == "kill 1 of 2"
    assert told["verdict"].startswith("FAILED in ")
    assert pathlib.Path(told["history"]).is_dir()
    script, *words = shlex.split(told["again"])
    assert script == "scripts/torture"
    again = torture(temporary, *words, "--json")
    assert again.stdout, again.stderr
    assert (again.returncode, json.loads(again.stdout)["again"]) == (6, told["again"])


def test_a_server_of_the_environment_is_left_alone(temporary, valkey, tmp_path):
    (tmp_path / "keep").mkdir()

    done = torture(
        temporary,
        *SHORT,
        *("--json", "--keep", str(tmp_path / "keep")),
        AGENTBUS_URL=valkey.tcp_url,
    )

    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["figures"]["url"] is False
    assert found["history"] == str(tmp_path / "keep/talk")
    assert (tmp_path / "keep/talk/histories/one").stat().st_size > 0


def test_on_a_server_that_is_named_only_clients_suffer_and_the_project_is_cleared(
    temporary, valkey
):
    password = "sesame-7351"
    valkey.ask("ACL", "SETUSER", "tortured", "on", f">{password}", "~*", "&*", "+@all")
    url = valkey.tcp_url.replace("//", f"//tortured:{password}@")
    where = valkey.tcp_url.removeprefix("redis://")
    for project in ("torture-11", "torture-12"):
        valkey.ask("SET", f"{project}:flag:a", "left")

    done = torture(temporary, *SHORT, "--seed", "11", "--url", url, "--server", where, "--json")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["faults"], found["figures"]["url"]) == ({"kill": 2}, True)
    assert valkey.ask("KEYS", "torture-11*") == []
    assert valkey.ask("DEL", "torture-12:flag:a") == 1
    assert password not in done.stdout + done.stderr
    assert f"--url 'redis://tortured:***@{where}' --server {where}" in found["again"]


# -- what it refuses ------------------------------------------------------------------------------


@pytest.fixture
def refused(monkeypatch, capfd):
    """Return a function that runs a command line which must not get as far as torture."""
    monkeypatch.setitem(modes.MODES, "talk", tiny.MODE)
    monkeypatch.setattr(modes, "Run", _never)
    monkeypatch.setattr(modes, "databases", lambda: ("sqlite",))

    def run(*words: str) -> tuple[int, str]:
        code = main(words)
        shown = capfd.readouterr()
        assert shown.out == ""
        return code, shown.err

    return run


def _never(*_args: Any, **_named: Any) -> None:
    raise AssertionError("this must not be tried")


def test_a_server_that_it_did_not_start_has_to_be_named_twice(refused):
    for words in ((), ("--server", "db"), ("--server", "db:6380")):
        code, said = refused("talk", "--url", "redis://:sesame@db", *words)
        assert code == 4
        assert "the server at db:6379 was not started by torture" in said
        assert "--server db:6379" in said
        assert "clears only projects whose names begin with torture" in said
        assert "sesame" not in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--url", "unix:///tmp/x"), "spoilt on plain TCP alone"),
        (("--url", "rediss://db", "--server", "db:6379"), "spoilt on plain TCP alone"),
        (("--url", "redis+cluster://db", "--server", "db:6379"), "spoilt on plain TCP alone"),
        (("--url", "redis://a,b", "--server", "a:6379"), "names no single server"),
        (("--url", "redis://db?x=1", "--server", "db:6379"), "unknown option 'x'"),
        (("--url", "redis://db/x", "--server", "db:6379"), "names the database 'x'"),
        (("--server", "db:6379"), "--server goes with --url"),
        (("--controls", "--url", "redis://db", "--server", "db:6379"), "on their own server"),
        (("--controls", "--control", "well"), "not allowed with"),
        (("--control", "nowhere"), "use one of by_heart, well"),
        (("--database", "sqlite"), "--database is for events"),
        (("--minutes", "0"), "not a number of minutes"),
        (("--minutes", "nan"), "not a number of minutes"),
        (("--minutes", "1441"), "not a number of minutes"),
        (("--seed", "-1"), "not a whole number"),
        (("nowhere",), "there is no mode 'nowhere'\nhint: use talk, flags"),
        (("--minute", "1"), "unrecognized arguments: --minute"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_started(refused, words, why):
    code, said = refused("talk", *words)

    assert code == 2
    assert why in said


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mysql://ada:sesame@db/x", "mysql://ada:***@db/x is not a database"),
        ("x", "'x' is not a database"),
        ("postgresql", "there is no package of it for this platform"),
    ],
)
def test_a_database_that_events_cannot_be_tried_on_is_refused(refused, monkeypatch, name, why):
    code, said = refused("events", "--database", name)

    assert code == 2
    assert why in said


def test_whoever_reads_the_output_may_stop_reading(temporary):
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *SHORT],
        env=environment(temporary),
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)

    assert (done.returncode, done.stderr) == (141, b"")
    assert list(temporary.iterdir()) == []


def test_without_arguments_it_shows_its_help_and_does_nothing(refused, capfd):
    assert main(["--help"]) == 0
    usage = capfd.readouterr().out

    code, said = refused()

    assert code == 2
    assert said.startswith(usage)
    assert said.endswith("hint: name some modes, or all: 'scripts/torture all'\n")


def test_what_is_left_out_for_want_of_a_package_is_told(monkeypatch, capfd):
    monkeypatch.setitem(modes.MODES, "talk", tiny.MODE)
    monkeypatch.setattr("tests.torture.server.clockwork", lambda: None)

    assert main(SHORT) == 0
    assert (
        "clock_shift (of servers, on Linux x86_64) is left out: there is no package of it"
        in capfd.readouterr().err
    )
    monkeypatch.setattr(modes, "databases", lambda: ("sqlite",))
    jobs = [modes.Job(modes.MODES["events"])]
    assert any("postgresql" in what for what in modes.left_out(jobs, []))
    assert not any("postgresql" in what for what in modes.left_out(jobs, ["sqlite"]))


def test_histories_are_kept_in_a_new_directory_alone(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old/file").touch()

    for place in ("old", "old/file", "old\0"):
        with pytest.raises(UsageError, match="old"):
            modes.Run([], keep=tmp_path / place)


# -- what clients find ----------------------------------------------------------------------------


def test_no_setting_of_the_user_reaches_a_client(monkeypatch, tmp_path):
    found: list[settings.Settings] = []

    def look(order: Trial) -> Iterator[Verdict]:
        found.append(settings.resolve({"agent": "a"}))
        yield Verdict("talk", order.seed, 0.0, {}, {}, {}, {}, order.place)

    make_repository(tmp_path)
    (tmp_path / ".agentbus.yaml").write_text("json: true\n")
    monkeypatch.chdir(tmp_path)
    given = {
        "AGENTBUS_URL": "redis://nowhere",
        "REDIS_URL": "redis://nowhere",
        "AGENT_ID": "me",
        "AGENTBUS_WEBHOOKS": "1",
        "AGENTBUS_DATABASE": "sqlite:///x",
        "AGENTBUS_JSON": "1",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)

    run = modes.Run([modes.Job(Mode("talk", "", {}, look))])
    verdicts = list(run)

    assert [verdict.passed for verdict in verdicts] == [True]
    sources = dict(found[0].sources)
    # The name of the repository here, which nobody has set; each client is given its own.
    assert sources.pop("project").startswith("path ")
    assert set(sources.values()) == {"flag"}
    assert dict(os.environ) == before
    assert not run.place.exists()


def test_what_a_dead_client_has_started_ends_with_the_run():
    found: list[set[int]] = []
    # As a JVM does: its parent is gone, it has a session of its own, and nobody ends it.
    start = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"

    def leave(order: Trial) -> Iterator[Verdict]:
        subprocess.run([sys.executable, "-c", start], check=True)
        found.append(with_variable("AGENTBUS_CONFIG", os.environ["AGENTBUS_CONFIG"]))
        yield Verdict("talk", order.seed, 0.0, {}, {}, {}, {}, order.place)

    run = modes.Run([modes.Job(Mode("talk", "", {}, leave))])
    config = str(run.place / "config.yaml")

    assert [verdict.passed for verdict in run] == [True]
    assert len(found[0]) == 1
    assert with_variable("AGENTBUS_CONFIG", config) == set()


def test_a_seed_is_chosen_by_chance_and_the_same_is_done_for_the_same():
    def look(order: Trial) -> Iterator[Verdict]:
        yield Verdict("talk", order.seed, 0.0, {}, {}, {}, {}, order.place)

    runs = [
        modes.Run([modes.Job(Mode("talk", "", {}, look))], seed=seed) for seed in (None, None, 7)
    ]
    seeds = [verdict.seed for run in runs for verdict in run]

    assert [run.seed for run in runs] == seeds
    assert seeds[0] != seeds[1]
    assert seeds[2] == 7


# -- how it is told -------------------------------------------------------------------------------


def told(capfd: pytest.CaptureFixture[str], *, json: bool, **changes: Any) -> str:
    verdict = Verdict(
        mode="work",
        seed=7,
        seconds=61.25,
        faults={"kill": 3},
        wanted={"kill": 3},
        figures={"tasks": 100_000, "rate": 1234.56, "odd": float("inf"), "all": True},
        violations={},
        place=pathlib.Path("/tmp/x"),
    )
    report.tell(Out(json=json), verdict._replace(**changes), "/tmp/x", "scripts/torture work")
    return capfd.readouterr().out


def test_a_broken_promise_is_told_with_its_first_examples_cut(capfd):
    wrong = {"lost": ["a\x1b[2J", ("b", 2), "c" * 500, "d"]}

    text = told(capfd, json=False, violations=wrong)

    assert "  figures: tasks 100,000, rate 1,234.6, odd inf, all True\n" in text
    assert "  lost: 4, such as a\\x1b[2J; ('b', 2); ccc" in text
    assert max(map(len, text.splitlines())) < 250
    assert text.endswith(
        "  verdict: FAILED in 61.2 s\n  history: /tmp/x\n  again: scripts/torture work\n"
    )


def test_many_figures_take_lines_that_fit_a_terminal(capfd):
    text = told(
        capfd, json=False, figures={f"figure {n}": n for n in range(30)}, faults={}, wanted={}
    )

    lines = text.splitlines()
    assert lines[1] == "  faults: none"
    assert max(map(len, lines)) <= 100
    assert re.findall(r"figure (\d+) (\d+)", text) == [(f"{n}", f"{n}") for n in range(30)]
    assert all(line.endswith(",") for line in lines[2:-3])


def test_json_holds_what_was_found_whatever_it_is(capfd):
    wrong = {"lost": {"k": pathlib.Path("x")}, "twice": [object()] * 9}

    found = json.loads(told(capfd, json=True, violations=wrong, figures={"p": pathlib.Path("x")}))

    assert list(found) == KEYS
    assert found["figures"] == {"p": "x"}
    assert found["violations"]["lost"] == {"count": 1, "examples": ["k"]}
    assert (found["violations"]["twice"]["count"], found["verdict"]) == (9, "failed")


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"lost": [1]}, "caught after"),
        ({}, "MISSED in"),
        # What a crash leaves behind is no work of the checks.
        ({"ended_by_themselves": ["ann ended with 1"], "lost": [1]}, "MISSED in"),
    ],
)
def test_a_control_passes_by_being_caught(capfd, wrong, word):
    text = told(capfd, json=False, control="set_nx", violations=wrong, wanted={"kill": 9})

    assert text.startswith("work, control set_nx\n")
    assert f"  verdict: {word} 61.2 s\n" in text
    assert "too few" not in text


# -- how it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM", "SIGHUP"])
def test_an_interrupt_leaves_no_process_and_no_socket_behind(temporary, how):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "talk", "--minutes", "60", "--terminal"],
        env=environment(temporary),
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = until(ours, b"talk: 9 numbers")

    if how == "Ctrl-C":
        os.write(ours, b"\x03")
    else:
        process.send_signal(signal.Signals[how])
    shown += until(ours, None)

    assert process.wait() == 130
    assert in_session(process.pid) == []
    (kept,) = temporary.iterdir()
    assert f"are kept in {kept}" in shown.decode()
    assert (kept / "talk/histories/one").stat().st_size > 0
    assert not any(path.is_socket() for path in kept.rglob("*"))


def until(terminal: int, sign: bytes | None) -> bytes:
    """Read what a terminal shows up to a sign, or the end."""
    shown = b""
    with contextlib.suppress(OSError):
        while sign is None or sign not in shown:
            part = os.read(terminal, 65536)
            if not part:
                break
            shown += part
    assert sign is None or sign in shown, shown
    return shown


def in_session(session: int) -> list[str]:
    """Return the command lines of the processes of a session."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[3] == str(session) and fields[0] != "Z":
                    found.append((entry / "cmdline").read_text())
    return found


@by_signals()
def ended(*, told: bool) -> None:
    try:
        if told:
            signal.raise_signal(signal.SIGTERM)
    finally:
        raise ConfigError("the server has gone")


@pytest.mark.parametrize(("told", "error"), [(True, KeyboardInterrupt), (False, ConfigError)])
def test_what_goes_wrong_after_a_signal_is_told_as_the_interrupt(told, error):
    with pytest.raises(error):
        ended(told=told)


def test_a_server_is_found_by_its_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("AGENTBUS_CONFIG", str(tmp_path))

    with Server(tmp_path / "server") as server:
        assert server.process is not None
        assert server.process.pid in with_variable("AGENTBUS_CONFIG", str(tmp_path))
        kill_those_with("AGENTBUS_CONFIG", str(tmp_path))
        assert with_variable("AGENTBUS_CONFIG", str(tmp_path)) == set()


# -- how it is described --------------------------------------------------------------------------


@pytest.mark.parametrize("name", modes.MODES)
def test_a_mode_is_described_with_all_its_controls(name):
    page = (ROOT / "docs/how-to/torture.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]

    assert len(rows) == 2
    assert re.findall(r"`(\w+)`", rows[1]) == [name, *modes.MODES[name].controls]


@pytest.mark.parametrize("name", modes.MODES)
def test_the_help_of_a_mode_says_what_its_controls_do_wrong(name, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")

    assert main([name, "--help"]) == 0

    usage = capfd.readouterr().out
    assert usage.startswith(f"usage: scripts/torture {name} [OPTION...]\n\n{name}: ")
    assert [text for text in modes.MODES[name].controls if f"  {text} " not in usage] == []


def test_the_script_keeps_its_own_modules_and_the_directory_of_its_user(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/__init__.py").write_text("raise SystemExit('another project')")

    # That directory is not empty: it is refused, and no run begins.
    done = subprocess.run(
        [ROOT / "scripts/torture", "flags", "--keep", "tests"],
        env=scrubbed(dict(os.environ)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 2
    assert "'tests' is not empty" in done.stderr
