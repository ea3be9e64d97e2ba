"""Arithmetic on the few rows of aggregates: sums, shares, order and ranks, as in SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Row: TypeAlias = "Mapping[str, Any]"


def summed(
    rows: Iterable[Row], keys: Sequence[str], figures: Sequence[str]
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the sums of figures by keys, which may be null; a figure that is null counts as 0."""
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple([row[name] for name in keys])
        found = sums.get(key)
        if found is None:
            found = sums[key] = dict.fromkeys(figures, 0)
        for name in figures:
            found[name] += row[name] or 0
    return sums


def share(part: float, whole: float) -> float | None:
    """Return a part divided by the whole, None if the whole is 0."""
    return part / whole if whole else None


def ordered(rows: Iterable[Row], *by: str) -> list[Any]:
    """Return rows ordered by these columns, the first column first.

    `-name` is descending, with nulls last; `name` is ascending, with nulls first, and `name?` with
    nulls last.
    """
    found = list(rows)
    for one in reversed(by):
        found.sort(key=_key(one.strip("-?"), last=one.endswith("?")), reverse=one.startswith("-"))
    return found


def _key(name: str, *, last: bool) -> Callable[[Row], tuple[bool, Any]]:
    # Nulls compare by the first part alone: their second part is the same.
    def key(row: Row) -> tuple[bool, Any]:
        value = row[name]
        return ((value is None) is last, 0 if value is None else value)

    return key


def firsts(
    rows: Sequence[dict[str, Any]], places: Mapping[str, str], keys: Sequence[str], most: int
) -> list[dict[str, Any]]:
    """Return the rows ranked highest by any figure, with their ranks by each figure.

    `places` maps the columns of ranks to their figures. Equal figures are ordered by `keys`.
    """
    placed: list[dict[str, Any]] = [dict(row) for row in rows]
    for place, figure in places.items():
        for number, row in enumerate(ordered(placed, f"-{figure}", *keys), 1):
            row[place] = number
    return [row for row in placed if min(row[place] for place in places) <= most]
