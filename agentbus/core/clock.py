"""Formats times as RFC 3339 in UTC.

The conversion is written by hand, because importing `datetime` costs a tenth of a short command's time.
"""

from __future__ import annotations

import time

_FIRST, _LAST = -62_135_596_800.0, 253_402_300_799.0


def rfc3339(seconds: float, *, milliseconds: bool = False) -> str:
    """Format a unix time as `2024-01-20T15:30:00Z`, with milliseconds if asked."""
    # The number may come from another program: clamp it to years of four digits.
    seconds = min(max(seconds, _FIRST), _LAST) if seconds == seconds else 0.0  # noqa: PLR0124
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    t = time.gmtime(whole)
    text = (
        f"{t.tm_year:04d}-{t.tm_mon:02d}-{t.tm_mday:02d}"
        f"T{t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d}"
    )
    return f"{text}.{thousandths:03d}Z" if milliseconds else f"{text}Z"


def of_day(seconds: float) -> str:
    """Format a unix time in the local time zone: `14:32`, on another day with the date."""
    there = time.localtime(min(max(seconds, 0.0), _LAST))
    form = "%H:%M" if there[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M"
    return time.strftime(form, there)
