"""What a report is: a function from rows to a few small tables, and what it says of them.

Columns speak for themselves by how they end, so that the page and the terminal can write them for
people: `_ms` is a duration in milliseconds, `bytes` a size, `_share` a part of one, `_rate` so many
a second; a timestamp is a moment in UTC.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own pages use)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# How many rows of a table are shown and kept, if it does not say: the rest is counted.
TOP = 100
Kind = Literal["bar", "line", "heat", "stacked"]
Bucket = Literal["second", "minute", "hour", "day"]
# How many seconds a moment lasts.
LENGTHS: dict[Bucket, int] = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


@dataclass(frozen=True, slots=True)
class Chart:
    """How a table is drawn.

    `x` names the column of the categories or moments. `y` names the column of figures, or several:
    each is a separate series; all have one unit. `series` names a column, or several, that split the rows
    into series (of a heat map: into its lines). Bars of categories are drawn in the order of the rows.
    `bucket` is how long each moment lasts, if not as long as the span's buckets.
    """

    kind: Kind
    x: str
    y: str | Sequence[str]
    series: str | Sequence[str] | None = None
    unit: str | None = None
    bucket: Bucket | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a report: a frame that is already aggregated and ordered, most telling first.

    `name` is stable and unique in its report. At most `top` rows leave Spark; how many were left out
    is counted. `note` says what the figures mean where the columns do not.
    """

    name: str
    title: str
    frame: DataFrame
    chart: Chart | None = None
    note: str | None = None
    top: int = TOP


@dataclass(frozen=True, slots=True)
class Span:
    """What the rows of a run span: from the first entry's time to the last one's (both UTC)."""

    first: datetime | None = None
    last: datetime | None = None

    @property
    def bucket(self) -> Bucket:
        """How finely time is cut: charts shall have some 20 to 200 moments."""
        if self.first is None or self.last is None:
            return "hour"
        length = self.last - self.first
        if length <= timedelta(minutes=3):
            return "second"
        if length <= timedelta(hours=3):
            return "minute"
        return "hour" if length <= timedelta(days=14) else "day"


@dataclass(slots=True)
class Given:
    """What a run gives to its reports besides the rows: the span, and frames computed once."""

    span: Span = field(default_factory=Span)
    _kept: dict[str, DataFrame] = field(default_factory=dict)

    def moment(self, time: str = "time") -> Column:
        """Return the start of the bucket that a time falls into, as the column `time`."""
        return F.date_trunc(self.span.bucket, F.col(time)).alias("time")

    def once(self, name: str, make: Callable[[], DataFrame]) -> DataFrame:
        """Return a frame that several tables or reports start from, computed and kept once.

        It must be small: an aggregate (by queue, agent and hour, say) or a few narrow columns, never
        whole entries.
        """
        if name not in self._kept:
            self._kept[name] = make().persist()
        return self._kept[name]

    def release(self) -> None:
        while self._kept:
            self._kept.popitem()[1].unpersist()


@dataclass(frozen=True, slots=True)
class Report:
    """A report: `build` takes rows (columns of the schema, all kinds) and returns its tables.

    It starts no job: it only says what is to be computed. `empty` is the sentence for tables without rows.
    """

    name: str
    title: str
    about: str
    build: Callable[[DataFrame, Given], Sequence[Table]]
    empty: str


def of_kind(rows: DataFrame, kind: str) -> DataFrame:
    """Return the rows of one kind with its typed columns."""
    from agentbus.pipeline.rows.typed_columns import typed

    return typed(rows.where(F.col("kind") == kind), kind)


def union(frames: Iterable[DataFrame]) -> DataFrame:
    """Return the rows of all frames; a column that a frame lacks is null in its rows."""
    return functools.reduce(
        lambda one, other: one.unionByName(other, allowMissingColumns=True), frames
    )


def elapsed(start: str | Column, end: str | Column) -> Column:
    """Return the milliseconds from one moment to another."""
    return (F.unix_millis(end) - F.unix_millis(start)).cast("bigint")


def percentiles(column: str | Column, *shares: float) -> tuple[Column, ...]:
    """Return exact percentiles as p50_ms, p90_ms and so on, interpolated between two values, to a tenth.

    They are null of no values. Spark gathers the values once for all of them.
    """
    found = F.percentile(column, F.array(*map(F.lit, shares)))
    return tuple(
        F.round(F.get(found, F.lit(n)), 1).alias(f"p{share * 100:.0f}_ms")
        for n, share in enumerate(shares)
    )
