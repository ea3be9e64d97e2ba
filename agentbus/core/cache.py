"""A cache of a function's results that does not import `functools`, which would slow short commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Given = TypeVarTuple("Given")

_MOST = 1000


def cached(make: Callable[[*Given], T]) -> Callable[[*Given], T]:
    """Return a function that caches the results of another by its arguments, up to 1000 at a time."""
    kept: dict[object, T] = {}

    def lookup(*given: *Given) -> T:
        try:
            return kept[given]
        except KeyError:
            pass
        if len(kept) >= _MOST:
            kept.clear()
        result = kept[given] = make(*given)
        return result

    return lookup
