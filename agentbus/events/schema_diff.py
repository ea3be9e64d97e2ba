"""Compares event schemas with the accepted ones, and finds changes that break programs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import referencing
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Schemas = Mapping[tuple[str, str], Any]
    # A path, a reason, and whether the difference breaks consumers.
    Found = Iterator[tuple[str, str, bool]]

# Keywords that do not change which payloads are valid; definitions are compared where they are used.
_DEFINITIONS = ("$defs", "definitions")
_ANNOTATIONS = frozenset(
    ["title", "description", "default", "examples", "deprecated", "$comment", "$id", "$schema"]
).union(_DEFINITIONS)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# Keywords with a list of schemas: True if all apply to the same value, False for elements of an
# array.
_LISTS = {"allOf": True, "anyOf": True, "oneOf": True, "prefixItems": False, "items": False}
# Keywords with one schema, and the part of the value to which it applies; the default accepts
# anything.
_PARTS = {
    "items": "[*]",
    "additionalItems": "[*]",
    "unevaluatedItems": "[*]",
    "additionalProperties": ".*",
    "unevaluatedProperties": ".*",
    **dict.fromkeys(("then", "else", *_REFERENCES), ""),
}
# A condition that accepts more may make the whole schema accept less: any difference breaks.
_CONDITIONS = ("not", "if", "contains", "propertyNames")
# Keywords that map names to schemas: for a part of the value, or as conditions.
_MAPS = {"patternProperties": ".*", "dependentSchemas": "", "dependencies": ""}
_LONGEST = 80


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A difference between two schemas of an event type; it `breaks` unless it only adds optional parts.

    `path` is a JSON path into the payload (RFC 9535); `.*` stands for properties that the schema does not
    name.
    """

    stream: str
    event_type: str
    path: str
    reason: str
    breaks: bool = True


def changes(old: Schemas, new: Schemas) -> list[SchemaChange]:
    """Return the breaking changes, ordered by stream, event type and property.

    Both are JSON Schemas by stream and event type, as `EventSchemas.schemas` returns them. New
    event types and new optional properties do not break anything; all other changes do, except in
    annotations. References within a schema are followed; a change shared by several places is
    reported at the first of them.
    """
    return [each for each in differences(old, new) if each.breaks]


