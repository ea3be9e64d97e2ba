"""Writes the operations log through `logging`, for long-running programs."""

from __future__ import annotations

import logging
import os

from pythonjsonlogger.json import JsonFormatter

from agentbus.core import tracebacks
from agentbus.core.oplog import open_file
from agentbus.core.settings import log_path

# Without a handler, `logging` would print failures to the program's stderr.
_logger = logging.getLogger("agentbus")
_logger.addHandler(logging.NullHandler())
_LEVELS = {name.lower(): number for name, number in logging.getLevelNamesMapping().items()}


def emit(
    level: str,
    fields: dict[str, object],
    text: str | None = None,
    error: BaseException | None = None,
) -> None:
    """Pass a record to the logger `agentbus`, with the traceback of an error.

    The record's message is `text`, by default the verb.
    """
    number = _LEVELS[level]
    if not (_logger.isEnabledFor(number) and _is_heard()):
        return
    said = fields.get("verb", "") if text is None else text
    raised = None if error is None else (type(error), error, tracebacks.outside(error))
    record = _logger.makeRecord(
        _logger.name, number, __file__, 0, "%s", (said,), raised, extra=fields
    )
    if raised is not None:
        # Escape what cannot be encoded: a handler that writes the text would fail on it.
        told = tracebacks.shown(raised[1]).rstrip("\n")
        record.exc_text = told.encode("utf-8", "backslashreplace").decode()
    _logger.handle(record)


def _is_heard() -> bool:
    """Report whether any handler receives records: making a record takes longer than running a task."""
    if logging.Logger.callHandlers.__module__ != logging.__name__:
        # An error-reporting package has replaced `callHandlers`, and receives every record.
        return True
    logger: logging.Logger | None = _logger
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def heard(level: str) -> bool:
    """Report whether the logger `agentbus` is enabled for a record."""
    return _logger.isEnabledFor(_LEVELS[level]) and _is_heard()


def json_handler(path: str | None = None) -> logging.Handler:
    """Return a `logging` handler that writes the operations log of a long-running program."""
    stream = os.fdopen(open_file(path or log_path()), "a", encoding="utf-8")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        JsonFormatter(
            "%(asctime)s %(levelname)s",
            rename_fields={"asctime": "time", "levelname": "level"},
        )
    )
    return handler
