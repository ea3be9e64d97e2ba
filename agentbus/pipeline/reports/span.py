"""The time range of a run's rows, and how finely reports divide it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

Bucket = Literal["second", "minute", "hour", "day"]
# Seconds per bucket.
LENGTHS: dict[Bucket, int] = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


@dataclass(frozen=True, slots=True)
class Span:
    """The time range of a run's rows, from the first to the last entry, both in UTC."""

    first: datetime | None = None
    last: datetime | None = None

    @property
    def bucket(self) -> Bucket:
        """The unit by which time is divided, so that charts have about 20 to 200 moments."""
        if self.first is None or self.last is None:
            return "hour"
        length = self.last - self.first
        if length <= timedelta(minutes=3):
            return "second"
        if length <= timedelta(hours=3):
            return "minute"
        return "hour" if length <= timedelta(days=14) else "day"
