"""Writes the operations log through `logging`, for long-running programs."""

from __future__ import annotations

import logging
import os

from pythonjsonlogger.json import JsonFormatter

from agentbus.core.oplog import open_file
from agentbus.core.settings import log_path

# Without a handler, `logging` would print failures to the program's stderr.
_logger = logging.getLogger("agentbus")
_logger.addHandler(logging.NullHandler())
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING}


def emit(level: str, fields: dict[str, object]) -> None:
    """Pass a record to the logger `agentbus`."""
    number = logging.getLevelNamesMapping()[level.upper()]
    _logger.log(number, "%s", fields.get("verb", ""), extra=fields)


def heard(level: str) -> bool:
    """Report whether the logger `agentbus` is enabled for a record."""
    return _logger.isEnabledFor(_LEVELS[level])


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
