"""Builds wheels of this checkout."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import zipfile

from tests.profiles import NIGHTLY
from tests.source_tree import ROOT

sys.path.append(str(ROOT / "scripts"))

from linker.verbs import VERBS

# What pyproject.toml demands.
_NEEDED_TO_BUILD = {"cython": (3, 1), "setuptools": (77, 0)}
# To compile the modules of all verbs takes two minutes of a core: the nightly tier does.
COMPILED = tuple(VERBS) if NIGHTLY else ("announce", "await", "speak")
# Another Python's module is never loaded: the virtual environment's may change under it.
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
_ALL = "COMPILED = tuple(VERBS)"


def build(place: pathlib.Path, **environment: str) -> pathlib.Path:
    """Return a wheel built from a copy of the source, as a build leaves files beside what it reads."""
    shutil.copytree(
        ROOT,
        place / "source",
        symlinks=True,
        ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "tests", "__pycache__"),
    )
    step = place / "source/scripts/linker/build.py"
    text = step.read_text()
    assert text.count(_ALL) == 1
    step.write_text(text.replace(_ALL, f"COMPILED = {COMPILED!r}"))
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(place)]
    if all(map(_has, _NEEDED_TO_BUILD)):
        words.append("--no-build-isolation")
    done = subprocess.run(
        [*words, str(place / "source")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (built,) = place.glob("*.whl")
    return built


def _has(name: str) -> bool:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return tuple(int(part) for part in version.split(".")[:2]) >= _NEEDED_TO_BUILD[name]


def names(wheel: pathlib.Path) -> set[str]:
    """Return the paths of the files that a wheel holds."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())
