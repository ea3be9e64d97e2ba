"""Which changes of a schema break old producers or consumers, and where they are told."""

from __future__ import annotations

import copy
import json
from typing import Any, Literal

import pydantic
import pytest
from hypothesis import given, strategies as st

from agentbus.events import EventSchemas
from agentbus.events.schema_diff import SchemaChange, changes, differences
from tests import profiles

KEY = ("shop", "Placed")
ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order": {"type": "integer"},
        "state": {"enum": ["new", "paid"]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
    },
    "required": ["order"],
    "$defs": {
        "line": {"type": "object", "properties": {"sku": {"type": "string", "maxLength": 9}}}
    },
}


def found(old: Any, new: Any) -> list[tuple[str, str]]:
    """Return the path and the reason of what breaks between two schemas."""
    return [(each.path, each.reason) for each in changes({KEY: old}, {KEY: new})]


def edited(*path: str, **values: Any) -> dict[str, Any]:
    """Return the order's schema with other values somewhere in it; None takes one away."""
    made = copy.deepcopy(ORDER)
    at = made
    for step in path:
        at = at[step]
    for key, value in values.items():
        if value is None:
            del at[key]
        else:
            at[key] = value
    return made


# -- one by one ---------------------------------------------------------------------------------


def test_event_types_may_come_but_not_go():
    old = {("shop", "Placed"): ORDER, ("shop", "Gone"): {}}
    new = {("shop", "Placed"): ORDER, ("mail", "Sent"): {}}

    assert changes(old, new) == [SchemaChange("shop", "Gone", "$", "the event type was removed")]
    assert differences(old, new)[0] == SchemaChange(
        "mail", "Sent", "$", "the event type is new", breaks=False
    )


LINE = ("$defs", "line", "properties")


@pytest.mark.parametrize(
    ("new", "path", "reason"),
    [
        (edited("properties", state=None), "$.state", "the property was removed"),
        (edited(required=["order", "state"]), "$.state", "it is newly required"),
        (edited(required=None), "$.order", "it is no longer required"),
        (
            edited("properties", order={"type": "string"}),
            "$.order",
            'type changed from "integer" to "string"',
        ),
        (
            edited("properties", order={"type": ["integer", "null"]}),
            "$.order",
            'type changed from "integer" to ["integer", "null"]',
        ),
        (
            edited("properties", "state", enum=["new", "paid", "sent"]),
            "$.state",
            'enum changed from ["new", "paid"] to ["new", "paid", "sent"]',
        ),
        (
            edited("properties", "state", enum=["new"]),
            "$.state",
            'enum changed from ["new", "paid"] to ["new"]',
        ),
        (
            edited("properties", "state", enum=None),
            "$.state",
            'enum changed from ["new", "paid"] to nothing',
        ),
        (
            edited("properties", "order", enum=[1, 2]),
            "$.order",
            "enum changed from nothing to [1, 2]",
        ),
        (
            edited(*LINE, "sku", maxLength=8),
            "$.lines[*].sku",
            "maxLength changed from 9 to 8",
        ),
        (
            edited(*LINE, "sku", pattern="^A"),
            "$.lines[*].sku",
            'pattern changed from nothing to "^A"',
        ),
        (
            edited(*LINE, "sku", maxLength=None),
            "$.lines[*].sku",
            "maxLength changed from 9 to nothing",
        ),
        (
            edited(additionalProperties=False),
            "$.*",
            "what fits here changed from anything to nothing",
        ),
        (
            edited("properties", order={"$ref": "https://example.org/order"}),
            "$.order",
            (
                '$ref changed from nothing to ["https://example.org/order", {"line": {"properties": {"sku":'
                ' {"maxLength": 9, …'
            ),
        ),
    ],
)
def test_what_breaks_is_told_where_it_is(new, path, reason):
    assert (path, reason) in found(ORDER, new)
    if reason.startswith(("the property", "it ", "enum", "type", "maxLength")):
        assert len(found(ORDER, new)) == 1


def test_a_new_property_that_must_be_given_is_told_once():
    new = edited("properties", when={"type": "string"})
    new["required"] = ["order", "when"]

    assert found(ORDER, new) == [("$.when", "it is newly required")]


