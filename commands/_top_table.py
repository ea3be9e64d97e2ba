"""Lines of `top`: tables fitted to a width, sparklines, and text without control characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from agentbus.commands._output import plain

_BARS = "▁▂▃▄▅▆▇█"
_GAP = 1
# Minimum width of a first column that is cut to make room for other columns.
_LEAST = 12


class Column:
    """A column of a table: its heading, the content of its cells, and their style.

    If space is short, columns with a higher `rank` are omitted first. `width` is a fixed width.
    """

    def __init__(
        self,
        title: str,
        cell: Callable[[Any], str],
        *,
        left: bool = False,
        rank: int = 0,
        style: Callable[[Any], str] | None = None,
        width: int | None = None,
    ) -> None:
        self.title = title
        self.cell = cell
        self.left = left
        self.rank = rank
        self.style = style
        self.width = width


def table(
    columns: Sequence[Column], rows: Sequence[Any], width: int, cursor: int | None
) -> list[Text]:
    """Return a line of headings and a line for each row; the row at the cursor is marked."""
    cells = [[_cut(column, plain(column.cell(row))) for column in columns] for row in rows]
    widths = [
        max([cell_len(column.title), *(cell_len(line[at]) for line in cells)])
        if column.width is None
        else column.width
        for at, column in enumerate(columns)
    ]
    shown = _fit(columns, widths, width)
    head = Text(no_wrap=True)
    for at in shown:
        _add(head, columns[at].title, widths[at], columns[at], "bold")
    lines = [_filled(head, width)]
    for number, line in enumerate(cells):
        text = Text(no_wrap=True)
        for at in shown:
            style = columns[at].style
            _add(text, line[at], widths[at], columns[at], style(rows[number]) if style else "")
        if number == cursor:
            text = _filled(text, width)
            text.stylize("reverse")
        lines.append(_filled(text, width))
    return lines


def _cut(column: Column, text: str) -> str:
    return text if column.width is None else set_cell_size(text, column.width)


def _fit(columns: Sequence[Column], widths: list[int], width: int) -> list[int]:
    """Return the columns that fit; the widest left columns are cut first, to a minimum width."""
    shown = [*range(len(columns))]

    def over() -> int:
        needed: int = sum(widths[at] for at in shown)
        return needed + _GAP * (len(shown) - 1) - width

    def cut() -> None:
        wide = [at for at in shown if columns[at].left and columns[at].width is None]
        while over() > 0 and wide:
            most = max(wide, key=lambda at: widths[at])
            if widths[most] <= _LEAST:
                break
            widths[most] -= 1

    cut()
    while over() > 0 and len(shown) > 1:
        shown.remove(max(shown, key=lambda at: (columns[at].rank, at)))
    if over() > 0:
        widths[shown[0]] = max(1, width)
    return shown


def _add(line: Text, cell: str, width: int, column: Column, style: str) -> None:
    if line:
        line.append(" " * _GAP)
    if cell_len(cell) > width:
        cell = set_cell_size(cell, max(0, width - 1)) + "…"
    room = " " * max(0, width - cell_len(cell))
    line.append(cell + room if column.left else room + cell, style)


def _filled(line: Text, width: int) -> Text:
    line.truncate(width, overflow="crop", pad=True)
    return line


def line(text: str, width: int, style: str = "") -> Text:
    """Return text on one line, cut to a width."""
    text = plain(text)
    if cell_len(text) > width:
        text = set_cell_size(text, max(0, width - 1)) + "…"
    return _filled(Text(text, style, no_wrap=True), width)


def wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    """Return text in lines of at most a width; continuation lines are indented."""
    lines, rest, room = [], plain(text), max(8, width)
    while cell_len(rest) > room:
        end = room
        while cell_len(rest[:end]) > room:
            end -= 1
        at = rest.rfind(" ", len(indent) + 1, end)
        end = at if at > 0 else end
        lines.append(rest[:end])
        rest = indent + rest[end:].lstrip(" ")
    return [*lines, rest]


def sparkline(points: Sequence[float], width: int) -> str:
    """Draw the newest points, each as a bar; 0 is a blank."""
    newest = points[-width:]
    most = max(newest, default=0.0)
    bars = (
        " " if point <= 0 else _BARS[min(len(_BARS) - 1, int(point / most * len(_BARS)))]
        for point in newest
    )
    return "".join(bars).rjust(width)
