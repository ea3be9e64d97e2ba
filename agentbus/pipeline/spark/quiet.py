"""Silences what PySpark's Python code logs in addition to raising it."""

from __future__ import annotations

import logging
import os
import warnings

from pyspark import SparkContext

# Loggers that write to stderr by themselves, as JSON, what the exception says as well.
_TALKATIVE = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j")
# Modules whose warnings concern their callers' code, which is ours: that pandas is too new, or that a
# function was not transpiled since the JVM is gone.
_THEIRS = r"(pyspark|py4j|pandas|numpy|pyarrow)(\.|$)"


def hush() -> None:
    """Silence PySpark's and py4j's loggers, in this process."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    root = logging.getLogger()
    # py4j logs a lost JVM on the root logger.
    if _not_py4j not in root.filters:
        root.addFilter(_not_py4j)


def hush_warnings() -> None:
    """Ignore what PySpark and the packages below it warn of, in a process whose user calls none of them."""
    warnings.filterwarnings("ignore", module=_THEIRS)


def hush_ending(context: SparkContext) -> None:
    """Silence a context whose JVM ends before it: calls raise anyway."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_request: None


def _not_py4j(record: logging.LogRecord) -> bool:
    return f"{os.sep}py4j{os.sep}" not in record.pathname