@pytest.mark.parametrize("keyword", ["additionalProperties", "unevaluatedProperties"])
def test_old_consumers_refuse_a_new_property_where_their_schema_is_closed(keyword):
    new = edited("properties", note={"type": "string"})
    shut = "it is new, and old consumers refuse what they do not know"

    assert found({**ORDER, keyword: False}, {**new, keyword: False}) == [("$.note", shut)]
    assert found(ORDER, new) == []


def test_a_schema_that_refuses_what_its_parts_do_not_name_closes_them_too():
    def closed(part: Any) -> Any:
        return {"allOf": [part], "unevaluatedProperties": False}

    new = edited("properties", note={"type": "string"})
    # Inside of a property it is another object, which nobody closed.
    inner = edited(*LINE, note={"type": "string"})

    assert [path for path, _ in found(closed(ORDER), closed(new))] == ["$.note"]
    assert found(closed(ORDER["$defs"]["line"]), closed(ORDER["$defs"]["line"])) == []
    assert (
        found({**ORDER, "unevaluatedProperties": False}, {**inner, "unevaluatedProperties": False})
        == []
    )


def test_a_new_property_must_be_what_other_properties_had_to_be():
    old = {"additionalProperties": {"type": "string"}}

    assert found(old, {**old, "properties": {"a": {"type": "string"}}}) == []
    assert found(old, {**old, "properties": {"a": {"type": "integer"}}}) == [
        ("$.a", 'type changed from "string" to "integer"')
    ]


@pytest.mark.parametrize(
    "note", ["title", "description", "default", "examples", "deprecated", "$comment", "$id"]
)
def test_annotations_do_not_count_but_properties_of_their_names_do(note):
    assert found(ORDER, {**ORDER, note: "other"}) == []
    assert found({"properties": {note: {}}}, {"properties": {}}) != []


def test_equal_things_that_are_written_otherwise_are_equal():
    assert found({"type": "string"}, {"type": ["string"]}) == []
    assert found({"const": "a"}, {"enum": ["a"]}) == []
    assert found({"enum": [1, "b"]}, {"enum": ["b", 1]}) == []
    assert found({"items": True}, {}) == []
    inline = edited("properties", "lines", items=ORDER["$defs"]["line"])
    assert found(ORDER, inline) == found(inline, ORDER) == []


def test_true_is_not_one():
    assert found({"enum": [1]}, {"enum": [True]}) != []
    assert found({"const": 0}, {"const": False}) != []


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
def test_alternatives_are_compared_in_their_order(keyword):
    line = {"properties": {"a": {"type": "string"}}}
    old = {keyword: [{"type": "null"}, line]}
    worse = {keyword: [{"type": "null"}, {"properties": {"a": {"type": "integer"}}}]}
    more = {keyword: [{"type": "null"}, {"properties": {**line["properties"], "b": {}}}]}

    assert found(old, worse) == [
        ("$.a", f'in {keyword}[1]: type changed from "string" to "integer"')
    ]
    assert found(old, more) == []
    (fewer,) = found(old, {keyword: [{"type": "null"}]})
    assert fewer[0] == "$"
    assert fewer[1].endswith('to [{"type": "null"}]')
    assert found(old, {}) == [
        ("$", f"{keyword} changed from {json.dumps(old[keyword])} to nothing")
    ]


@pytest.mark.parametrize("keyword", ["not", "if", "contains", "propertyNames"])
def test_in_a_condition_every_difference_counts_also_behind_a_reference(keyword):
    def schema(line: Any) -> Any:
        return {keyword: {"$ref": "#/$defs/line"}, "$defs": {"line": line}}

    old = schema({"properties": {"a": {}}})

    assert found(old, schema({"properties": {"a": {"title": "A"}}})) == []
    assert len(found(old, schema({"properties": {"a": {}, "b": {}}}))) == 1


def test_tuples_and_patterns_are_looked_into():
    assert found({"prefixItems": [{"type": "null"}]}, {"prefixItems": [{"type": "string"}]}) == [
        ("$[0]", 'type changed from "null" to "string"')
    ]
    assert found({"items": [{}]}, {"items": [{}, {}]}) == [
        ("$", "items changed from [{}] to [{}, {}]")
    ]
    assert len(found({"items": [{}]}, {"items": {}})) == 1
    assert found({"patternProperties": {"^a": {}}}, {"patternProperties": {"^a": False}}) == [
        ("$.*", 'in patternProperties["^a"]: what fits here changed from anything to nothing')
    ]


