"""Formats figures: tables, ages, rates, durations."""

from __future__ import annotations

import io
import os
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from agentbus.commands import _values
from agentbus.commands._output import plain
from agentbus.core.readable import (
    age as age,  # noqa: PLC0414 (exported)
    count as count,  # noqa: PLC0414
    cut as cut,  # noqa: PLC0414
    number as number,  # noqa: PLC0414
)

if TYPE_CHECKING:
    from rich.live import Live

    from agentbus.commands._output import Out
    from agentbus.workers.metrics import Durations


T = TypeVar("T")

# On a terminal that is too narrow: the width to which names are folded, and cells that count as
# empty.
_FOLDED = 16
# The bound of the first bucket of durations, in seconds: percentiles in it are not known more exactly.
_SHORTEST = 0.001
_NOTHING = ("0", "-", "")
# Rows that are drawn at a time, and a width beyond that of any table.
_PAGE, _UNLIMITED = 200, 100_000


class Critical(str):
    """A cell that is red on a terminal with colours."""

    __slots__ = ()


def critical(text: str, when: bool) -> str:
    """Return the text of a cell, as `Critical` if `when` is true."""
    return Critical(text) if when else text


def show(
    out: Out,
    records: Sequence[T],
    columns: Mapping[str, Callable[[T], str]],
    fields: Callable[[T], Mapping[str, object]] = _values.fields,
    *,
    left: int,
) -> None:
    """Print a table with a row for each value, or each value's fields as JSON.

    `columns` maps each heading to the function that formats a cell; the first `left` columns are aligned
    to the left.
    """
    if out.json:
        for record in records:
            out.record(fields(record), "")
    elif records:
        rows = [[cell(record) for cell in columns.values()] for record in records]
        table(out, [*columns], rows, [at >= left for at in range(len(columns))])


def table(
    out: Out,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[bool],
    indent: int = 0,
) -> None:
    """Print a table: at full width into a file or a pipe, fitted to the width of a terminal."""
    rows = [[critical(plain(cell), isinstance(cell, Critical)) for cell in row] for row in rows]
    if out.is_terminal():
        _draw(out, headings, rows, right, indent)
        return
    lines = [headings, *rows]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            " " * (width - _width(cell)) + cell if to_right else cell + " " * (width - _width(cell))
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        out.record({}, f"{' ' * indent}{'  '.join(cells)}".rstrip())


def sentence(out: Out, fields: Mapping[str, object], text: str, indent: int, red: str = "") -> None:
    """Print a record whose text is a sentence; a terminal shows it in lines that end between words."""
    if out.json or not out.is_terminal():
        out.record(fields, text, red)
        return
    wide = max(2 * indent, shutil.get_terminal_size().columns)
    lines = textwrap.wrap(plain(text), wide, subsequent_indent=" " * indent, break_on_hyphens=False)
    for line in lines:
        out.record({}, line, red if red in line else "")


def screen() -> Live:
    """Return a full-screen display, in UTF-8 regardless of Python's own encoding."""
    # Import rich late: it takes longer than all other imports, and only a terminal needs it.
    from rich.console import Console
    from rich.live import Live

    stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    console = Console(file=stdout, highlight=False, markup=False, emoji=False)
    return Live(console=console, screen=True, auto_refresh=False)


def _draw(
    out: Out,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[bool],
    indent: int,
) -> None:
    """Draw a table on a terminal; wide columns are folded, and superfluous ones omitted."""
    # Import rich late, as in `screen`.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = [*zip(*rows, strict=True)]
    wide = shutil.get_terminal_size().columns
    shown, gap, widths = _fit(headings, columns, right, wide - indent)
    coloured = out.is_coloured()
    text = io.StringIO()
    # The console is wider than any table: the widths of the columns are given.
    console = Console(
        file=text,
        width=_UNLIMITED,
        force_terminal=coloured,
        color_system="standard" if coloured else None,
    )
    # Draw page by page: drawing thousands of rows takes seconds.
    for start in range(0, len(rows), _PAGE):
        drawn = Table(
            box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="", show_header=not start
        )
        for at in shown:
            drawn.add_column(
                Text(headings[at]),
                width=widths[at],
                justify="right" if right[at] else "left",
                overflow="fold",
            )
        for row in rows[start : start + _PAGE]:
            red = ["bold red" if isinstance(cell, Critical) else "" for cell in row]
            drawn.add_row(*(Text(row[at], red[at]) for at in shown))
        console.print(drawn)
        for line in text.getvalue().splitlines():
            out.drawn(f"{' ' * indent}{line}".rstrip())
        text.seek(0)
        text.truncate()
    hidden = [headings[at] for at in range(len(headings)) if at not in shown]
    if hidden:
        out.warn(f"no room for {', '.join(hidden)}; a wider terminal, a pipe or --json shows all")


def _fit(
    headings: Sequence[str],
    columns: Sequence[Sequence[str]],
    right: Sequence[bool],
    wide: int,
) -> tuple[list[int], int, list[int]]:
    """Return the columns that fit, the gap between them and the width of each column."""
    widths: list[int] = [
        max(map(_width, [*heading.split(), *column]))
        for heading, column in zip(headings, columns, strict=True)
    ]
    shown: list[int] = [*range(len(headings))]

    def over(gap: int) -> int:
        return sum(widths[at] for at in shown) + gap * (len(shown) - 1) - wide

    gap = 2 if over(2) <= 0 else 1
    for at in reversed(range(len(headings))):
        if over(gap) > 0 and right[at] and _says_nothing(columns[at]):
            shown.remove(at)
    while over(gap) > 0:
        at = max(shown, key=lambda one: (not right[one], widths[one]))
        if right[at] or widths[at] <= _FOLDED:
            break
        widths[at] -= 1
    while over(gap) > 0 and right[shown[-1]]:
        shown.pop()
    while over(gap) > 0 and max(widths[at] for at in shown) > 1:
        widths[max(shown, key=lambda one: widths[one])] -= 1
    return shown, gap, widths


def _says_nothing(column: Sequence[str]) -> bool:
    return all(cell in _NOTHING and not isinstance(cell, Critical) for cell in column)


def _width(text: str) -> int:
    """Return the number of terminal columns of a text."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # import it late, as in `screen`

    return cell_len(text)


def pairs(out: Out, named: Mapping[str, object]) -> None:
    """Print names and values, one pair per line, omitting None."""
    for name, value in named.items():
        if value is not None:
            out.record({}, f"{name:<9} {value}")


def durations(timing: Durations | None) -> str:
    """Format the mean and the percentiles of durations on one line."""
    if timing is None:
        return "-"
    parts = ", ".join(f"{name} {share(timing, name)}" for name in ("p50", "p95", "p99"))
    return f"mean {age(timing.mean)}, {parts}"


def share(timing: Durations | None, name: str) -> str:
    """Format one of the percentiles; of a short one only its bucket's bound is known."""
    value = None if timing is None else getattr(timing, name)
    return "<1ms" if value is not None and value <= _SHORTEST else age(value)
