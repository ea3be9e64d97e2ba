"""The input of reports: small aggregates, each of which Spark makes in one pass over the rows.

Reports compute their tables from them in plain Python: to plan a table takes Spark longer than that.
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
# A function that returns the values of a query's names in braces, for the rows' columns and their span.
Given: TypeAlias = "Callable[[Collection[str], Span], Mapping[str, object]]"
_ROWS = "{rows}"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A query in SQL over `{rows}`, whose answer is small: by names and moments, never by entries.

    `given` fills in what else it has in braces. `spanned`: it cuts time as the span of the rows has it.
    `kinds`: it is of such entries alone, and not asked where the rows have none.
    """

    name: str
    query: str
    given: Given = field(default=lambda _columns, _span: {})
    spanned: bool = False
    kinds: tuple[str, ...] = schema.KINDS

    def frame(self, rows: DataFrame, span: Span) -> DataFrame:
        """Return the answer as a frame; no job runs."""
        return asked(rows, self.query, **self.given(frozenset(rows.columns), span))


def asked(rows: DataFrame, query: str, **given: object) -> DataFrame:
    """Return what a query over `{rows}` gives, with these values in its other braces."""
    text = query.format(rows="\0", **given)
    # Spark formats it, too, and regular expressions have braces.
    text = text.replace("{", "{{").replace("}", "}}").replace("\0", _ROWS)
    return rows.sparkSession.sql(text, rows=rows)


def quantile(ascending: str, share: float) -> str:
    """Return a quantile of numbers in ascending order in SQL, by how near it is to the two beside it.

    Of `sort_array(collect_list(…))`: Spark's `percentile` counts equal numbers in a hash map, which takes
    twice the time and memory where most differ.
    """
    place = f"(size({ascending}) - 1) * {share}D"
    below, above = (f"get({ascending}, int({end}({place})))" for end in ("floor", "ceil"))
    return f"{below} + ({place} - floor({place})) * ({above} - {below})"


class Figures:
    """The aggregates of a run, and what reports make of them once for several tables."""

    def __init__(self, span: Span, tables: Mapping[str, pa.Table] | None = None) -> None:
        self.span = span
        self._tables = tables or {}
        self._made: dict[Callable[..., Any], Any] = {}

    def rows(self, aggregate: Aggregate) -> Iterator[Row]:
        """Yield the rows of an aggregate as plain values, a few at a time; none of no entries."""
        table = self._tables.get(aggregate.name)
        for batch in table.to_batches(max_chunksize=5_000) if table is not None else ():
            yield from batch.to_pylist()

    def once(self, make: Callable[[Figures], T]) -> T:
        """Return what a function makes of these figures; it is called once for all."""
        if make not in self._made:
            self._made[make] = make(self)
        found: T = self._made[make]
        return found

    def moment(self, at: int) -> datetime:
        """Return the start of the bucket of time that a unix time falls into."""
        return moment(at - at % LENGTHS[self.span.bucket])


def moment(at: int) -> datetime:
    """Return a unix time as a moment in UTC."""
    return datetime.fromtimestamp(at, UTC)
