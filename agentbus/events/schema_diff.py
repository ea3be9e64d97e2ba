"""Compares event schemas with those that were agreed on, and finds what breaks producers or consumers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import referencing
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Schemas = Mapping[tuple[str, str], Any]
    # A path, a reason, and whether it breaks.
    Found = Iterator[tuple[str, str, bool]]

# Keywords that do not change which payloads are valid; definitions are compared where they are used.
_DEFINITIONS = ("$defs", "definitions")
_ANNOTATIONS = frozenset(
    ["title", "description", "default", "examples", "deprecated", "$comment", "$id", "$schema"]
).union(_DEFINITIONS)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# Lists of schemas for the same value.
_BRANCHES = ("allOf", "anyOf", "oneOf")
# Schemas of what no other keyword covers; the default accepts anything.
_OTHERS = {
    "items": "[*]",
    "additionalItems": "[*]",
    "unevaluatedItems": "[*]",
    "additionalProperties": ".*",
    "unevaluatedProperties": ".*",
}
# A condition that accepts more may make the whole accept less: any difference breaks.
_CONDITIONS = ("not", "if", "contains", "propertyNames")
_CONDITION_MAPS = ("dependentSchemas", "dependencies")
_COMPARED_BY_NAME = frozenset([*_REFERENCES, "type", "enum", "const", "properties"])
_LONGEST = 80
_ANYTHING: dict[str, Any] = {}


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

    Both are JSON Schemas by stream and event type, as `EventSchemas.schemas` returns them. New event types
    and new optional properties do not break anything; all other changes do, except in annotations.
    References within a schema are followed; what several places share is reported at the first of them.
    """
    return [each for each in differences(old, new) if each.breaks]


def differences(old: Schemas, new: Schemas) -> list[SchemaChange]:
    """Return the breaking changes, and the additions that do not break."""
    found = []
    for key in sorted({*old, *new}):
        if key not in new:
            found.append(SchemaChange(*key, "$", "the event type was removed"))
        elif key not in old:
            found.append(SchemaChange(*key, "$", "the event type is new", breaks=False))
        else:
            diff = _SchemaDiff(old[key], new[key])
            found += [
                SchemaChange(*key, path, reason, breaks)
                for path, reason, breaks in diff.schema(old[key], new[key], _SchemaPath())
            ]
    return found


@dataclass(frozen=True, slots=True)
class _SchemaPath:
    """A place in a payload, and which of several schemas for it is being compared."""

    path: str = "$"
    branch: str = ""

    def property(self, name: str) -> _SchemaPath:
        plain = name.isascii() and name.isidentifier()
        return self.below(f".{name}" if plain else f"[{json.dumps(name)}]")

    def below(self, step: str) -> _SchemaPath:
        return _SchemaPath(self.path + step, self.branch)

    def within(self, branch: str) -> _SchemaPath:
        return _SchemaPath(self.path, f"{self.branch}.{branch}" if self.branch else branch)

    def says(self, reason: str, *, breaks: bool = True) -> tuple[str, str, bool]:
        return self.path, f"in {self.branch}: {reason}" if self.branch else reason, breaks


