"""Deletes old rows of processed events, which identify duplicates."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.core.errors import ConfigError
from agentbus.events import outbox
from agentbus.events.tables import previous

if TYPE_CHECKING:
    from agentbus.events.ledger import Ledger
    from agentbus.events.tables import Position

KEEP_PROCESSED = 7 * 86_400.0
# Maximum batches per round: a longer backlog is left for later rounds, so that events do not wait.
_BATCHES = 20


@dataclass(frozen=True, slots=True)
class Cleanup:
    """Options of the cleanup: every `interval` seconds it deletes processed events older than `retention`.

    `batch` rows are deleted in one transaction. Regardless of the retention, a row is kept until
    all consumers have passed its event and the outbox no longer contains it.
    """

    retention: float = KEEP_PROCESSED
    interval: float = 300.0
    batch: int = 1000

    def __post_init__(self) -> None:
        if self.interval < 0 or self.batch < 1:
            raise ConfigError(
                f"the cleanup is {self!r}",
                hint="give an interval of at least 0 s, and a batch of at least 1",
            )


class Cleaner:
    """Cleans up the streams of one process, each when it is due."""

    def __init__(self, ledger: Ledger, when: Cleanup) -> None:
        self._ledger = ledger
        self._when = when
        self._due: dict[str, float] = {}

    def clean(self, stream: str, below: Position | None = None) -> int:
        """Delete old rows of a stream, if that is due; returns their number.

        With `below`, those of events from this position on are kept.
        """
        now, when, tables = time.monotonic(), self._when, self._ledger.tables
        if now < self._due.get(stream, -math.inf):
            return 0
        with self._ledger.engine.connect() as connection:
            passed = outbox.marks(connection, tables, stream).passed
        if passed is not None and below is not None:
            passed = min(passed, previous(below))
        total, more = 0, passed is not None
        for _ in range(_BATCHES):
            if not more:
                break
            with self._ledger.transaction() as connection:
                gone = outbox.purge_processed(
                    *(connection, tables, stream, passed or (0, 0), when.retention),
                    count=when.batch,
                )
            total, more = total + gone, gone > 0
        if not more:
            # If rows are left, the next call deletes more of them.
            self._due[stream] = now + when.interval
        return total