def differences(old: Schemas, new: Schemas) -> list[SchemaChange]:
    """Return the breaking changes, and the additions that do not break."""
    reported = []
    for key in sorted({*old, *new}):
        if key not in new:
            reported.append(SchemaChange(*key, "$", "the event type was removed"))
        elif key not in old:
            reported.append(SchemaChange(*key, "$", "the event type is new", breaks=False))
        else:
            diff = _SchemaDiff(old[key], new[key]).schema(old[key], new[key], _Place())
            reported += [SchemaChange(*key, path, reason, breaks) for path, reason, breaks in diff]
    return reported


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in a payload, and the position in the schemas that are compared for it.

    It is `closed` if an outer schema rejects unnamed properties; where it is `strict`, additions break.
    """

    path: str = "$"
    branch: str = ""
    closed: bool = False
    strict: bool = False

    def property(self, name: str) -> _Place:
        plain = name.isascii() and name.isidentifier()
        return self.below(f".{name}" if plain else f"[{json.dumps(name)}]")

    def below(self, step: str) -> _Place:
        return replace(self, path=self.path + step, closed=False)

    def within(self, branch: str, *, strict: bool = False) -> _Place:
        branch = f"{self.branch}.{branch}" if self.branch else branch
        return replace(self, branch=branch, strict=self.strict or strict)

    def says(self, reason: str, *, breaks: bool = True) -> tuple[str, str, bool]:
        reason = f"in {self.branch}: {reason}" if self.branch else reason
        return self.path, reason, breaks or self.strict


class _SchemaDiff:
    """Walks two schemas in parallel, each pair of places once, since references may be circular."""

    def __init__(self, old: Any, new: Any) -> None:
        self._roots = old, new
        self._seen: set[tuple[int, int, bool, bool]] = set()

    def schema(self, old: Any, new: Any, at: _Place) -> Found:
        """Yield the differences between two schemas of a place."""
        pair = (id(old), id(new), at.closed, at.strict)
        if pair in self._seen:
            return
        self._seen.add(pair)
        here, there = map(_followed, self._roots, (old, new))
        if here is not old or there is not new:
            yield from self.schema(here, there, at)
            return
        old, new = _plain(old), _plain(new)
        if not (isinstance(old, dict) and isinstance(new, dict)):
            if _text(old) != _text(new):
                yield at.says(f"what fits here changed from {_accepted(old)} to {_accepted(new)}")
            return
        if not _open(old.get("unevaluatedProperties", True)):
            at = replace(at, closed=True)
        yield from self._properties(old, new, at)
        for key in sorted({*old, *new} - {"properties"}):
            yield from self._keyword(key, old, new, at)

    def _keyword(self, key: str, old: Any, new: Any, at: _Place) -> Found:
        before, after = (
            _target(root, each[key]) if key in _REFERENCES and key in each else each.get(key)
            for root, each in zip(self._roots, (old, new), strict=True)
        )
        lists = [each for each in (before, after) if isinstance(each, list)]
        maps = isinstance(before, dict) and isinstance(after, dict)
        if key == "required" and lists:
            # `_properties` reports each required property by itself.
            return
        if key in _LISTS and len(lists) == 2 and len(before) == len(after):
            for index, pair in enumerate(zip(before, after, strict=True)):
                step = f"[{index}]"
                place = at.within(key + step) if _LISTS[key] else at.below(step)
                yield from self.schema(*pair, place)
        elif key in _PARTS and not lists:
            place = at.below(_PARTS[key]) if _PARTS[key] else at.within(key)
            first, second = (True if each is None else each for each in (before, after))
            yield from self.schema(first, second, place)
        elif key in _CONDITIONS and key in old and key in new and not lists:
            yield from self.schema(before, after, at.within(key, strict=True))
        elif key in _MAPS and maps and {*before} == {*after}:
            for name in sorted(before):
                place = at.within(f"{key}[{json.dumps(name)}]", strict=not _MAPS[key])
                yield from self.schema(before[name], after[name], place.below(_MAPS[key]))
        elif _text(before) != _text(after):
            said = ("nothing" if each is None else _brief(each) for each in (before, after))
            yield at.says(f"{key} changed from {' to '.join(said)}")

    def _properties(self, old: Any, new: Any, at: _Place) -> Found:
        before, after = (_value(each, "properties", dict) for each in (old, new))
        needed, needs = ({*_value(each, "required", list)} for each in (old, new))
        others = old.get("additionalProperties", True)
        for name in sorted({*before, *after, *needed, *needs}):
            place = at.property(name)
            if name in before and name not in after:
                yield place.says("the property was removed")
                continue
            if name in needs - needed:
                yield place.says("it is newly required")
            elif name in needed - needs:
                yield place.says("it is no longer required")
            if name in before:
                yield from self.schema(before[name], after[name], place)
            elif name in after and name in needed:
                yield from self.schema(True, after[name], place)
            elif name in after:
                if at.closed or others is False:
                    yield place.says("it is new, and old consumers refuse what they do not know")
                elif not _open(others):
                    yield from self.schema(others, after[name], place)
                if name not in needs:
                    yield place.says("it is new and optional", breaks=False)


def _followed(root: Any, schema: Any) -> Any:
    """Return the target of a schema that is only a reference; otherwise the schema itself."""
    said = [*{*schema} - _ANNOTATIONS] if isinstance(schema, dict) else []
    if len(said) != 1 or said[0] not in _REFERENCES:
        return schema
    target = _target(root, schema[said[0]])
    return schema if isinstance(target, list) else target


def _target(root: Any, reference: Any) -> Any:
    """Return the part of a document that a reference leads to.

    For a reference that cannot be followed, return a list of everything it may depend on.
    """
    document = DRAFT202012.create_resource(root)
    try:
        return referencing.Registry().resolver_with_root(document).lookup(reference).contents
    except (AttributeError, Unresolvable):
        return [reference, *(root[each] for each in _DEFINITIONS if each in root)]


def _plain(schema: Any) -> Any:
    """Return a schema without annotations, in a normal form for equivalent schemas."""
    if not isinstance(schema, dict):
        return {} if schema is True else schema
    plain = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
    if "const" in plain:
        plain["enum"] = [plain.pop("const")]
    for key in ("enum", "type"):
        if isinstance(plain.get(key), list):
            plain[key] = sorted(plain[key], key=_text)
    if isinstance(plain.get("type"), list) and len(plain["type"]) == 1:
        (plain["type"],) = plain["type"]
    return plain


def _value(node: Any, key: str, kind: type[Any]) -> Any:
    value = node.get(key)
    return value if isinstance(value, kind) else kind()


def _open(schema: Any) -> bool:
    """Tell whether a schema of additional properties accepts every value."""
    return _text(_plain(schema)) == "{}"


def _text(value: Any) -> str:
    # Compare texts: in Python, 1 equals True.
    return json.dumps(value, sort_keys=True, default=repr)


def _brief(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _accepted(schema: Any) -> str:
    return "nothing" if schema is False else _brief(schema) if schema else "anything"
