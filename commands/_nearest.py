"""Finds likely meanings of a mistyped word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_SHOWN = 3


def meant(word: str, known: Iterable[str], surely: Sequence[str] = ()) -> str:
    """Return `; did you mean …?` with the words in `surely` and the nearest known words, or ''."""
    words = [*surely[:_SHOWN]] or nearest(word, known)
    return f"; did you mean {' or '.join(map(repr, words))}?" if words else ""


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """Return the known words that begin with a word, or else those that resemble it."""
    words = list(dict.fromkeys(known))
    begun = [name for name in words if len(word.strip("-")) > 1 and name.startswith(word)]
    return begun[:_SHOWN] or get_close_matches(word, words, n=_SHOWN)
