"""Events under torture in small; those who deserve it are caught, and what judges them is right."""

from __future__ import annotations

import pathlib

import pytest

from agentbus.torture import nemesis
from agentbus.torture.events import MODE
from agentbus.torture.events.judging import Row, Story, violations
from agentbus.torture.events.plan import DATABASE, Plan, planned
from agentbus.torture.events.running import tortured
from agentbus.torture.order import Order

FAULTS = {
    nemesis.SERVER_KILL: 2,
    nemesis.FREEZE: 1,
    nemesis.CUT: 2,
    nemesis.HALF_OPEN: 1,
    nemesis.LATENCY: 1,
    nemesis.LOST_REPLY: 2,
    nemesis.LOST_REQUEST: 1,
    nemesis.WIPE: 1,
    nemesis.SLOW_DISK: 1,
    nemesis.FULL_MEMORY: 1,
}
SQLITE = Plan(200, {**FAULTS, nemesis.KILL: 6}, 0.2, producers=2, relays=1, each=2, lease=1.0)
POSTGRESQL = Plan(
    *(600, {**FAULTS, nemesis.KILL: 25, DATABASE: 1}, 0.1),
    producers=2,
    relays=2,
    each=1,
    lease=1.0,
)


@pytest.fixture
def order(tmp_path: pathlib.Path) -> Order:
    return Order(seed=5, minutes=1, place=tmp_path)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plan", "database"),
    [(POSTGRESQL, "postgresql"), (SQLITE, "sqlite")],
    ids=lambda one: str(one)[:10],
)
def test_every_event_has_its_effect_once_whatever_goes_wrong(order, plan, database):
    found = tortured(plan, order, database)

    assert found.violations == {}, found
    assert found.too_few == {}, found
    assert found.passed
    assert found.figures["events"] == plan.events
    assert 0 < found.figures["rolled_back"] < plan.events
    assert found.figures["came_again"] > 0


@pytest.mark.parametrize(
    ("control", "harm"),
    [
        ("poll_by_id", "lost"),
        ("mark_first", "lost"),
        ("check_then_act", "doubled"),
        ("unfenced_lease", "doubled"),
    ],
)
def test_a_wrong_part_is_caught(order, control, harm):
    (found,) = MODE.torture(order._replace(control=control))

    assert harm in found.violations, found
    assert found.passed
    assert (found.control, found.too_few) == (control, {})


def test_every_control_is_tried():
    assert set(MODE.controls) == {"poll_by_id", "mark_first", "check_then_act", "unfenced_lease"}


def test_ten_minutes_are_what_a_release_wants(order):
    plan = planned(order._replace(minutes=10))

    assert plan.events == 20_000
    assert plan.faults[nemesis.KILL] == 500
    assert plan.faults[nemesis.SERVER_KILL] == plan.faults[nemesis.FREEZE] == 50
    assert plan.faults[nemesis.CUT] + plan.faults[nemesis.HALF_OPEN] == 100
    assert plan.faults[nemesis.WIPE] == 10


def test_a_short_one_has_each_fault_at_least_once(order):
    assert min(planned(order._replace(minutes=0.01)).faults.values()) == 1


# -- the judge ----------------------------------------------------------------------------------

SOUND = Story(
    {"mail": "orders", "shelf": "stock"},
    [
        Row("a", "orders", "p", 0, 1),
        Row("b", "orders", "q", 0, 2),
        Row("c", "stock", "p", 1, None),
        Row("d", "stock", "p", 2, None),
    ],
    {"mail": ["a", "b"], "shelf": ["c", "d"]},
)


def test_what_is_sound_is_not_blamed():
    assert violations(SOUND) == {}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"effects": {"mail": ["a"], "shelf": ["c", "d"]}}, "lost"),
        ({"effects": {"mail": ["a", "b"]}}, "lost"),
        ({"effects": {"mail": ["a", "b", "a"], "shelf": ["c", "d"]}}, "doubled"),
        ({"effects": {"mail": ["a", "b", "x"], "shelf": ["c", "d"]}}, "rolled_back_and_seen"),
        ({"effects": {"mail": ["a", "b", "c"], "shelf": ["c", "d"]}}, "rolled_back_and_seen"),
        ({"effects": {"mail": ["b", "a"], "shelf": ["c", "d"]}}, "out_of_order"),
        ({"effects": {"mail": ["a", "b"], "shelf": ["d", "c"]}}, "out_of_order"),
        ({"parked": ["a"]}, "parked"),
        ({"acknowledged": ["a", "x"]}, "forgotten"),
        ({"taken_back": ["a", "x"]}, "brought_back"),
        ({"waiting": {"in the outbox": 1}}, "stuck"),
        ({"tracebacks": ["Traceback"]}, "confused"),
        ({"ended": ["mail-0 ended with 1"]}, "ended_by_themselves"),
    ],
)
def test_each_kind_of_harm_is_told_by_its_name(changed, found):
    assert list(violations(SOUND._replace(**changed))) == [found]
