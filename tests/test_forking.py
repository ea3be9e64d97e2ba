"""A command line that is forked does as one that starts: most tests run them so."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
from typing import Any

import pytest

from tests.forking import Forked, forking_session
from tests.profiles import NIGHTLY
from tests.servers import Shell, closed, program


@pytest.fixture
def both(tmp_path: pathlib.Path, project: str, real_url: str) -> tuple[Shell, Shell]:
    environment = {"AGENTBUS_PROJECT": project, "AGENTBUS_URL": real_url, "AGENTBUS_AGENT": "ada"}
    return Forked(tmp_path / "home", environment), Shell(tmp_path / "home", environment)


@pytest.mark.parametrize(
    ("words", "stdin", "code"),
    [
        (("jot", "how", "-"), "make ü\n", 0),
        (("recall",), None, 2),
        (("recall", "none", "--json"), None, 5),
        (("publish", "mail", "--topik"), None, 2),
        (("speak", "--help"), b"", 0),
        (("speak", "-"), b"\xff", 2),
        (("whoami", "--json"), None, 0),
    ],
)
def test_it_prints_and_ends_alike(both, words, stdin, code):
    found, wanted = (one.run(*words, stdin=stdin) for one in both)

    assert (found.returncode, found.stdout, found.stderr) == (
        wanted.returncode,
        wanted.stdout,
        wanted.stderr,
    )
    assert found.returncode == code


def test_it_has_its_environment_and_its_folder(both, tmp_path):
    for number, one in enumerate(both):
        one.ok("publish", "mail", "x")
        work = ("work", "mail", "--drain", "--", "sh", "-c", f"echo $TOLD > {number}.txt")
        one.ok(*work, env={"TOLD": "yes"}, cwd=tmp_path)

    assert [(tmp_path / f"{number}.txt").read_text() for number in (0, 1)] == ["yes\n"] * 2


def test_one_that_takes_too_long_is_given_up(both):
    forked, _ = both

    with pytest.raises(subprocess.TimeoutExpired):
        forked.run("await", "building", "--until", "announced", "--timeout", "60", timeout=0.2)

    assert forked.run("whoami").returncode == 0


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import agentbus, sys; print(len(sys.argv), __name__)", 0),
        ("import sys; print('so far'); sys.exit(3)", 3),
        ("import atexit; atexit.register(print, 'at last'); raise ValueError('no')", 1),
        ("import warnings; warnings.warn('beware')", 1),
        ("import os; print(os.getcwd(), os.environ['AGENTBUS_AGENT'])", 0),
    ],
)
def test_a_program_prints_and_ends_alike(both, tmp_path, program, code):
    file = tmp_path / "program.py"
    file.write_text(program)

    found, wanted = (one.python(str(file), "word", cwd=tmp_path) for one in both)

    assert (found.returncode, found.stdout) == (wanted.returncode, wanted.stdout)
    assert found.stderr[-20:] == wanted.stderr[-20:]
    assert found.returncode == code


@pytest.fixture
def typed(tmp_path: pathlib.Path, real_url: str) -> dict[str, Any]:
    """How a script runs: with all programs, in a session of its own, in a fresh folder."""
    path = f"{pathlib.Path(program()).parent}:{os.environ['PATH']}"
    environment = {"AGENTBUS_URL": real_url, "LOGNAME": "you", "PATH": path}
    return {
        "env": Shell(tmp_path / "home", environment).environment,
        "cwd": tmp_path,
        "start_new_session": True,
        "stdout": subprocess.PIPE,
        "text": True,
    }


HELD = "mkfifo up; agentbus hold building -- sh -c 'echo >up; exec sleep 600' & read -r _ <up;"
SENDS = "sh -c 'echo >up; read -r _ <go; echo sent'"
WORKS = f"""
mkfifo up go; agentbus publish mail x >id; agentbus work mail -- {SENDS} >log & read -r _ <up;"""


@pytest.mark.parametrize("begun", [list, forking_session], ids=["started", "forked"])
@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("echo make | agentbus jot how - >log && agentbus recall how", "make"),
        ("cd /; agentbus hold building -- pwd; agentbus recall none; echo $?", "/\n5\n"),
        ("LC_ALL=C agentbus recall none; echo $?", "5\n"),
        ("agentbus hold building -- sh -c 'kill -9 $PPID'; echo $?", "137\n"),
        (f"{HELD} kill $!; wait $!; echo $?", "143\n"),
        # The pipe is closed when all have ended.
        (f"{{ {HELD} kill -9 $!; wait $!; echo $?; }} | cat", "137\n"),
        (f"trap '' HUP; {HELD} kill -HUP $!; kill $!; wait $!; echo $?", "143\n"),
        (f"set -m; {HELD} kill -HUP -- -$!; wait $!; echo $?", "129\n"),
        (f"{WORKS} kill $!; echo >go; wait $!; echo $?; agentbus result $(cat id)", "0\nsent\n"),
    ],
)
def test_a_script_does_in_a_session_of_forks_as_in_another(typed, project, begun, script, printed):
    typed["env"]["AGENTBUS_PROJECT"] = project

    done = subprocess.run(begun(("bash", "-c", script)), **typed, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (0, printed)


def test_all_commands_of_a_session_are_forks_and_have_its_name(typed):
    script = """
agentbus whoami | head -n 1
python -c 'import os; print(os.getsid(0))'
agentbus hold building -- sh -c 'tr "\\0" " " </proc/$PPID/cmdline; agentbus whoami | head -n 1'
"""
    words = forking_session(("bash", "-c", script))

    done = subprocess.run(words, **typed, timeout=60, check=False)

    outside, number, inside = done.stdout.splitlines()
    assert f"~{number} " in outside
    assert inside.endswith(outside)
    assert ("-m tests.forking" in inside) is not NIGHTLY


def test_a_session_that_is_killed_ends_all_that_was_typed_in_it(typed):
    script = f"{HELD} echo held; wait"
    with subprocess.Popen(forking_session(("bash", "-c", script)), **typed) as session:
        assert session.stdout.readline() == "held\n"

        os.killpg(session.pid, signal.SIGKILL)

        assert closed(session.stdout)
