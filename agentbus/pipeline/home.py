"""The Spark that came with PySpark, as directories of links to it that suit how it is run."""

from __future__ import annotations

import pathlib
import re
import shutil
import tempfile
from types import ModuleType

import py4j
import pyspark

from agentbus.core import settings
from agentbus.pipeline import scratch
from agentbus.pipeline.java import short

# What Spark's JVM puts first on its Python workers' path, in `python/lib`: archives of sources.
_PYTHON = "python"
_PACKAGES: dict[str, ModuleType] = {"pyspark": pyspark, "py4j": py4j}


def installed() -> str:
    """Return the directory of the Spark that was installed with PySpark."""
    return str(pathlib.Path(pyspark.__file__).parent)


def version() -> str:
    """Return the version of that Spark."""
    return str(pyspark.__version__)


def kept() -> str:
    """Return a SPARK_HOME for this machine, the same at each start, whose Python workers start sooner.

    From the archives of sources they would compile all of PySpark, each of them anew; where those should
    be, they find the packages that are installed, which Python compiles once.
    """
    name = short(f"{installed()} {version()}")
    try:
        return _made(pathlib.Path(settings.cache_directory(), "spark", name, "home"))
    except OSError:
        # A home that cannot be written to, as containers have: then for this process alone.
        return _made(scratch.place() / "kept")


def own() -> str:
    """Return a SPARK_HOME for this process alone: `local-cluster` writes its workers' files into it."""
    home = scratch.place() / "spark"
    home.mkdir()
    for entry in pathlib.Path(installed()).iterdir():
        (home / entry.name).symlink_to(entry)
    return str(home)


def _made(home: pathlib.Path) -> str:
    """Make sure that the links are there; several processes may do so at once."""
    # Its name says what it leads to, so one that is there need not be compared.
    if home.is_dir():
        return str(home)
    home.parent.mkdir(parents=True, exist_ok=True)
    beside = pathlib.Path(tempfile.mkdtemp(prefix=".home-", dir=home.parent))
    try:
        for entry in pathlib.Path(installed()).iterdir():
            if entry.name != _PYTHON:
                (beside / entry.name).symlink_to(entry)
        for archive in pathlib.Path(installed(), _PYTHON, "lib").glob("*.zip"):
            place = beside / _PYTHON / "lib" / archive.name
            place.parent.mkdir(parents=True, exist_ok=True)
            package = _PACKAGES.get(re.split(r"[-.]", archive.name)[0])
            if package is None:
                place.symlink_to(archive)
                continue
            place.mkdir()
            (place / package.__name__).symlink_to(pathlib.Path(package.__file__ or "").parent)
        try:
            beside.rename(home)
        except OSError:
            # Whoever comes second finds the same there.
            if not home.is_dir():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return str(home)
