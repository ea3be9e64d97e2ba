"""The append-only log: entries as the server stores them, and ids in their order."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def text(data: bytes) -> str:
    r"""Decode what another program may have written; bytes that are no UTF-8 become `\xNN`."""
    return data.decode("utf-8", "backslashreplace")


def fields(flat: Sequence[bytes]) -> dict[str, str]:
    """Return an entry's fields; of a repeated field the last one counts."""
    return {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat) - 1, 2)}


def is_number(value: str) -> bool:
    """Tell whether another program's text is a number that fits: `isdigit` takes `²` for one."""
    return value.isascii() and value.isdigit() and len(value) < 16


def position(entry_id: str) -> tuple[int, int]:
    """Return an id's two numbers, which compare as the server compares them."""
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def id_time(entry_id: str) -> float:
    """Return the unix time, in seconds, at which the server wrote the entry with this id."""
    return int(entry_id.partition("-")[0]) / 1000
