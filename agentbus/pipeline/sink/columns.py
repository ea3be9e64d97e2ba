"""The columns that a sink accepts: their types are checked before a row is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from agentbus.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_NUMBER = (*_WHOLE, FloatType, DoubleType, DecimalType)
# Spark types that JSON has, besides arrays and objects.
_JSON = (StringType, BooleanType, NullType, *_WHOLE, FloatType, DoubleType)


class ColumnType:
    """A kind of column: its name in messages, and a check of Spark types."""

    def __init__(self, said: str, fits: Callable[[DataType], bool]) -> None:
        self.said = said
        self.fits = fits


def _one_of(said: str, *kinds: type[DataType]) -> ColumnType:
    return ColumnType(said, lambda found: isinstance(found, (*kinds, NullType)))


def _is_json(found: DataType) -> bool:
    if isinstance(found, StructType):
        return all(_is_json(field.dataType) for field in found.fields)
    if isinstance(found, ArrayType):
        return _is_json(found.elementType)
    return isinstance(found, _JSON)


def _is_list_of_text(found: DataType) -> bool:
    return isinstance(found, ArrayType) and isinstance(found.elementType, StringType)


def _is_text_by_text(found: DataType) -> bool:
    return (
        isinstance(found, MapType)
        and isinstance(found.keyType, StringType)
        and isinstance(found.valueType, StringType)
    )


TEXT = _one_of("a string", StringType)
WHOLE = _one_of("a whole number", *_WHOLE)
SECONDS = _one_of("a number of seconds", *_NUMBER)
MOMENT = _one_of("a timestamp, or unix seconds", TimestampType, *_NUMBER)
FLAG = _one_of("a boolean", BooleanType)
PAYLOAD = ColumnType(
    "JSON text, or structs and arrays of strings, numbers and booleans; to_json(…) makes text of others",
    _is_json,
)
HEADERS = ColumnType("a map from strings to strings", _is_text_by_text)
TAGS = ColumnType("an array of strings", _is_list_of_text)

# The columns of each kind of target, required ones first.
TASK = {
    "payload": PAYLOAD,
    **dict.fromkeys(("key", "priority", "ordering_key", "correlation_id", "causation_id"), TEXT),
    **dict.fromkeys(("topic", "reply_to", "webhook", "traceparent"), TEXT),
    **dict.fromkeys(("source", "tenant", "task"), TEXT),
    "headers": HEADERS,
    "delay": SECONDS,
    "at": MOMENT,
    **dict.fromkeys(("expires", "time_limit"), SECONDS),
    "attempts": WHOLE,
    "notify": FLAG,
}
MESSAGE = {"message": TEXT}
NOTE = {"key": TEXT, "value": TEXT, "tags": TAGS}


def check(
    schema: StructType, known: Mapping[str, ColumnType], needed: tuple[str, ...], target: str
) -> None:
    """Raise `UsageError` for the first missing, unknown or unreadable column of a target."""
    for name in needed:
        if name not in schema.names:
            raise UsageError(
                f"the rows for {target} have no column {name!r}",
                hint=f"name one so; they have {', '.join(schema.names)[:200]}",
            )
    seen = set()
    for field in schema.fields:
        kind = known.get(field.name)
        if kind is None:
            raise UsageError(
                f"{target} takes no column {field.name[:60]!r}",
                hint=f"drop it, or put it into {needed[-1]!r}; the columns are {', '.join(known)}",
            )
        if not kind.fits(field.dataType):
            raise UsageError(
                f"the column {field.name!r} for {target} is {field.dataType.simpleString()[:60]}",
                hint=f"it has to be {kind.said}",
            )
        if field.name in seen:
            raise UsageError(f"the rows have two columns {field.name!r}", hint="drop one")
        seen.add(field.name)
