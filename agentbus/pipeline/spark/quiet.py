"""Silences log output of PySpark's Python code that repeats a raised error."""

from __future__ import annotations

import logging
import os
import warnings

from pyspark import SparkContext

# Loggers that print, as JSON, the same text as the exception.
_TALKATIVE = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j")
# Modules whose warnings concern their callers, that is, our own code: for example, that pandas is
# too new, or that a function was not transpiled because the JVM is gone.
_THEIRS = r"(pyspark|py4j|pandas|numpy|pyarrow)(\.|$)"


def hush() -> None:
    """Silence PySpark's and py4j's loggers, in this process."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    root = logging.getLogger()
    # py4j logs the loss of a JVM to the root logger.
    if _not_py4j not in root.filters:
        root.addFilter(_not_py4j)


def hush_warnings() -> None:
    """Ignore warnings of PySpark and its dependencies, which do not concern our users."""
    warnings.filterwarnings("ignore", module=_THEIRS)


def hush_ending(context: SparkContext) -> None:
    """Silence a context whose JVM ends first: its calls raise errors anyway."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_request: None


def _not_py4j(record: logging.LogRecord) -> bool:
    return f"{os.sep}py4j{os.sep}" not in record.pathname
