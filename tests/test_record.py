"""Records behave as frozen, slotted dataclasses do."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

import agentbus
from agentbus.core.record import Record
from tests import profiles  # noqa: F401 (loads the profile)


class Point(Record):
    """A place."""

    x: int
    y: int = 0
    label: str | None = None


class Named(Point):
    """A place with a name."""

    name: str = "here"
    _origin: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Twin:
    """What `Point` would be, had it the time."""

    x: int
    y: int = 0
    label: str | None = None


numbers = st.integers()
points = st.tuples(numbers, numbers, st.none() | st.text())


@given(values=points)
def test_a_record_has_its_values(values):
    point = Point(*values)

    assert (point.x, point.y, point.label) == values


@given(values=points)
def test_it_looks_like_its_twin(values):
    assert repr(Point(*values)) == repr(Twin(*values)).replace("Twin(", "Point(")


@given(left=points, right=points)
def test_it_equals_what_its_twin_equals(left, right):
    assert (Point(*left) == Point(*right)) == (Twin(*left) == Twin(*right))
    assert Point(*left) == Point(*left)
    assert hash(Point(*left)) == hash(Point(*left))


def test_it_equals_no_other_type_with_the_same_values():
    assert Point(1) != Twin(1)
    assert Point(1) != Named(1)
    assert Point(1) != (1, 0, None)


@given(values=points)
def test_dataclasses_can_read_it(values):
    point, twin = Point(*values), Twin(*values)

    assert dataclasses.is_dataclass(Point)
    assert dataclasses.is_dataclass(point)
    assert dataclasses.asdict(point) == dataclasses.asdict(twin)
    assert dataclasses.astuple(point) == dataclasses.astuple(twin)
    assert [(f.name, f.default) for f in dataclasses.fields(point)] == [
        (f.name, f.default) for f in dataclasses.fields(twin)
    ]


@given(values=points, y=numbers)
def test_dataclasses_can_replace_in_it(values, y):
    point = Point(*values)

    assert dataclasses.replace(point, y=y) == Point(values[0], y, values[2])
    assert dataclasses.replace(point) == point


def test_replacing_an_unknown_field_is_refused():
    with pytest.raises(TypeError, match="depth"):
        dataclasses.replace(Point(1), depth=2)


def test_asdict_goes_into_records_within_records():
    assert dataclasses.asdict(Point(Point(1), 2)) == {
        "x": {"x": 1, "y": 0, "label": None},
        "y": 2,
        "label": None,
    }


@given(values=points, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_it_survives_pickle_and_copy(values, protocol):
    point = Point(*values)

    assert pickle.loads(pickle.dumps(point, protocol)) == point
    assert copy.copy(point) == point
    assert copy.deepcopy(point) == point


def test_it_cannot_be_changed():
    point = Point(1)

    with pytest.raises(AttributeError, match="frozen"):
        point.x = 2
    with pytest.raises(AttributeError, match="frozen"):
        del point.x
    with pytest.raises(AttributeError):
        point.depth = 3
    assert point == Point(1)


def test_it_has_slots_and_no_dict():
    assert not hasattr(Point(1), "__dict__")
    assert not hasattr(Named(1), "__dict__")


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "'x'"),
        ((), {"y": 1}, "'x'"),
        ((1, 2, "a", 4), {}, "3 values"),
        ((1,), {"x": 2}, "twice"),
        ((1,), {"depth": 2}, "'depth'"),
    ],
)
def test_wrong_arguments_are_refused(args, kwargs, says):
    with pytest.raises(TypeError, match=says):
        Point(*args, **kwargs)
    with pytest.raises(TypeError):
        Twin(*args, **kwargs)


def test_a_default_may_be_none_and_may_be_given_by_name():
    assert Point(1) == Point(x=1, y=0, label=None)
    assert Point(1, label="a") == Point(1, 0, "a")


def test_it_can_be_matched():
    match Point(1, 2, "a"):
        case Point(x, y, label="a"):
            assert (x, y) == (1, 2)
        case _:
            pytest.fail("it did not match")


def test_what_it_carries_along_is_no_part_of_its_value():
    here, there = Named(1, name="n", _origin="a"), Named(1, name="n", _origin="b")

    assert here == there
    assert hash(here) == hash(there)
    assert "_origin" not in repr(here)
    assert "_origin" not in dataclasses.asdict(here)
    assert pickle.loads(pickle.dumps(here)) == here


def test_a_subclass_has_the_fields_of_its_base_first():
    assert Named.__match_args__ == ("x", "y", "label", "name")
    assert Named(1, 2, "a", "n").name == "n"


@pytest.mark.parametrize("name", ["Message", "Note", "Hold", "FlagState", "Completion"])
def test_the_public_values_are_frozen_dataclasses(name):
    value = getattr(agentbus, name)

    assert dataclasses.is_dataclass(value)
    assert value.__doc__


PUBLIC = (
    *("agentbus", "agentbus.acl", "agentbus.aio", "agentbus.backends", "agentbus.errors"),
    *("agentbus.events", "agentbus.pipeline", "agentbus.prometheus", "agentbus.retry"),
    *("agentbus.routing", "agentbus.settings", "agentbus.tasks", "agentbus.testing"),
    *("agentbus.dashboard", "agentbus.loggers", "agentbus.webhook"),
)


@pytest.mark.parametrize("module", PUBLIC)
def test_tools_can_list_the_members_of_public_classes(module):
    public = importlib.import_module(module)
    for name in getattr(public, "__all__", dir(public)):
        value = getattr(public, name)
        if inspect.isclass(value):
            assert inspect.getmembers(value)
