"""Turns payloads into columns, by a JSON Schema; what does not fit a column stays in `_rest`."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

REST = "_rest"
_MOMENT = pa.timestamp("us", tz="UTC")
# Every table has these before its members; `kind` and `date` are its partitions.
OWN = {
    "_stream": pa.string(),
    "_id": pa.string(),
    "_time": _MOMENT,
    "_agent": pa.string(),
    "_correlation_id": pa.string(),
}
PARTITIONS = {"kind": pa.string(), "date": pa.date32()}
_TYPES = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
# Delta tables take no other names without a mapping of columns, and tell names by more than their case.
_NAME = re.compile(r"[^ ,;{}()\n\t=_][^ ,;{}()\n\t=]*")
_DEPTH = 20


def columns_of(schema: Mapping[str, Any]) -> dict[str, pa.DataType]:
    """Return the columns of a table for payloads of a JSON Schema.

    These are the members of an object that are text, numbers, booleans, times, or lists of such.
    """
    members: dict[str, pa.DataType] = {}
    known = {*PARTITIONS}
    properties = _resolved(schema, schema).get("properties") or {}
    for name, part in properties.items():
        kind = _type(part, schema)
        if kind is not None and _NAME.fullmatch(name) and name.lower() not in known:
            known.add(name.lower())
            members[name] = kind
    return {**OWN, **members, REST: pa.string(), **PARTITIONS}


def _type(part: Any, schema: Mapping[str, Any], *, inner: bool = False) -> pa.DataType | None:
    part = _resolved(part, schema)
    names = part.get("type")
    names = [name for name in (names if isinstance(names, list) else [names]) if name != "null"]
    if len(names) != 1:
        return None
    if names[0] == "array" and not inner:
        items = _type(part.get("items") or {}, schema, inner=True)
        return None if items is None else pa.list_(pa.field("element", items))
    if names[0] == "string" and part.get("format") == "date-time":
        return _MOMENT
    return _TYPES.get(names[0])


def _resolved(part: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema without references, and without null as an alternative."""
    for _ in range(_DEPTH):
        if not isinstance(part, Mapping):
            return {}
        choices = part.get("anyOf") or part.get("oneOf")
        reference = part.get("$ref")
        if isinstance(reference, str):
            part = _followed(schema, reference)
        elif isinstance(choices, list):
            others = [each for each in choices if each != {"type": "null"}]
            part = others[0] if len(others) == 1 else {}
        else:
            return part
    return {}


def _followed(schema: Mapping[str, Any], reference: str) -> Any:
    part: Any = schema
    for word in reference.removeprefix("#/").split("/"):
        part = part.get(word.replace("~1", "/").replace("~0", "~")) if part else None
    return part


def values(payload: str | None, types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """Return a payload's values by column; what is not an object, or fits none, is in `_rest`."""
    try:
        data = None if payload is None else json.loads(payload)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        return {REST: payload}
    row: dict[str, Any] = {}
    rest = {}
    for name, value in data.items():
        kind = types.get(name) if _NAME.fullmatch(name) and name not in PARTITIONS else None
        for fitting in () if kind is None else _fitting(value, kind):
            row[name] = fitting
        if name not in row:
            rest[name] = value
    return row | {REST: json.dumps(rest, separators=(",", ":")) if rest else None}


def _fitting(value: Any, kind: pa.DataType) -> Iterator[Any]:
    """Yield a value as its column takes it, or nothing."""
    if value is None:
        # A null is not a missing member.
        return
    if pa.types.is_list(kind):
        if isinstance(value, list):
            items = [fitting for each in value for fitting in _fitting(each, kind.value_type)]
            if len(items) == len(value):
                yield items
    elif pa.types.is_timestamp(kind):
        moment = _moment(value)
        if moment is not None:
            yield moment
    elif pa.types.is_boolean(kind) or pa.types.is_string(kind):
        if isinstance(value, bool if pa.types.is_boolean(kind) else str) and _is_text(value):
            yield value
    elif isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        # A double has whole numbers of 53 bits.
        if pa.types.is_integer(kind) or abs(value) <= 2**53:
            yield value
    elif isinstance(value, float) and pa.types.is_floating(kind):
        yield value


def _is_text(value: Any) -> bool:
    """Tell whether text can be stored: JSON may hold half of a surrogate pair."""
    return not isinstance(value, str) or not any("\ud800" <= each <= "\udfff" for each in value)


def _moment(value: Any) -> datetime.datetime | None:
    try:
        moment = datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo is not None else None
