"""Another project's `agentbus`, in the same environment or first on PATH, is found, with its remedy."""

from __future__ import annotations

import pathlib
import sys

import pytest

from agentbus.commands import _errors
from agentbus.core import installation
from tests.servers import Shell, program

OTHER = "#!/usr/bin/python3\nimport sys\nfrom agentbus.cli import main\nsys.exit(main())\n"


def install(place: pathlib.Path, text: str) -> pathlib.Path:
    place.mkdir(exist_ok=True)
    file = place / "agentbus"
    file.write_text(text)
    file.chmod(0o755)
    return file


@pytest.fixture
def other(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory of packages in which another project's distribution is installed."""
    (tmp_path / "packages/agentbus-3.1.dist-info").mkdir(parents=True)
    return tmp_path / "packages"


def test_this_environment_has_only_ours(monkeypatch):
    monkeypatch.setenv("PATH", str(pathlib.Path(program()).parent))

    assert installation.foreign_distribution() is None
    assert installation.foreign_command() is None


def test_a_distribution_of_another_project_is_found(other, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(other)])

    assert installation.foreign_distribution() == str(other / "agentbus-3.1.dist-info")


def test_only_the_first_command_on_path_counts(tmp_path, monkeypatch):
    theirs = install(tmp_path / "theirs", OTHER)
    ours = pathlib.Path(program()).parent

    monkeypatch.setenv("PATH", f"{theirs.parent}:{ours}")
    assert installation.foreign_command() == str(theirs)
    monkeypatch.setenv("PATH", f"{ours}:{theirs.parent}")
    assert installation.foreign_command() is None


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ('#!/bin/sh\nexec pyenv exec agentbus "$@"\n', False),
        ("#!python\nfrom agentbus.commands._main import main\nmain()\n", False),
        (OTHER, True),
        ("\x7fELF", True),
    ],
    ids=["a wrapper", "ours", "a script", "a binary"],
)
def test_a_command_is_judged_by_what_it_loads(text, foreign, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(install(tmp_path / "bin", text).parent))

    assert (installation.foreign_command() is not None) == foreign


def test_doctor_warns_of_another_agentbus(
    real_shell: Shell, other: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    theirs = install(tmp_path / "theirs", OTHER)

    done = real_shell.run(
        "doctor", env={"PYTHONPATH": str(other), "PATH": f"{theirs.parent}:/usr/bin:/bin"}
    )

    assert f"installed in the same environment: {other}/agentbus-3.1.dist-info" in done.stdout
    assert "pip uninstall agentbus" in done.stdout
    assert f"'agentbus' in this shell is another project's: {theirs}" in done.stdout
    assert "run 'agentbus-toolkit'" in done.stdout


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (ImportError("cannot import name 'Bus'"), "pip uninstall agentbus"),
        (ValueError("wrong"), "this is a bug"),
    ],
)
def test_an_import_that_fails_beside_another_agentbus_names_it(
    error, hint, other, monkeypatch, capfd
):
    monkeypatch.setattr(sys, "path", [*sys.path, str(other)])

    assert _errors.told(error, "speak", json=False)[0] == 1
    assert hint in capfd.readouterr().err


def test_without_another_agentbus_a_failed_import_is_a_bug(capfd):
    _errors.told(ImportError("cannot import name 'Bus'"), "speak", json=False)

    assert "this is a bug" in capfd.readouterr().err