class _SchemaDiff:
    """Walks two schemas side by side; each pair of places once, since references may be circular."""

    def __init__(self, old: Any, new: Any, *, strict: bool = False) -> None:
        self._roots = old, new
        self._strict = strict
        self._seen: set[tuple[int, int, bool]] = set()

    def schema(self, old: Any, new: Any, at: _SchemaPath, *, closed: bool = False) -> Found:
        """Yield how two schemas of a place differ; `closed` if an outer one rejects unnamed properties."""
        old, new = (_ANYTHING if each is True else each for each in (old, new))
        if not (isinstance(old, dict) and isinstance(new, dict)):
            if _text(old) != _text(new):
                yield at.says(f"what fits here changed from {_accepted(old)} to {_accepted(new)}")
            return
        pair = (id(old), id(new), closed)
        if pair in self._seen:
            return
        self._seen.add(pair)
        inlined = self._inlined(old, new)
        if inlined is not None:
            yield from self.schema(*inlined, at, closed=closed)
            return
        shut = closed or not _open(old.get("unevaluatedProperties", True))
        yield from self._references(old, new, at, shut)
        yield from _types(old, new, at)
        yield from _values(old, new, at)
        yield from self._properties(old, new, at, shut)
        for key in sorted({*old, *new} - _ANNOTATIONS - _COMPARED_BY_NAME):
            yield from self._keyword(key, old, new, at, shut)

    def _keyword(self, key: str, old: Any, new: Any, at: _SchemaPath, shut: bool) -> Found:
        before, after = old.get(key), new.get(key)
        lists = all(each is None or isinstance(each, list) for each in (before, after))
        if key == "required" and lists:
            # Reported by property.
            return
        if lists and key in {*_BRANCHES, "prefixItems", "items"}:
            yield from self._list(key, before or [], after or [], at, shut)
        elif key in _OTHERS and not (isinstance(before, list) or isinstance(after, list)):
            yield from self.schema(old.get(key, True), new.get(key, True), at.below(_OTHERS[key]))
        elif key in ("then", "else"):
            place = at.within(key)
            yield from self.schema(old.get(key, True), new.get(key, True), place, closed=shut)
        elif key == "patternProperties" and _same_keys(before, after):
            for name in sorted(before):
                place = at.below(".*").within(f"{key}[{json.dumps(name)}]")
                yield from self.schema(before[name], after[name], place)
        elif not (key in old and key in new and self._equal(key, before, after)):
            said = (_brief(each[key]) if key in each else "nothing" for each in (old, new))
            yield at.says(f"{key} changed from {' to '.join(said)}")

    def _list(
        self, key: str, before: list[Any], after: list[Any], at: _SchemaPath, shut: bool
    ) -> Found:
        if len(before) != len(after):
            yield at.says(f"{key} has {len(after)} schemas, and had {len(before)}")
            return
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            if key in _BRANCHES:
                yield from self.schema(one, other, at.within(f"{key}[{index}]"), closed=shut)
            else:
                yield from self.schema(one, other, at.below(f"[{index}]"))

    def _equal(self, key: str, before: Any, after: Any) -> bool:
        """Tell whether a keyword means the same in both schemas, including what it refers to."""
        if key in _CONDITION_MAPS and _same_keys(before, after):
            return all(self._equal("not", before[name], after[name]) for name in before)
        if key not in _CONDITIONS or isinstance(before, list) or isinstance(after, list):
            return _text(before) == _text(after)
        diff = self if self._strict else _SchemaDiff(*self._roots, strict=True)
        return next(diff.schema(before, after, _SchemaPath()), None) is None

    def _properties(self, old: Any, new: Any, at: _SchemaPath, shut: bool) -> Found:
        before, after = (
            each["properties"] if isinstance(each.get("properties"), dict) else {}
            for each in (old, new)
        )
        needed, needs = _required(old), _required(new)
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
                if shut or others is False:
                    yield place.says("it is new, and old consumers refuse what they do not know")
                elif not _open(others):
                    yield from self.schema(others, after[name], place)
                if name not in needs:
                    yield place.says("it is new and optional", breaks=False)

    # -- references --------------------------------------------------------------------------------

    def _inlined(self, old: Any, new: Any) -> tuple[Any, Any] | None:
        """Return what to compare where one schema is only a reference, and the other has none."""
        for root, one, other in ((self._roots[0], old, new), (self._roots[1], new, old)):
            said = [key for key in one if key not in _ANNOTATIONS]
            if len(said) == 1 and said[0] in _REFERENCES and not {*other} & {*_REFERENCES}:
                target = _target(root, one[said[0]])
                if target is None:
                    return None
                return (target, other) if one is old else (other, target)
        return None

    def _references(self, old: Any, new: Any, at: _SchemaPath, shut: bool) -> Found:
        for key in _REFERENCES:
            before, after = old.get(key), new.get(key)
            if before is None and after is None:
                continue
            here, there = _target(self._roots[0], before), _target(self._roots[1], after)
            if here is not None and there is not None:
                yield from self.schema(here, there, at, closed=shut)
            elif before != after:
                said = ("nothing" if each is None else _brief(each) for each in (before, after))
                yield at.says(f"{key} changed from {' to '.join(said)}")
            elif (
                len({_text([root.get(each) for each in _DEFINITIONS]) for root in self._roots}) > 1
            ):
                yield at.says(
                    f"{key} cannot be followed to {_brief(after)}, and definitions changed"
                )


def _target(root: Any, reference: Any) -> Any:
    """Return the part of a document that a reference leads to, or None."""
    if not isinstance(reference, str):
        return None
    document = DRAFT202012.create_resource(root)
    try:
        return referencing.Registry().resolver_with_root(document).lookup(reference).contents
    except Unresolvable:
        return None


# -- single keywords -------------------------------------------------------------------------------


def _types(old: Any, new: Any, at: _SchemaPath) -> Found:
    before, after = (
        sorted({each["type"]} if isinstance(each["type"], str) else map(str, each["type"]))
        if isinstance(each.get("type"), (str, list))
        else ["anything"]
        for each in (old, new)
    )
    if before != after:
        yield at.says(f"its type changed from {' or '.join(before)} to {' or '.join(after)}")


def _values(old: Any, new: Any, at: _SchemaPath) -> Found:
    before, after = (_allowed(each) for each in (old, new))
    if before is None and after is None:
        return
    if before is None:
        yield at.says(f"its values are limited now, to {_listed(after or [])}")
    elif after is None:
        yield at.says(f"its values are no longer limited to {_listed(before)}")
    else:
        for did, more, less in (("added", after, before), ("removed", before, after)):
            if more := [each for each in more if each not in less]:
                yield at.says(f"enum values were {did}: {_listed(more)}")


def _allowed(node: Any) -> list[str] | None:
    """Return the allowed values as JSON; a constant is an enum of one."""
    found = [node["const"]] if "const" in node else node.get("enum")
    if found is None:
        return None
    return sorted({_text(each) for each in (found if isinstance(found, list) else [found])})


def _open(schema: Any) -> bool:
    """Tell whether a schema of other properties accepts all of them."""
    return schema is True or (isinstance(schema, dict) and not {*schema} - _ANNOTATIONS)


def _required(node: Any) -> set[str]:
    found = node.get("required")
    return {each for each in found if isinstance(each, str)} if isinstance(found, list) else set()


def _same_keys(before: Any, after: Any) -> bool:
    return isinstance(before, dict) and isinstance(after, dict) and {*before} == {*after}


def _text(value: Any) -> str:
    # Python takes 1 for True; their texts differ.
    return json.dumps(value, sort_keys=True, default=repr)


def _listed(values: list[str]) -> str:
    return _cut(", ".join(values))


def _brief(value: Any) -> str:
    return _cut(_text(value))


def _accepted(schema: Any) -> str:
    return "nothing" if schema is False else "anything" if _open(schema) else _brief(schema)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
