"""Spark's classes as a JVM has read and checked them, kept in a file that later JVMs start from.

See the JDK's "class data sharing". `agentbus spark --prepare` makes the file.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile

from agentbus.core.errors import ConfigError
from agentbus.pipeline import home
from agentbus.pipeline.java import Java, short

# What works for less than a minute does not pay for a better compiler.
QUICK = "-XX:TieredStopAtLevel=1"
# A JVM that cannot use the file, as for other jars before Spark's, says so on stdout, where our data is.
_SILENT = ("-Xlog:disable", "-Xlog:all=error:stderr")


def options(java: Java) -> list[str]:
    """Return the options by which a JVM starts from the file: none if there is no file."""
    file = place(java)
    if not file.exists():
        return []
    return [option("SharedArchiveFile", file), *_SILENT]


def option(name: str, path: pathlib.Path) -> str:
    """Return an option of Java's in quotes, as Spark parts what it is given for Java at blanks."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"-XX:{name}={escaped}"'


def place(java: Java) -> pathlib.Path:
    """Return where the file for a Java and the installed Spark lies, or would."""
    program = os.path.realpath(java.program)
    # Java takes the file only for the very program and the very jars that it was made of.
    times = [os.stat(each).st_mtime_ns for each in (program, f"{home.installed()}/jars")]
    return pathlib.Path(home.kept()).parent / f"{_of(program)}-{short(str(times))}.jsa"


def _of(program: str) -> str:
    return f"classes-{short(program)}"


def keep(java: Java, names: pathlib.Path, classpath: str) -> pathlib.Path:
    """Make the file, of the classes that `names` lists (`-XX:DumpLoadedClassList`), and return it.

    Raises `ConfigError` if Java makes none, with the reason that it gives.
    """
    file = place(java)
    with tempfile.TemporaryDirectory(prefix=".classes-", dir=file.parent) as beside:
        made = pathlib.Path(beside, "made.jsa")
        done = subprocess.run(
            [
                java.program,
                "-Xshare:dump",
                f"-XX:SharedClassListFile={names}",
                f"-XX:SharedArchiveFile={made}",
                QUICK,
                *_SILENT,
                "-cp",
                classpath,
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            errors="replace",
        )
        if done.returncode or not made.exists():
            said = (done.stderr + done.stdout).strip().splitlines() or ["it says nothing"]
            raise ConfigError(
                f"{java.program} did not keep Spark's classes (exit code {done.returncode}): {said[0]}",
                hint="Spark runs without them, and starts in twice the time",
            )
        # Another one that is made at the same time is as good.
        made.replace(file)
    for older in file.parent.glob(f"{_of(os.path.realpath(java.program))}-*.jsa"):
        if older != file:
            older.unlink(missing_ok=True)
    return file
