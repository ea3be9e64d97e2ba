"""Whether some path matches two patterns, decided in another way than the server's."""

from __future__ import annotations

import functools


def overlap(one: str, two: str) -> bool:
    """Tell whether some path matches both patterns."""
    return _paths(tuple(one.split("/")), tuple(two.split("/")))


@functools.cache
def _paths(one: tuple[str, ...], two: tuple[str, ...]) -> bool:
    if one[:1] == ("**",):
        return _paths(one[1:], two) or (two != () and _paths(one, two[1:]))
    if two[:1] == ("**",):
        return _paths(two, one)
    if not one or not two:
        return one == two
    return _segments(one[0], two[0]) and _paths(one[1:], two[1:])


@functools.cache
def _segments(one: str, two: str) -> bool:
    if one[:1] == "*":
        return _segments(one[1:], two) or (two != "" and _segments(one, two[1:]))
    if two[:1] == "*":
        return _segments(two, one)
    if not one or not two:
        return one == two
    return (one[0] == two[0] or "?" in (one[0], two[0])) and _segments(one[1:], two[1:])