def test_names_that_are_no_words_are_quoted_in_paths():
    old = {"properties": {"a b": {}, "ü'\n": {}}}

    assert [path for path, _ in found(old, {})] == ['$["a b"]', '$["\\u00fc\'\\n"]']


# -- references -----------------------------------------------------------------------------------


def tree(value: str, reference: str = "#/$defs/node") -> dict[str, Any]:
    """Return a schema that refers to itself."""
    node = {
        "$anchor": "node",
        "properties": {"value": {"type": value}, "next": {"$ref": reference}},
    }
    return {"$ref": reference, "$defs": {"node": node}}


@pytest.mark.parametrize("reference", ["#/$defs/node", "#node", "#/%24defs/node"])
def test_references_in_circles_end(reference):
    assert found(tree("string", reference), tree("string", reference)) == []
    assert found(tree("string", reference), tree("null", reference)) == [
        ("$.value", 'type changed from "string" to "null"')
    ]


def test_circles_end_wherever_they_are():
    itself = {"$ref": "#"}
    refuses = {"not": {"$ref": "#"}}
    rolled, unrolled = tree("string"), tree("string")
    for each in (rolled, unrolled):
        del each["$defs"]["node"]["$anchor"]
    unrolled["$defs"]["node"]["properties"]["next"] = {
        "properties": {"value": {"type": "string"}, "next": {"$ref": "#"}}
    }

    for schema in (itself, refuses, unrolled):
        assert found(schema, copy.deepcopy(schema)) == []
    assert found(itself, {}) == []
    assert found(rolled, unrolled) == []


def test_what_a_reference_leads_to_counts_wherever_it_lies():
    old = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}

    assert found(old, {"$ref": "#/$defs/b", "$defs": {"b": {"type": "string"}}}) == []
    assert len(found(old, {"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}})) == 1
    # Nobody refers to it.
    assert found(old, {**old, "$defs": {**old["$defs"], "c": {}}}) == []
    beside = {**old, "minLength": 3}
    assert found(beside, {**beside, "minLength": 4}) == [("$", "minLength changed from 3 to 4")]


def test_a_reference_out_of_the_schema_must_stay_and_so_must_its_definitions():
    old = {"$ref": "other.json", "$defs": {"a": {"type": "string"}}}

    assert found(old, copy.deepcopy(old)) == []
    assert len(found(old, {**old, "$ref": "else.json"})) == 1
    assert len(found(old, {**old, "$defs": {"a": {}}})) == 1


# -- models ---------------------------------------------------------------------------------------


class Address(pydantic.BaseModel):
    street: str


class Order(pydantic.BaseModel):
    """An order as it was agreed on."""

    order: int
    state: Literal["new"] = "new"
    address: Address | None = None
    parts: list[Order] = []


def later(**fields: Any) -> Any:
    """Return the order's model with other fields."""
    usual: dict[str, Any] = {
        "order": (int, ...),
        "state": (Literal["new"], "new"),
        "address": (Address | None, None),
        "parts": (list[Order], []),
    }
    return pydantic.create_model("Later", **{**usual, **fields})


def of_models(old: Any, new: Any) -> list[tuple[str, str]]:
    read = []
    for model in (old, new):
        known = EventSchemas()
        known.register(*KEY, model)
        read.append(known.schemas())
    return [(each.path, each.reason) for each in changes(*read)]


class Fuller(Address):
    zip: str | None = None


class Stricter(Address):
    zip: str


def test_models_may_gain_optional_fields_at_any_depth():
    assert of_models(Order, later()) == []
    assert of_models(Order, later(note=(str, ""))) == []
    assert of_models(Order, later(address=(Fuller | None, None))) == []


def test_what_breaks_in_models_is_found_at_any_depth():
    assert of_models(Order, later(note=(str, ...))) == [("$.note", "it is newly required")]
    assert of_models(Order, later(address=(Stricter | None, None))) == [
        ("$.address.zip", "in anyOf[0]: it is newly required")
    ]
    assert of_models(Order, later(state=(Literal["new", "paid"], "new"))) == [
        ("$.state", 'enum changed from ["new"] to ["new", "paid"]')
    ]


# -- any schema -----------------------------------------------------------------------------------

_names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=4)
_scalars = st.one_of(
    st.sampled_from(["string", "integer", "boolean", "null"]).map(lambda kind: {"type": kind}),
    st.just(True),
    st.just({}),
    st.lists(st.integers(0, 9), min_size=1, unique=True).map(lambda some: {"enum": some}),
    st.integers(0, 9).map(lambda least: {"type": "integer", "minimum": least}),
    st.just({"$ref": "#"}),
)


def _objects(inner: Any, least: int = 0) -> Any:
    def build(properties: dict[str, Any], closed: bool, data: list[str]) -> dict[str, Any]:
        made: dict[str, Any] = {"type": "object", "properties": properties}
        if closed:
            made["additionalProperties"] = False
        if needed := sorted({*data} & {*properties}):
            made["required"] = needed
        return made

    properties = st.dictionaries(_names, inner, min_size=least, max_size=4)
    return properties.flatmap(
        lambda some: st.builds(
            build,
            st.just(some),
            st.booleans(),
            st.lists(st.sampled_from(sorted(some))) if some else st.just([]),
        )
    )


_schemas = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        _objects(inner),
        inner.map(lambda one: {"type": "array", "items": one}),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some}),
    ),
    max_leaves=8,
)
_roots = _objects(_schemas, least=1)


