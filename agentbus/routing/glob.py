"""Patterns with `*` and `?`, matched in a time that grows with the text and never explodes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    # Takes a text, and from where to where to look; returns where the piece begins, or -1.
    Find = Callable[[str, int, int], int]

_ANY = "."
# In a pattern that is itself looked at as a text, a `*` is more than one character.
_ANY_BUT_MANY = "[^*]"


class Glob:
    """A pattern for a whole text, letter case aside: `*` is any text, `?` any one character.

    Nothing else is special, and nothing takes the meaning from these two. `matches` takes a text that
    `fold` has been through: one text is folded once, and held against many patterns.
    """

    __slots__ = ("_covers", "folded", "matches", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.folded = re.sub(r"\*+", "*", fold(pattern))
        self.matches: Callable[[str], bool] = _compiled(self.folded, _ANY)
        self._covers: Callable[[str], bool] | None = None if "?" in pattern else self.matches

    def covers(self, other: Glob) -> bool:
        """Tell whether surely all that `other` matches is matched by this one too.

        The other pattern is taken as a text in which `*` and `?` are characters: what can stand for
        these can stand for all that they stand for. So a yes is certain; a no is not.
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
    """Return a text with the differences of letter case taken out; `ß` becomes `ss`."""
    return text.casefold()


def _compiled(folded: str, any_: str) -> Callable[[str], bool]:
    if "?" not in folded:
        # Nearly all patterns are one of these, and each is one call.
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
    """What stands between the stars: the first and the last have their places, the rest follow.

    Each piece is looked for once, right of the one before: its first place is as good as any other,
    so that none is ever looked for again.
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
    # No part of this may be repeated, so there is nothing to go back to.
    search = re.compile(
        "".join(any_ if c == "?" else re.escape(c) for c in piece), re.DOTALL
    ).search

    def find(text: str, at: int, end: int) -> int:
        found = search(text, at, end)
        return -1 if found is None else found.start()

    return find
