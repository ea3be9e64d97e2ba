"""Sends this package to executors on machines without it."""

from __future__ import annotations

import importlib.util
import pathlib
import zipfile

from pyspark.sql import SparkSession

import agentbus
from agentbus.core.version import __version__
from agentbus.pipeline.spark import scratch

# Packages that are used only on the driver.
_NOT_SHIPPED = ("commands", "server", "testing", "__pycache__")
# The module that Spark imports to find the source `agentbus` by name.
_TOP_LEVEL = "pyspark_agentbus"


def ship(spark: SparkSession) -> None:
    """Send this package to every executor of a cluster, including those that join later.

    Its dependencies (redis, hiredis, msgspec, orjson, pyarrow) are compiled for a platform: they
    must be installed on the nodes, or be sent in an environment.
    """
    # Executors fetch the file from its place, for as long as the session runs.
    spark.sparkContext.addPyFile(str(packed(scratch.place())))


def packed(place: pathlib.Path) -> pathlib.Path:
    """Write this package as a zip into a directory and return its path."""
    path = place / f"agentbus-{__version__}.zip"
    package = pathlib.Path(agentbus.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for found in sorted(package.rglob("*")):
            inside = found.relative_to(package)
            if found.is_file() and not set(inside.parts) & set(_NOT_SHIPPED):
                file.write(found, pathlib.PurePath("agentbus", inside))
        top = importlib.util.find_spec(_TOP_LEVEL)
        if top is not None and top.origin is not None:
            file.write(top.origin, f"{_TOP_LEVEL}.py")
    return path


def send(spark: SparkSession) -> None:
    """Send this package through Spark Connect, for the lifetime of the session.

    Functions and batch sources then find it on a server without the package; streaming sources do
    not. Pickling our classes by value instead would create duplicate classes.
    """
    spark.addArtifacts(str(packed(scratch.place())), pyfile=True)
