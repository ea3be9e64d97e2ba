"""What changed between the schemas that were agreed on and those of now, and what of it breaks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Schemas = Mapping[tuple[str, str], Any]
    # A path, a reason, and whether it breaks.
    Found = Iterator[tuple[str, str, bool]]

# Words for people, and names of the schema itself: no payload fits more or less because of them.
_NOTES = frozenset(
    {
        *(
            "title",
            "description",
            "default",
            "examples",
            "deprecated",
            "$comment",
            "$id",
            "$schema",
        ),
        # Looked into where something refers to them.
        *("$defs", "definitions"),
    }
)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# Lists of schemas that all speak of the same value.
_BRANCHES = ("allOf", "anyOf", "oneOf")
# Schemas of what no other keyword speaks of; without one anything fits.
_OTHERS = {
    "items": "[*]",
    "additionalItems": "[*]",
    "unevaluatedItems": "[*]",
    "additionalProperties": ".*",
    "unevaluatedProperties": ".*",
}
# What fits more or less of these may fit less or more of the whole: any difference counts.
_CONDITIONS = ("not", "if", "contains", "propertyNames")
_CONDITION_MAPS = ("dependentSchemas", "dependencies")
_LONGEST = 80
_ANYTHING: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A difference between two schemas of an event type; it `breaks` unless it only adds what is optional.

    `path` is a JSON path into the payload (RFC 9535), in which `.*` stands for properties without a name of
    their own.
    """

    stream: str
    event_type: str
    path: str
    reason: str
    breaks: bool = True


def changes(old: Schemas, new: Schemas) -> list[SchemaChange]:
    """Return what breaks old producers or consumers, ordered by stream, event type and property.

    Both are JSON Schemas by stream and event type, as `EventSchemas.schemas` returns them. New event types
    and new optional properties break nothing; everything else does, annotations apart. References within
    a schema are followed, and what several places share is told at the first of them.
    """
    return [each for each in differences(old, new) if each.breaks]


def differences(old: Schemas, new: Schemas) -> list[SchemaChange]:
    """Return what `changes` does, and what was added without breaking anything."""
    found = []
    for key in sorted({*old, *new}):
        if key not in new:
            found.append(SchemaChange(*key, "$", "the event type was removed"))
        elif key not in old:
            found.append(SchemaChange(*key, "$", "the event type is new", breaks=False))
        else:
            walk = _SchemaDiff(old[key], new[key])
            found += [
                SchemaChange(*key, path, reason, breaks)
                for path, reason, breaks in walk.schema(old[key], new[key], _SchemaPath())
            ]
    return found


@dataclass(frozen=True, slots=True)
class _SchemaPath:
    """Where in a payload we are, and in which of several schemas that speak of it."""

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
    """Walks through two schemas side by side; each pair of places once, as references may go in circles."""

    def __init__(self, old: Any, new: Any, *, strict: bool = False) -> None:
        self._roots = old, new
        self._strict = strict
        self._seen: set[tuple[int, int, bool]] = set()

    def schema(self, old: Any, new: Any, at: _SchemaPath, *, closed: bool = False) -> Found:
        """Yield how two schemas of a place differ; `closed` if one around refuses what it cannot name."""
        old, new = (_ANYTHING if each is True else each for each in (old, new))
        if not (isinstance(old, dict) and isinstance(new, dict)):
            if _text(old) != _text(new):
                yield at.says(f"what fits here changed from {_fitting(old)} to {_fitting(new)}")
            return
        pair = (id(old), id(new), closed)
        if pair in self._seen:
            return
        self._seen.add(pair)
        instead = self._instead(old, new)
        if instead is not None:
            yield from self.schema(*instead, at, closed=closed)
            return
        shut = closed or not _open(old.get("unevaluatedProperties", True))
        yield from self._references(old, new, at, shut)
        yield from _types(old, new, at)
        yield from _values(old, new, at)
        yield from self._properties(old, new, at, shut)
        for key in sorted({*old, *new} - _NOTES):
            yield from self._keyword(key, old, new, at, shut)

    def _keyword(self, key: str, old: Any, new: Any, at: _SchemaPath, shut: bool) -> Found:
        before, after = old.get(key), new.get(key)
        if key in {*_REFERENCES, "type", "enum", "const", "properties"} or (
            key == "required" and _lists(before, after)
        ):
            return
        if (key in {*_BRANCHES, "prefixItems"} and _lists(before, after)) or (
            key == "items" and isinstance(before, list) and isinstance(after, list)
        ):
            yield from self._list(key, before or [], after or [], at, shut)
        elif key in _OTHERS and not (isinstance(before, list) or isinstance(after, list)):
            yield from self.schema(old.get(key, True), new.get(key, True), at.below(_OTHERS[key]))
        elif key in ("then", "else"):
            yield from self.schema(
                old.get(key, True), new.get(key, True), at.within(key), closed=shut
            )
        elif key == "patternProperties" and _same_keys(before, after):
            for name in sorted(before):
                place = at.below(".*").within(f"{key}[{json.dumps(name)}]")
                yield from self.schema(before[name], after[name], place)
        elif key in old and key in new and self._alike(key, before, after):
            return
        else:
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

    def _alike(self, key: str, before: Any, after: Any) -> bool:
        """Tell whether a keyword says the same in both schemas, also behind references."""
        if _text(before) == _text(after) and not self._refers(before):
            return True
        if key in _CONDITION_MAPS and _same_keys(before, after):
            return all(self._alike("not", before[name], after[name]) for name in before)
        if key not in _CONDITIONS or isinstance(before, list) or isinstance(after, list):
            return _text(before) == _text(after)
        walk = self if self._strict else _SchemaDiff(*self._roots, strict=True)
        return next(walk.schema(before, after, _SchemaPath()), None) is None

    @staticmethod
    def _refers(value: Any) -> bool:
        return any(f'"{each}"' in _text(value) for each in _REFERENCES)

    def _properties(self, old: Any, new: Any, at: _SchemaPath, shut: bool) -> Found:
        before, after = _map(old, "properties"), _map(new, "properties")
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

    def _instead(self, old: Any, new: Any) -> tuple[Any, Any] | None:
        """Return what to compare where one schema is nothing but a reference, and the other has none."""
        mine, others = _bare(old), _bare(new)
        if mine and not any(each in new for each in _REFERENCES):
            target = _target(self._roots[0], mine)
            return None if target is None else (target, new)
        if others and not any(each in old for each in _REFERENCES):
            target = _target(self._roots[1], others)
            return None if target is None else (old, target)
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
            elif len({_text(_definitions(root)) for root in self._roots}) > 1:
                yield at.says(
                    f"{key} cannot be followed to {_brief(after)}, and definitions changed"
                )


