"""Decodes stream entries, and compares their ids."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def text(data: bytes) -> str:
    r"""Decode bytes that another program may have written; invalid UTF-8 becomes `\xNN`."""
    return data.decode("utf-8", "backslashreplace")


def fields(flat: Sequence[bytes]) -> dict[str, str]:
    """Return an entry's fields; the last value of a repeated field counts."""
    return {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat) - 1, 2)}


def is_number(value: str) -> bool:
    """Report whether another program's text is a number in range; `isdigit` alone accepts `²`."""
    return value.isascii() and value.isdigit() and len(value) < 16


def position(entry_id: str) -> tuple[int, int]:
    """Return an id's two numbers, which compare in the server's order."""
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def id_time(entry_id: str) -> float:
    """Return the unix time, in seconds, at which the server wrote the entry with this id."""
    return int(entry_id.partition("-")[0]) / 1000


def score(value: bytes) -> float:
    """Return a score of a sorted set; 0 for an infinite one, which another program wrote."""
    number = float(value)
    return number if abs(number) != float("inf") else 0.0
