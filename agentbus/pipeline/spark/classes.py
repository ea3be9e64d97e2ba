"""The file of loaded classes that the JVM starts from, if `agentbus spark --prepare` has made it.

Java 25 calls it an AOT cache; before that it is a dynamic archive of class data sharing.
"""

from __future__ import annotations

import os
import pathlib

from agentbus.pipeline.spark import home
from agentbus.pipeline.spark.java import Java, short

_AOT_CACHE_SINCE = 25
# A JVM that cannot use the file, because other jars come before Spark's, says so; stdout is for our data.
_SILENT = ("-XX:+DisplayVMOutputToStderr", "-Xlog:disable", "-Xlog:all=error:stderr")


def options(java: Java) -> list[str]:
    """Return the options by which a JVM starts from the file; none if there is no file."""
    file = path(java)
    switch = "AOTCache" if java.version >= _AOT_CACHE_SINCE else "SharedArchiveFile"
    return _switched(switch, file) if file.exists() else []


def writing(java: Java, file: pathlib.Path) -> list[str]:
    """Return the options by which a JVM writes the classes that it loaded to a file when it ends."""
    switch = "AOTCacheOutput" if java.version >= _AOT_CACHE_SINCE else "ArchiveClassesAtExit"
    return _switched(switch, file)


def path(java: Java) -> pathlib.Path:
    """Return the path of the file for a Java and the installed Spark, whether it exists or not."""
    program = os.path.realpath(java.program)
    # Java accepts the file only with the same program and the same jars.
    times = [os.stat(each).st_mtime_ns for each in (program, f"{home.installed()}/jars")]
    return pathlib.Path(home.path()).parent / f"classes-{short(program)}-{short(str(times))}.jsa"


def _switched(name: str, file: pathlib.Path) -> list[str]:
    # In quotes, since Spark splits Java's options at blanks.
    escaped = str(file).replace("\\", "\\\\").replace('"', '\\"')
    return [f'"-XX:{name}={escaped}"', *_SILENT]
