"""The input of reports: small aggregates, which Spark computes in one pass over the rows.

Reports compute their tables from aggregates in plain Python: Spark would take longer just to plan a
table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from agentbus.pipeline.reports.span import LENGTHS, Span
from agentbus.pipeline.rows import schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

T = TypeVar("T")
Row: TypeAlias = "dict[str, Any]"
# Returns the values of the names in braces in a query, for the rows' columns and their span.
Given: TypeAlias = "Callable[[Collection[str], Span], Mapping[str, object]]"
_ROWS = "{rows}"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A query in SQL over `{rows}` with a small result: by names and times, never by entries.

    `given` fills in the other names in braces. If `spanned`, the division of time depends on the
    span of the rows. `kinds` are the kinds of entries that it reads; it does not run if the rows
    have none.
    """

    name: str
    query: str
    given: Given = field(default=lambda _columns, _span: {})
    spanned: bool = False
    kinds: tuple[str, ...] = schema.KINDS

    def frame(self, rows: DataFrame, span: Span) -> DataFrame:
        """Return the result as a frame; no job runs."""
        return asked(rows, self.query, **self.given(frozenset(rows.columns), span))


def asked(rows: DataFrame, query: str, **given: object) -> DataFrame:
    """Return the result of a query over `{rows}`, with these values in its other braces."""
    text = query.format(rows="\0", **given)
    # Spark formats the query as well, so escape the braces of regular expressions.
    text = text.replace("{", "{{").replace("}", "}}").replace("\0", _ROWS)
    return rows.sparkSession.sql(text, rows=rows)


def quantile(ascending: str, share: float) -> str:
    """Return SQL for a quantile of ascending numbers, interpolated between two neighbours.

    It uses `sort_array(collect_list(…))`, since Spark's `percentile` counts equal numbers in a hash
    map, which takes twice the time and memory if most numbers differ.
    """
    place = f"(size({ascending}) - 1) * {share}D"
    below, above = (f"get({ascending}, int({end}({place})))" for end in ("floor", "ceil"))
    return f"{below} + ({place} - floor({place})) * ({above} - {below})"


class Figures:
    """The aggregates of a run, with results that several tables share."""

    def __init__(self, span: Span, tables: Mapping[str, pa.Table] | None = None) -> None:
        self.span = span
        self._tables = tables or {}
        self._made: dict[Callable[..., Any], Any] = {}

    def rows(self, aggregate: Aggregate) -> Iterator[Row]:
        """Yield the rows of an aggregate as plain values, a few at a time; none if it is empty."""
        table = self._tables.get(aggregate.name)
        for batch in table.to_batches(max_chunksize=5_000) if table is not None else ():
            yield from batch.to_pylist()

    def once(self, make: Callable[[Figures], T]) -> T:
        """Return a function's result for these figures; the function is called only once."""
        if make not in self._made:
            self._made[make] = make(self)
        found: T = self._made[make]
        return found

    def moment(self, at: int) -> datetime:
        """Return the start of the time bucket of a unix time."""
        return moment(at - at % LENGTHS[self.span.bucket])


def moment(at: int) -> datetime:
    """Return a unix time as a moment in UTC."""
    return datetime.fromtimestamp(at, UTC)
