"""The operations log by way of `logging`, for programs that run on."""

from __future__ import annotations

import logging
import os

from pythonjsonlogger.json import JsonFormatter

from agentbus.core.oplog import open_file
from agentbus.core.settings import log_path

# Without a handler, `logging` would print a program's failures to its stderr unasked.
_logger = logging.getLogger("agentbus")
_logger.addHandler(logging.NullHandler())
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING}


def emit(level: str, fields: dict[str, object]) -> None:
    """Hand a record to the logger `agentbus`."""
    number = logging.getLevelNamesMapping()[level.upper()]
    _logger.log(number, "%s", fields.get("verb", ""), extra=fields)


def heard(level: str) -> bool:
    """Tell whether the logger `agentbus` would do anything with a record."""
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