def objects(schema: Any) -> list[dict[str, Any]]:
    """Return all schemas of objects within one, itself too."""
    if isinstance(schema, list):
        return [one for each in schema for one in objects(each)]
    if not isinstance(schema, dict):
        return []
    inside = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    mine = [schema] if schema.get("type") == "object" else []
    return mine + objects(inside) + objects(schema.get("items"))


def _remove(one: dict[str, Any], name: str) -> None:
    del one["properties"][name]
    one["required"] = [each for each in one.get("required", ()) if each != name]


def _toggle(one: dict[str, Any], name: str) -> None:
    one["required"] = sorted({*one.get("required", ())} ^ {name})


def _retype(one: dict[str, Any], name: str) -> None:
    one["properties"][name] = {"type": "number"}


def _lengthen(one: dict[str, Any], name: str) -> None:
    old = one["properties"][name]
    one["properties"][name] = {**(old if isinstance(old, dict) else {}), "maxLength": 99}


def _limit(one: dict[str, Any], name: str) -> None:
    old = one["properties"][name]
    values = old.get("enum", []) if isinstance(old, dict) else []
    one["properties"][name] = {**(old if isinstance(old, dict) else {}), "enum": [*values, "more"]}


def _close(one: dict[str, Any], name: str) -> None:
    if one.pop("additionalProperties", None) is None:
        one["additionalProperties"] = False


def _add_to_closed(one: dict[str, Any], name: str) -> None:
    if "additionalProperties" not in one:
        one["additionalProperties"] = False
    one["properties"]["a longer name"] = {}


@profiles.times(0.5)
@given(_roots)
def test_equal_schemas_differ_in_nothing(schema):
    again = json.loads(json.dumps(schema))

    assert differences({KEY: schema}, {KEY: again}) == []


@profiles.times(0.5)
@given(_roots, _schemas, st.data())
def test_an_optional_property_may_be_added_to_any_open_object(schema, added, data):
    new = copy.deepcopy(schema)
    one = data.draw(st.sampled_from(objects(new)))
    if one.pop("additionalProperties", None) is not None:
        # Open before, too.
        at = [id(each) for each in objects(new)].index(id(one))
        del objects(schema)[at]["additionalProperties"]
    one["properties"]["a longer name"] = added

    assert changes({KEY: schema}, {KEY: new}) == []
    assert differences({KEY: schema}, {KEY: new}) != []


@pytest.mark.parametrize(
    "mutate", [_remove, _toggle, _retype, _lengthen, _limit, _close, _add_to_closed]
)
@profiles.times(0.25)
@given(schema=_roots, data=st.data())
def test_what_breaks_is_found_wherever_it_is(mutate, schema, data):
    new = copy.deepcopy(schema)
    one = data.draw(st.sampled_from([each for each in objects(new) if each["properties"]]))
    mutate(one, data.draw(st.sampled_from(sorted(one["properties"]))))

    assert changes({KEY: schema}, {KEY: new}) != []
