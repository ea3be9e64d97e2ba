"""Glob patterns with `*` and `?`, matched without backtracking."""

from __future__ import annotations

import re
from collections.abc import Callable

_ANY = "."
# If the text itself is a pattern, `?` must not match its `*`, which stands for any number of
# characters.
_ANY_BUT_MANY = "[^*]"


class Glob:
    """A pattern for a whole text, ignoring letter case: `*` is any text, `?` any character.

    There is no escape character. `matches` takes a text folded by `fold`, so that a text is folded once for
    many patterns.
    """

    __slots__ = ("_covers", "folded", "matches", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.folded = re.sub(r"\*+", "*", fold(pattern))
        self.matches: Callable[[str], bool] = _compiled(self.folded, _ANY)
        self._covers: Callable[[str], bool] | None = None if "?" in pattern else self.matches

    def covers(self, other: Glob) -> bool:
        """Return whether this pattern certainly matches every text that `other` matches.

        The other pattern is matched as a text, with `*` and `?` as characters. Only True is certain.
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
        # Fast path: common patterns need a single string method.
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
        # The leftmost match of a piece leaves the most text for the rest, so backtracking is
        # unnecessary.
        first += "".join(f"(?>.*?{piece})" for piece in rest[:-1]) + f".*{rest[-1]}"
    search = re.compile(first, re.DOTALL).fullmatch
    return lambda text: search(text) is not None
