"""What time the rows of a run span, and how finely reports cut it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

Bucket = Literal["second", "minute", "hour", "day"]
# How many seconds a moment lasts.
LENGTHS: dict[Bucket, int] = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


@dataclass(frozen=True, slots=True)
class Span:
    """What the rows of a run span: from the first entry's time to the last one's (both UTC)."""

    first: datetime | None = None
    last: datetime | None = None

    @property
    def bucket(self) -> Bucket:
        """How finely time is cut: charts shall have some 20 to 200 moments."""
        if self.first is None or self.last is None:
            return "hour"
        length = self.last - self.first
        if length <= timedelta(minutes=3):
            return "second"
        if length <= timedelta(hours=3):
            return "minute"
        return "hour" if length <= timedelta(days=14) else "day"