def _bare(node: Any) -> Any:
    """Return the reference of a schema that says nothing else."""
    said = [key for key in node if key not in _NOTES]
    return node[said[0]] if len(said) == 1 and said[0] in _REFERENCES else None


def _target(root: Any, reference: Any) -> Any:
    """Return what a reference leads to within its document, or None."""
    if not isinstance(reference, str):
        return None
    before, hash_, fragment = reference.partition("#")
    if before or not hash_ or (fragment and fragment[0] != "/"):
        return _named(root, reference, fragment)
    found = root
    for step in fragment.split("/")[1:]:
        word = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and word in found:
            found = found[word]
        elif isinstance(found, list) and word.isdecimal() and int(word) < len(found):
            found = found[int(word)]
        else:
            return None
    return found


def _named(node: Any, reference: str, anchor: str) -> Any:
    """Return the part of a document that has a name: an `$id`, or an anchor."""
    inside = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if isinstance(node, dict) and (
        node.get("$id") == reference
        or (
            reference == f"#{anchor}"
            and anchor in (node.get("$anchor"), node.get("$dynamicAnchor"))
        )
    ):
        return node
    found = (_named(each, reference, anchor) for each in inside)
    return next((each for each in found if each is not None), None)


def _definitions(root: Any) -> list[Any]:
    return [root.get(key) for key in ("$defs", "definitions")] if isinstance(root, dict) else []


# -- single keywords -------------------------------------------------------------------------------


def _types(old: Any, new: Any, at: _SchemaPath) -> Found:
    before, after = (
        sorted({each["type"]} if isinstance(each["type"], str) else map(_plain, each["type"]))
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
    """Return the values that fit, as JSON; a constant is an enum of one."""
    if "const" in node:
        return [_text(node["const"])]
    found = node.get("enum")
    if found is None:
        return None
    return sorted({_text(each) for each in (found if isinstance(found, list) else [found])})


def _listed(values: list[str]) -> str:
    return _cut(", ".join(values))


def _open(schema: Any) -> bool:
    """Tell whether a schema of other properties lets all of them pass."""
    return schema is True or (isinstance(schema, dict) and not {*schema} - _NOTES)


def _required(node: Any) -> set[str]:
    found = node.get("required")
    return {each for each in found if isinstance(each, str)} if isinstance(found, list) else set()


def _map(node: Any, key: str) -> dict[str, Any]:
    found = node.get(key)
    return found if isinstance(found, dict) else {}


def _lists(*values: Any) -> bool:
    return all(each is None or isinstance(each, list) for each in values)


def _same_keys(before: Any, after: Any) -> bool:
    return isinstance(before, dict) and isinstance(after, dict) and {*before} == {*after}


def _text(value: Any) -> str:
    # Python takes 1 for True; their texts differ.
    return json.dumps(value, sort_keys=True, default=repr)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else _text(value)


def _brief(value: Any) -> str:
    return _cut(_text(value))


def _fitting(schema: Any) -> str:
    """Say what fits a schema."""
    return "nothing" if schema is False else "anything" if _open(schema) else _brief(schema)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
