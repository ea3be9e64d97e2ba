"""Glob patterns with `*` and `?`, matched without backtracking."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    # Searches a text between two positions, and returns the start of the piece, or -1.
    Find = Callable[[str, int, int], int]

_ANY = "."
# If the text is itself a pattern, its `*` stands for more than one character.
_ANY_BUT_MANY = "[^*]"


class Glob:
    """A pattern for a whole text, ignoring letter case: `*` is any text, `?` any character.

    There is no escape character. `matches` takes a text that was folded by `fold`, so that a text is folded
    once for many patterns.
    """

    __slots__ = ("_covers", "folded", "matches", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.folded = re.sub(r"\*+", "*", fold(pattern))
        self.matches: Callable[[str], bool] = _compiled(self.folded, _ANY)
        self._covers: Callable[[str], bool] | None = None if "?" in pattern else self.matches

    def covers(self, other: Glob) -> bool:
        """Return whether this pattern certainly matches all texts that `other` matches.

        It matches the other pattern as a text in which `*` and `?` are characters. Only True is certain.
        """
        if self._covers is None:
            self._covers = _compiled(self.folded, _ANY_BUT_MANY)
        return self._covers(other.folded)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Glob) and self.folded == other.folded

    def __hash__(self) -> int:
        return hash(self.folded)

    def __repr__(self) -> str:
        return f"Glob({self.pattern!r})"


def fold(text: str) -> str:
    """Return a text without differences of letter case; `ß` becomes `ss`."""
    return text.casefold()


def _compiled(folded: str, any_: str) -> Callable[[str], bool]:
    if "?" not in folded:
        # The common patterns, which need a single call.
        pieces = folded.split("*")
        if len(pieces) == 1:
            return folded.__eq__
        if len(pieces) == 2 and not (pieces[0] and pieces[1]):
            return _ending(pieces[1]) if pieces[1] else _beginning(pieces[0])
        if len(pieces) == 3 and not (pieces[0] or pieces[2]):
            return _holding(pieces[1])
    return _Pieces(folded.split("*"), any_)


def _beginning(piece: str) -> Callable[[str], bool]:
    return lambda text: text.startswith(piece)


def _ending(piece: str) -> Callable[[str], bool]:
    return lambda text: text.endswith(piece)


def _holding(piece: str) -> Callable[[str], bool]:
    return lambda text: piece in text


class _Pieces:
    """The pieces of a pattern between the stars: the first and the last are anchored.

    Each of the others is searched once, after the one before: its leftmost position leaves most text for
    the rest, so no backtracking is needed.
    """

    __slots__ = ("_finds", "_first", "_last", "_least", "_one", "_sizes")

    def __init__(self, pieces: list[str], any_: str) -> None:
        self._one = len(pieces) == 1
        self._sizes = [len(piece) for piece in pieces]
        self._least = sum(self._sizes)
        finds = [_find(piece, any_) for piece in pieces]
        self._first, self._finds, self._last = finds[0], finds[1:-1], finds[-1]

    def __call__(self, text: str) -> bool:
        size, sizes = len(text), self._sizes
        if size < self._least or (self._one and size != self._least):
            return False
        at, end = sizes[0], size - sizes[-1]
        if self._first(text, 0, at) < 0 or self._last(text, end, size) < 0:
            return False
        for find, long in zip(self._finds, sizes[1:-1], strict=True):
            found = find(text, at, end)
            if found < 0:
                return False
            at = found + long
        return True


def _find(piece: str, any_: str) -> Find:
    if "?" not in piece:
        return lambda text, at, end: text.find(piece, at, end)
    # Without repetition, the expression cannot backtrack.
    search = re.compile(
        "".join(any_ if c == "?" else re.escape(c) for c in piece), re.DOTALL
    ).search

    def find(text: str, at: int, end: int) -> int:
        found = search(text, at, end)
        return -1 if found is None else found.start()

    return find
