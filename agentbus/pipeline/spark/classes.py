"""The file of loaded classes with which the JVM starts, if `agentbus spark --prepare` wrote it.

Java 25 calls it an AOT cache; before that it is a dynamic archive of class data sharing.
"""

from __future__ import annotations

import os
import pathlib

from agentbus.pipeline.spark import home
from agentbus.pipeline.spark.java import Java, short

_AOT_CACHE_SINCE = 25
# A JVM that cannot use the file, because other jars precede Spark's, prints a warning; stdout is
# for data.
_SILENT = ("-XX:+DisplayVMOutputToStderr", "-Xlog:disable", "-Xlog:all=error:stderr")


def options(java: Java) -> list[str]:
    """Return the JVM options for starting from the file; none if it does not exist."""
    file = path(java)
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
