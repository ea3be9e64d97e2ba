"""Writes a verb's exchanges with the server to the operations log, at the level `debug`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentbus.core import oplog

if TYPE_CHECKING:
    from agentbus.core.settings import Settings


@contextlib.contextmanager
def debugged(verb: str, settings: Settings) -> Iterator[None]:
    """Write each exchange with the server, and each publish, to the operations log."""
    handler = _StepsHandler(verb, settings)
    logger = logging.getLogger("agentbus")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


class _StepsHandler(logging.Handler):
    _FIELDS = ("step", "sending", "duration_ms", "outcome", "waits_s", "queue", "id")

    def __init__(self, verb: str, settings: Settings) -> None:
        super().__init__(logging.DEBUG)
        self._common = {"verb": verb, "agent": settings.agent, "project": settings.project}

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno > logging.DEBUG:
            return
        own = {name: getattr(record, name) for name in self._FIELDS if hasattr(record, name)}
        oplog.write("debug", "debug", self._common | own)
