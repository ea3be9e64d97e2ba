"""A command line that is forked does as one that starts: most tests run them so."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from tests.forking import Forked
from tests.servers import Shell


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
