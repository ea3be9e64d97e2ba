"""Formats figures for people: ages, rates, counts, truncated texts."""

from __future__ import annotations

_SPANS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "m"), (1.0, "s"))


def cut(text: str, width: int) -> str:
    """Return text truncated to `width` characters; a truncated text ends with `…`."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def age(seconds: float | None) -> str:
    """Format a time span in one or two units; a negative span, after a clock was set back, is 0."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    if seconds < 1:
        milliseconds = seconds * 1000
        return f"{milliseconds:.0f}ms" if milliseconds >= 10 else f"{milliseconds:.1f}ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    for at, (unit, name) in enumerate(_SPANS):
        if seconds >= unit:
            whole, rest = divmod(int(seconds), int(unit))
            if at == len(_SPANS) - 1:
                return f"{whole}s"
            below, small = _SPANS[at + 1]
            part = rest // int(below)
            return f"{whole}{name}" + (f"{part}{small}" if part else "")
    return "-"


def number(value: float) -> str:
    """Format a rate with at most three significant digits, or without decimals if it is larger."""
    return (
        f"{value:.0f}"
        if value >= 100 or value == 0
        else f"{value:.1f}"
        if value >= 1
        else f"{value:.2f}"
    )


def count(number: int, thing: str) -> str:
    """Format a number with its noun, in the plural unless it is 1."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
