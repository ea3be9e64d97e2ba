"""Verbs that are not linked run without `site`, unless something needs it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from agentbus.commands._without_site import needs_site

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("click", False),
        ("distutils-precedence.pth", False),
        ("pipx_shared.pth", False),
        ("editable.pth", True),
        ("sitecustomize.py", True),
        ("usercustomize", True),
    ],
)
def test_site_is_needed_where_it_would_run_something(tmp_path, name, needed):
    (tmp_path / name).touch()

    assert needs_site(str(tmp_path)) is needed


def test_site_is_not_needed_for_a_place_that_is_not_there(tmp_path):
    assert not needs_site(str(tmp_path / "none"))


def test_site_is_needed_for_an_archive(tmp_path):
    (tmp_path / "modules.zip").touch()

    assert needs_site(str(tmp_path / "modules.zip"))


@pytest.fixture
def run(tmp_path):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "agentbus").symlink_to(ROOT / "agentbus")

    def start(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        module = str(packages / "agentbus/commands/_without_site.py")
        # As scripts/agentbus does it.
        text = (
            "import sys; from _frozen_importlib_external import SourceFileLoader;"
            " exec(SourceFileLoader('agentbus', sys.argv[1]).get_code('agentbus'))"
        )
        return subprocess.run(
            [sys.executable, "-SPc", text, module, "agentbus", *words],
            env={"HOME": str(tmp_path), "PATH": os.defpath, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return start


def test_a_verb_runs_without_site(run):
    done = run("whoami", "--agent", "ada", PYTHONVERBOSE="1")

    assert done.returncode == 0
    assert done.stdout.startswith("agent   ada ")
    assert "import 'site'" not in done.stderr


def test_what_is_installed_elsewhere_is_found_by_site(run):
    # Help comes from click, which is not beside the package here.
    done = run("whoami", "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: agentbus whoami" in done.stdout


def test_a_customization_on_the_users_path_runs(run, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('customized', flush=True)")

    assert run("whoami", PYTHONPATH=str(tmp_path)).stdout.startswith("customized\nagent ")
