"""Glob patterns with `*` and `?`, matched without backtracking."""

from __future__ import annotations

import re
from collections.abc import Callable

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
    pieces = folded.split("*")
    if "?" not in folded:
        # The common patterns, which need a single call.
        match pieces:
            case [whole]:
                return whole.__eq__
            case [start, ""]:
                return lambda text: text.startswith(start)
            case ["", end]:
                return lambda text: text.endswith(end)
            case ["", part, ""]:
                return lambda text: part in text
    first, *rest = ("".join(any_ if c == "?" else re.escape(c) for c in one) for one in pieces)
    if rest:
        # The leftmost place of a piece leaves most text for the rest, so no other place is tried.
        first += "".join(f"(?>.*?{piece})" for piece in rest[:-1]) + f".*{rest[-1]}"
    search = re.compile(first, re.DOTALL).fullmatch
    return lambda text: search(text) is not None
