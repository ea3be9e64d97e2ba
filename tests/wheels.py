"""Builds wheels of this checkout."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import zipfile

from tests.source_tree import ROOT


def build(place: pathlib.Path) -> pathlib.Path:
    """Return a wheel built from a copy of the source, as a build leaves files beside what it reads."""
    shutil.copytree(
        ROOT,
        place / "source",
        symlinks=True,
        ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "tests", "__pycache__"),
    )
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(place)),
            *("--no-build-isolation", str(place / "source")),
        ],
        check=True,
    )
    (built,) = place.glob("*.whl")
    return built


def names(wheel: pathlib.Path) -> set[str]:
    """Return the paths of the files that a wheel holds."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())
