"""The command finds the package's modules itself, with the same specs as Python's own search."""

from __future__ import annotations

import importlib.machinery
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

import agentbus
from agentbus.commands._main import _find
from tests.source_tree import MODULES, ROOT, files

INSIDE = sorted(module for module in MODULES if module.startswith("agentbus."))


def by_python(module: str, path: list[str]) -> importlib.machinery.ModuleSpec:
    found = importlib.machinery.PathFinder.find_spec(module, path)
    assert found is not None
    return found


def test_each_module_is_found_as_python_finds_it():
    for module in INSIDE:
        parent = module.rpartition(".")[0].split(".")[1:]
        path = [str(pathlib.Path(agentbus.__file__).parent.joinpath(*parent))]

        found, expected = _find(module, path), by_python(module, path)

        assert found == expected
        assert (found.cached, found.parent) == (expected.cached, expected.parent)
        assert type(found.loader) is type(expected.loader)


@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("agentbus", None),
        ("agentbus.none", agentbus.__path__),
        ("agentbus.core", [*agentbus.__path__, "/elsewhere"]),
        ("agentbus_toolkit.core", agentbus.__path__),
        ("json.decoder", agentbus.__path__),
    ],
)
def test_what_is_not_the_packages_is_left_to_python(module, path):
    assert _find(module, path) is None


def test_a_module_of_an_archive_is_left_to_python(tmp_path):
    archive = tmp_path / "agentbus.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in files():
            packed.write(path, path.relative_to(ROOT))

    done = subprocess.run(
        [sys.executable, "-c", "from agentbus.commands._main import main; main()", "whoami"],
        env={"HOME": str(tmp_path), "PATH": os.defpath, "PYTHONPATH": str(archive)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("agent ")
