"""Prints messages and notes within a number of characters, for readers that pay for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentbus.commands import _message, _values
from agentbus.commands._format import count
from agentbus.commands._output import plain
from agentbus.coordination.overhear import REPORTS
from agentbus.core.errors import UsageError
from agentbus.core.json_text import to_json
from agentbus.core.stream import position
from agentbus.core.timespec import preceding

if TYPE_CHECKING:
    from agentbus.commands._declare import Call
    from agentbus.commands._output import Out
    from agentbus.coordination.notes import Note

    # A record's fields for JSON, and its line of text.
    Shown = tuple[Mapping[str, Any], str]

# Beside a cut text, names are cut to this length and only this many tags are shown, so that they
# fit into the smallest bound: another program may have written longer or more.
_NAME, _TAGS = 30, 2
_LEAST = 300


def check(most: int) -> None:
    """Raise `UsageError` for a limit that leaves no space for a text."""
    if most < _LEAST:
        raise UsageError(f"--max-chars is {most}", hint=f"give at least {_LEAST}")


class _Room:
    """The number of characters that may still be printed."""

    def __init__(self, out: Out, most: int) -> None:
        self._out = out
        self._left = most

    def add(self, shown: Shown) -> bool:
        """Print a record if it fits, and return whether it did."""
        size = self._size(shown)
        if size > self._left:
            return False
        self._left -= size
        self._out.record(*shown)
        return True

    def add_cut(self, text: str, cut: Callable[[str], Shown]) -> int:
        """Print the record that `cut` makes of a text's beginning; return the number omitted."""
        keep = min(self._left, len(text))
        while keep and (size := self._size(cut(text[:keep]))) > self._left:
            # JSON may escape a single character by ten.
            keep = min(keep - 1, keep * self._left // size)
        self._out.record(*cut(text[:keep]))
        self._left = 0
        return len(text) - keep

    def _size(self, shown: Shown) -> int:
        fields, line = shown
        return len(to_json(fields) if self._out.json else plain(line)) + 1


def overheard(call: Call, spoken: Iterator[Any], most: int) -> tuple[int, bool]:
    """Print messages of the channel; return their number, and whether others stay unheard.

    The first message is cut if it does not fit, and counts as heard: otherwise it would block all
    later messages.
    """
    out, printed = call.out, 0
    room = _Room(out, most)
    for entry_id, named in spoken:
        if named.get("event") in REPORTS:
            _message.show(out, entry_id, named)
        elif room.add(_message.rendered(out, entry_id, named)):
            printed += 1
        elif printed:
            # `close` moves the cursor past the messages before this one.
            spoken.close()  # type: ignore[attr-defined]
            return printed, True
        else:
            _cut(out, room, entry_id, named)
            printed += 1
    return printed, False


def _cut(out: Out, room: _Room, entry_id: str, named: dict[str, str]) -> None:
    names = ("agent_id", "topic", "event")
    beside = {name: _cut_name(named[name]) for name in names if name in named}
    said = named.get("message", "")

    def cut(text: str) -> Shown:
        fields, line = _message.rendered(out, entry_id, {**beside, "message": text})
        return {**fields, "truncated": len(said) - len(text)}, f"{line}…"

    left = room.add_cut(said, cut)
    if not out.json:
        before = preceding(position(entry_id))
        out.warn(
            f"{_left(left)} of a message {_were(left)} left out;"
            f" 'agentbus overhear --since {before} --max 1' prints it whole"
        )


def _left(number: int) -> str:
    return count(number, "letter")


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def value(call: Call, text: str, most: int) -> None:
    """Print the value of a note, cut."""
    call.out.exactly(text[:most].encode())
    if len(text) > most:
        left = len(text) - most
        call.out.warn(f"{_left(left)} {_were(left)} left out; without --max-chars it is whole")


def notes(call: Call, listed: Sequence[Note], most: int) -> None:
    """Print notes, cutting the first if necessary, and count those that do not fit."""
    room = _Room(call.out, most)
    for number, noted in enumerate(listed):
        if room.add(_values.of_note(noted, value=True)):
            continue
        if number:
            call.out.warn(f"{count(len(listed) - number, 'more note')} left out")
            return
        text = noted.value or ""
        tags = tuple(map(_cut_name, noted.tags[:_TAGS]))
        beside = replace(noted, author=_cut_name(noted.author), tags=tags)

        def cut(kept: str, text: str = text, beside: Note = beside) -> Shown:
            shortened = replace(beside, value=kept, key=_cut_name(beside.key))
            fields, line = _values.of_note(shortened, value=True)
            return {**fields, "truncated": len(text) - len(kept)}, line

        left = room.add_cut(text, cut)
        if not call.out.json:
            call.out.warn(f"{_left(left)} of the note {_were(left)} left out")


def _cut_name(name: str) -> str:
    if not (name.isascii() and name.isprintable()) or "\\" in name or '"' in name:
        # JSON escapes each of the name's characters by up to ten.
        return "…"
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."
