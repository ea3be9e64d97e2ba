"""Converts Spark's errors, which may contain our own errors, to one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, ParseException

from agentbus.core import errors
from agentbus.core.errors import (
    AgentBusError,
    BackendUnavailable,
    ConfigError,
    NotFound,
    Unhealthy,
    UsageError,
)
from agentbus.store.failures import CHECK_SERVER

_OURS = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, AgentBusError)
}
# The last line of a Python traceback, with or without the module of the class.
_RAISED = re.compile(
    rf"^\W*(?:agentbus\.(?:core\.)?errors\.)?({'|'.join(_OURS)}): (.+)$", re.MULTILINE
)
# Matches a Java exception's class before its message, and Spark's own prefixes of a message.
_JAVA_CLASS = re.compile(
    r"^(?:Caused by: |: |Exception in thread \"\S+\" )?(?:[a-z_$][\w$]*\.)+[\w$]+: "
)
_CONDITION = re.compile(r"^\[[A-Z][A-Z0-9_.]*\] ")
_STATE = re.compile(r"\s*SQLSTATE: \w{5}.*$")

# A data file of an archive, and the words with which Spark reports that it is
# unreadable.
_DATA_FILE = re.compile(r"kind=[a-z_]+/date=\d{4}-\d\d-\d\d/[\w.-]+\.parquet")
_UNREADABLE = (
    *("PATH_NOT_FOUND", "FileNotFoundException", "FILE_NOT_EXIST", "FAILED_READ_FILE"),
    *("CANNOT_READ_FILE_FOOTER", "is not a Parquet file"),
)

# The first of these texts that an error contains determines the error to raise.
_SIGNS: dict[str, Callable[[], AgentBusError]] = {
    "No space left on device": partial(
        AgentBusError,
        "no space is left on the device that Spark writes to",
        hint="make room, or set SPARK_LOCAL_DIRS to another place for what is temporary",
    ),
    "JAVA_GATEWAY_EXITED": partial(
        ConfigError, "Spark did not start", hint="log level `debug` shows all that it said"
    ),
    "OutOfMemoryError": partial(
        AgentBusError,
        "Spark ran out of memory",
        hint="give spark.driver.memory locally, or spark.executor.memory on a cluster, more",
    ),
    "All masters are unresponsive": partial(
        BackendUnavailable,
        "Spark's master does not answer",
        hint="check master, and that it runs",
        shell_hint="check --master, and that it runs",
    ),
    "stopped SparkContext": partial(
        BackendUnavailable,
        "Spark was stopped, by its master or for want of one",
        hint="check that the master runs, and what it logged",
    ),
    "StatusCode.UNAVAILABLE": partial(
        BackendUnavailable,
        "the Spark Connect server does not answer",
        hint="check remote, and that it runs",
        shell_hint="check --remote, and that it runs",
    ),
}
# Texts about paths that do not exist, unless the path is a data file of an archive.
_ABSENT = ("PATH_NOT_FOUND", "FileNotFoundException", "NoSuchBucket")


def told(error: BaseException) -> AgentBusError:
    """Return our error for an error of Spark, to be raised from it.

    Our own error from one of Spark's Python processes keeps its class, and with it its exit code.
    SQL that does not parse, or refers to unknown names, is a `UsageError`; a missing path is
    `NotFound`; a missing or broken data file of an archive is `Unhealthy`; a server that does not
    reply is `BackendUnavailable`. For any other error the first line is kept.
    """
    if isinstance(error, AgentBusError):
        return error
    text = str(error)
    if (found := carried(text)) is not None:
        return found
    if isinstance(error, (Py4JNetworkError, ConnectionError)) or (
        isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    ):
        return AgentBusError(
            "Spark's Java process is gone: it was killed, or ran out of memory",
            hint="give spark.driver.memory more if it happens again",
        )
    for sign, meant in _SIGNS.items():
        if sign in text:
            return meant()
    if "Connection refused" in text:
        return BackendUnavailable(f"a connection was refused: {sentence(text)}")
    broken = _DATA_FILE.search(text)
    if broken and any(sign in text for sign in _UNREADABLE):
        return Unhealthy(
            f"the archive's data file {broken[0]} is missing or not what was written",
            hint="restore it from a copy; what was compacted while it was read is read again",
        )
    if any(sign in text for sign in _ABSENT):
        return NotFound(sentence(text))
    if isinstance(error, ParseException):
        return UsageError(f"the SQL does not parse: {sentence(text)}")
    if isinstance(error, AnalysisException):
        return UsageError(sentence(text))
    return AgentBusError(f"Spark failed: {sentence(text) or type(error).__name__}")


def carried(text: str) -> AgentBusError | None:
    """Return our error that a Python process of Spark raised, as found in a report, if any."""
    found = _RAISED.findall(text)
    if not found:
        return None
    # Use the last match: earlier ones are its causes.
    name, message = found[-1]
    message, hint, _ = message.strip().partition(f"; {CHECK_SERVER[0]}")
    if not hint:
        return _OURS[name](message)
    # An error's text does not contain the hint for the shell.
    return _OURS[name](message, hint=CHECK_SERVER[0], shell_hint=CHECK_SERVER[1])


def sentence(text: str) -> str:
    """Return the line of a report that describes the error, without Spark's prefixes."""
    lines = text.splitlines()
    line = _end_of_traceback(lines) or _root_cause(lines)
    while (shorter := _JAVA_CLASS.sub("", line)) != line:
        line = shorter
    return _STATE.sub("", _CONDITION.sub("", line)).rstrip(". ")


def _end_of_traceback(lines: list[str]) -> str | None:
    """Return the line with the exception of the last Python traceback in a report."""
    ended, inside = None, False
    for line in lines:
        if line.strip() == "Traceback (most recent call last):":
            inside = True
        elif inside and line and not line.startswith(" "):
            ended, inside = line, False
    return ended


def _root_cause(lines: list[str]) -> str:
    told_lines = [line.strip() for line in lines]
    told_lines = [
        line
        for line in told_lines
        if line and not line.startswith(("at ", "An error occurred while"))
    ]
    causes = [
        line
        for line in told_lines
        # An earlier line of the report names the missing class better.
        if line.startswith("Caused by: ") and ": " in line[11:] and "ClassNotFound" not in line
    ]
    return causes[-1] if causes else (told_lines or [""])[0]
