"""Parses times: RFC 3339, stream ids, durations."""

from __future__ import annotations

import time

from agentbus.core.errors import UsageError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LETTERS = ("s", "m", "h", "d", "w")
_MAX_PART = 2**64 - 1
_DIGITS = frozenset("0123456789")


def parse_rfc3339(text: str) -> float | None:
    """Parse an RFC 3339 time (a date alone means midnight UTC) as a unix time, else None."""
    date, separator, clock = text.partition("T") if "T" in text else text.partition(" ")
    days = _days(date)
    if days is None:
        return None
    if not separator:
        return float(days * 86400)
    offset = 0
    if clock[-1:] in ("Z", "z"):
        clock = clock[:-1]
    else:
        at = max(clock.rfind("+"), clock.rfind("-"))
        if at > 0:
            minutes = _minutes(clock[at + 1 :])
            if minutes is None:
                return None
            offset = -60 * minutes if clock[at] == "+" else 60 * minutes
            clock = clock[:at]
    clock, _, fraction = clock.partition(".")
    parts = clock.split(":")
    if len(parts) not in (2, 3) or not all(len(p) == 2 and _number(p) for p in parts):
        return None
    if fraction and not _number(fraction):
        return None
    hours, minutes_, seconds = (*map(int, parts), 0)[:3]
    if hours > 23 or minutes_ > 59 or seconds > 60:
        return None
    total = days * 86400 + hours * 3600 + minutes_ * 60 + seconds + offset
    return total + (float(f"0.{fraction}") if fraction else 0.0)


def duration(text: str) -> float | None:
    """Parse `90`, `.5`, `1.5s`, `30m`, `1h30m`, `7d` as seconds, else None; larger units come first."""
    total, above, rest = 0.0, float("inf"), text
    while True:
        end = len(rest) - len(rest.lstrip("0123456789."))
        unit = "ms" if rest[end : end + 2] == "ms" else rest[end : end + 1]
        scale = 1.0 if rest is text and not unit else _UNITS.get(unit, above)
        part = _scaled(rest[:end], scale)
        if part is None or scale >= above:
            return None
        total, above, rest = total + part, scale, rest[end + len(unit) :]
        if not rest:
            return total


def stream_id(text: str) -> tuple[int, int] | None:
    """Parse `1642694400123-0` or `1642694400123` as the two parts of a stream id, else None."""
    milliseconds, dash, sequence = text.partition("-")
    if not _number(milliseconds) or (dash and not _number(sequence)):
        return None
    if len(milliseconds) > 20 or len(sequence) > 20:
        return None
    parts = int(milliseconds), int(sequence) if dash else 0
    return parts if max(parts) <= _MAX_PART else None


def ends_now(text: str) -> bool:
    """Report whether a starting point is a duration before now, such as `30m`."""
    return isinstance(text, str) and text[-1:] in _LETTERS and duration(text) is not None


def since(text: str, now: float) -> str:
    """Turn an id, a time or a duration before `now` into the stream id to start from, inclusive.

    A full id is exclusive, like a cursor; a time is inclusive.
    """
    if not isinstance(text, str):
        raise UsageError(
            f"{text!r} is not a point to start from", hint="give it as text, such as '30m'"
        )
    parsed = parse_rfc3339(text)
    if parsed is None and text[-1:] in _LETTERS:
        back = duration(text)
        parsed = None if back is None else now - back
    if parsed is not None:
        return f"{max(0, round(parsed * 1000))}-0"
    parts = stream_id(text)
    if parts is None:
        raise UsageError(
            f"{text[:60]!a} is not a point to start from",
            hint="give a message id, a time such as 2024-01-20T15:30:00Z, or a duration such as 30m",
        )
    return following(parts) if "-" in text else f"{parts[0]}-0"


def preceding(parts: tuple[int, int]) -> str:
    """Return the id right before the one with these parts."""
    milliseconds, sequence = parts
    if sequence:
        return f"{milliseconds}-{sequence - 1}"
    return f"{milliseconds - 1}-{_MAX_PART}" if milliseconds else "0-0"


def following(parts: tuple[int, int]) -> str:
    """Return the id right after the one with these parts."""
    milliseconds, sequence = parts
    if sequence < _MAX_PART:
        return f"{milliseconds}-{sequence + 1}"
    return f"{milliseconds + 1}-0" if milliseconds < _MAX_PART else f"{milliseconds}-{sequence}"


def _days(date: str) -> int | None:
    parts = date.split("-")
    if [len(p) for p in parts] != [4, 2, 2] or not all(_number(p) for p in parts):
        return None
    year, month, day = map(int, parts)
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        return None
    # Count years from March, so that the leap day comes last.
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    days = era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    days -= 719468
    t = time.gmtime(days * 86400)
    return days if (t.tm_mon, t.tm_mday) == (month, day) else None


def _minutes(offset: str) -> int | None:
    hours, _, minutes = offset.partition(":")
    if not (len(hours) == 2 and _number(hours) and len(minutes) == 2 and _number(minutes)):
        return None
    if int(hours) > 23 or int(minutes) > 59:
        return None
    return int(hours) * 60 + int(minutes)


def _scaled(text: str, unit: float) -> float | None:
    whole, dot, fraction = text.partition(".")
    if not _number(fraction if dot else whole) or not _number(whole or "0") or len(text) > 18:
        return None
    return float(text) * unit


def _number(text: str) -> bool:
    return bool(text) and _DIGITS.issuperset(text)
