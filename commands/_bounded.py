"""Prints messages and notes within a number of letters, for readers that pay for each of them."""

from __future__ import annotations

from agentbus.commands import _message, _values
from agentbus.commands._format import count
from agentbus.coordination.overhear import REPORTS
from agentbus.core.errors import UsageError
from agentbus.core.stream import position
from agentbus.core.timespec import preceding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from agentbus.commands._declare import Call
    from agentbus.coordination.notes import Note

# A line has about so many letters beside its text, and the first one shows at least so many of its text.
_BESIDE, _LEAST = 60, 100


def check(most: int) -> None:
    """Raise `UsageError` for a bound that leaves no room for a text."""
    if most < _BESIDE + _LEAST:
        raise UsageError(
            f"--max-chars is {most}", hint=f"give at least {_BESIDE + _LEAST}: a line takes some"
        )


def overheard(call: Call, spoken: Iterator[Any], most: int) -> tuple[int, bool]:
    """Print messages of the channel; return how many, and whether some did not fit, which stay unheard."""
    printed, room = 0, most
    for entry_id, named in spoken:
        if named.get("event") in REPORTS:
            _message.show(call.out, entry_id, named)
            continue
        said = named.get("message", "")
        if len(said) + _BESIDE > room:
            if printed:
                # The cursor then moves past those before this one.
                spoken.close()  # type: ignore[attr-defined]
                return printed, True
            kept = said[: room - _BESIDE]
            left = len(said) - len(kept)
            if call.out.json:
                named = {**named, "message": kept, "truncated": str(left)}
            else:
                named = {**named, "message": f"{kept}…"}
                before = preceding(position(entry_id))
                call.out.warn(
                    f"{left} letters of a message were left out;"
                    f" 'agentbus overhear --since {before} --max 1' prints it whole"
                )
        _message.show(call.out, entry_id, named)
        printed += 1
        room -= len(said) + _BESIDE
    return printed, False


def value(call: Call, text: str, most: int) -> None:
    """Print the value of a note, cut."""
    call.out.exactly(text[:most].encode())
    if len(text) > most:
        call.out.warn(f"{len(text) - most} letters were left out; without --max-chars it is whole")


def notes(call: Call, found: Sequence[Note], most: int) -> None:
    """Print notes, the first one cut if need be, and count those that do not fit."""
    room = most
    for number, noted in enumerate(found):
        text = noted.value or ""
        if len(text) + _BESIDE > room:
            if number:
                call.out.warn(f"{count(len(found) - number, 'more note')} left out")
                return
            kept = text[: room - _BESIDE]
            _values.note(
                call.out, noted.__replace__(value=kept), value=True, left=len(text) - len(kept)
            )
            if not call.out.json:
                call.out.warn(f"{len(text) - len(kept)} letters of the note were left out")
        else:
            _values.note(call.out, noted, value=True)
        room -= len(text) + _BESIDE
