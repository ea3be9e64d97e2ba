"""The file of loaded classes with which the JVM starts, once `agentbus spark --prepare` wrote it.

Java 25 calls it an AOT cache; before that it is a dynamic archive of class data sharing.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

from agentbus.core import settings
from agentbus.pipeline.spark import home
from agentbus.pipeline.spark.java import Java, short

_AOT_CACHE_SINCE = 25
# A JVM that cannot use the file, because other jars precede Spark's, prints a warning; stdout is
# for data.
_SILENT = ("-XX:+DisplayVMOutputToStderr", "-Xlog:disable", "-Xlog:all=error:stderr")

# This process yields to all others while it writes the file.
_PREPARE = (
    "import os; os.nice(19); from agentbus.commands._main import run; run(['spark', '--prepare'])"
)
# Seconds after which a preparation that wrote no file is tried again.
_AGAIN = 3600.0
# The Java that this process started without a file.
_started: list[Java] = []


def prepare_later() -> None:
    """Write the file in another process if this process's JVM started without it.

    Nothing is done while another process writes it, where the cache cannot be written to, or if
    AGENTBUS_SPARK_PREPARE is `off`.
    """
    if not _started or settings.variable("AGENTBUS_SPARK_PREPARE") == "off":
        return
    java = _started[0]
    file = path(java)
    mark = file.with_suffix(".preparing")
    in_cache = file.is_relative_to(settings.cache_directory())
    if not in_cache or file.exists() or (mark.exists() and _age(mark) < _AGAIN):
        return
    mark.touch()
    # JAVA_HOME now names the directory from which Spark was started, which is another Java's.
    java_home = pathlib.Path(os.path.realpath(java.program)).parent.parent
    subprocess.Popen(
        [sys.executable, "-c", _PREPARE],
        env=settings.environment() | {"JAVA_HOME": str(java_home)},
        cwd=file.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _age(file: pathlib.Path) -> float:
    return time.time() - file.stat().st_mtime


def options(java: Java) -> list[str]:
    """Return the JVM options for starting from the file; none if it does not exist."""
    file = path(java)
    if not file.exists():
        _started[:] = [java]
    switch = "AOTCache" if java.version >= _AOT_CACHE_SINCE else "SharedArchiveFile"
    return _switched(switch, file) if file.exists() else []


def writing(java: Java, file: pathlib.Path) -> list[str]:
    """Return the JVM options for writing the loaded classes to a file on exit."""
    switch = "AOTCacheOutput" if java.version >= _AOT_CACHE_SINCE else "ArchiveClassesAtExit"
    return _switched(switch, file)


def path(java: Java) -> pathlib.Path:
    """Return the path of the file for a Java and the installed Spark, whether it exists or not."""
    program = os.path.realpath(java.program)
    # Java accepts the file only for the same program and the same jars.
    times = [os.stat(each).st_mtime_ns for each in (program, f"{home.installed()}/jars")]
    return pathlib.Path(home.path()).parent / f"classes-{short(program)}-{short(str(times))}.jsa"


def _switched(name: str, file: pathlib.Path) -> list[str]:
    # Quote the option, since Spark splits Java's options at blanks.
    escaped = str(file).replace("\\", "\\\\").replace('"', '\\"')
    return [f'"-XX:{name}={escaped}"', *_SILENT]
