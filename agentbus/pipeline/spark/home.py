"""SPARK_HOME: links to the Spark of PySpark, whose Python workers import the installed packages.

Spark puts archives of PySpark's sources first on its Python workers' path, and each worker would
compile them again. Links to the installed packages, which are compiled once, replace the archives.
"""

from __future__ import annotations

import pathlib
import re

import py4j
import pyspark

from agentbus.pipeline.spark import scratch
from agentbus.pipeline.spark.java import short

_PACKAGES = {"pyspark": pyspark, "py4j": py4j}


def installed() -> str:
    """Return the directory of the Spark that was installed with PySpark."""
    return str(pathlib.Path(pyspark.__file__).parent)


def version() -> str:
    """Return the version of that Spark."""
    return str(pyspark.__version__)


def path() -> str:
    """Return a SPARK_HOME in the user's cache, the same for all processes."""
    # The name identifies the targets of the links, so an existing directory is right.
    return str(scratch.cached(f"spark/{short(f'{installed()} {version()}')}/home", _link))


def private() -> str:
    """Return a SPARK_HOME for this process alone: `local-cluster` writes files into it."""
    return str(scratch.filled(scratch.place() / "spark-home", _link))


def _link(home: pathlib.Path) -> None:
    spark = pathlib.Path(installed())
    for entry in spark.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    for archive in (spark / "python" / "lib").glob("*.zip"):
        place = home / "python" / "lib" / archive.name
        package = _PACKAGES.get(re.split(r"[-.]", archive.name)[0])
        if package is None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(archive)
        else:
            place.mkdir(parents=True)
            (place / package.__name__).symlink_to(pathlib.Path(package.__file__ or "").parent)
