"""Reports: the aggregates that each requires of Spark, and the tables computed from them.

The end of a column's name says how the page and the terminal format it: `_ms` is a duration in
milliseconds, `bytes` a size, `_share` a fraction, `_rate` a number per second; a timestamp is in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentbus.pipeline.reports.aggregate import Aggregate, Figures
from agentbus.pipeline.reports.span import Bucket
from agentbus.pipeline.reports.wording import NOTHING

# Maximum number of rows of a table that are shown and kept, unless the table sets another; the rest
# is counted.
TOP = 100
Kind = Literal["bar", "line", "heat", "stacked"]


@dataclass(frozen=True, slots=True)
class Chart:
    """The drawing of a table.

    `x` names the column of the categories or moments. `y` names the column of figures, or several:
    each is a separate series; all have one unit. `series` names a column, or several, that split
    the rows into series (of a heat map: into its lines). Bars of categories are drawn in the order
    of the rows; the value of the column `detail` follows their names. `bucket` is the length of each
    moment, by default that of the span's buckets. Each value of the column `apart` has a separate
    drawing with separate axes. `note` explains the drawing.
    """

    kind: Kind
    x: str
    y: str | Sequence[str]
    series: str | Sequence[str] | None = None
    unit: str | None = None
    bucket: Bucket | None = None
    detail: str | None = None
    apart: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a report, most significant rows first.

    `name` is stable and unique in its report; each row has the `columns` in this order. `top` rows
    are kept, and the others only counted, plus `more` that were not computed. `note` explains the
    figures if the column names do not. A duration that is null is written as `unmeasured`. A table
    that `repeats` another one's figures is shown only on request.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]]
    chart: Chart | None = None
    note: str | None = None
    top: int = TOP
    more: int = 0
    unmeasured: str = NOTHING
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """A report: `build` computes its `tables`, in this order, from the aggregates that it `needs`.

    `empty` is the sentence for tables without rows.
    """

    name: str
    title: str
    about: str
    needs: tuple[Aggregate, ...]
    tables: tuple[str, ...]
    build: Callable[[Figures], Sequence[Table]]
    empty: str
