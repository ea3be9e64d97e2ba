"""The soak of events in small, and that what judges it finds out those that deserve it."""

from __future__ import annotations

import pytest

from tests.soak_events.judging import Row, Story, violations
from tests.soak_events.site import Plan, Site

POSTGRESQL = Plan(
    *("postgresql", 1500),
    kills=40,
    server_kills=4,
    freezes=3,
    cuts=6,
    wipes=2,
    restarts=1,
    lease=1.0,
    gap=0.15,
)
SQLITE = POSTGRESQL._replace(
    database="sqlite",
    events=400,
    kills=10,
    server_kills=2,
    freezes=2,
    cuts=4,
    wipes=1,
)
NAIVE = Plan(
    *("postgresql", 150),
    kills=3,
    server_kills=1,
    freezes=0,
    cuts=0,
    wipes=1,
    restarts=0,
    lease=1.0,
    gap=0.3,
    naive=True,
)


@pytest.fixture
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("soak")


@pytest.mark.parametrize("plan", [POSTGRESQL, SQLITE], ids=["postgresql", "sqlite"])
def test_every_event_has_its_effect_once_whatever_is_killed(place, plan):
    with Site(plan, 5, place) as site:
        story = site.run()
        told = site.figures(story)

    assert violations(story) == {}, told
    assert site.too_few() == {}, told
    assert site.sent == plan.events
    assert 0 < site.taken_back < plan.events


def test_a_naive_relay_and_naive_consumers_are_found_out(place):
    with Site(NAIVE, 5, place) as site:
        story = site.run()

    assert {"lost", "doubled"} <= violations(story).keys(), site.figures(story)


# -- the judge ----------------------------------------------------------------------------------

SOUND = Story(
    {"mail": "orders", "shelf": "stock"},
    [
        Row("a", "orders", 0, 0, 1),
        Row("b", "orders", 1, 0, 2),
        Row("c", "stock", 0, 1, None),
        Row("d", "stock", 0, 2, None),
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
        ({"waiting": {"in the outbox": 1}}, "stuck"),
        ({"tracebacks": ["Traceback"]}, "confused"),
        ({"ended": ["mail-0 ended with 1"]}, "ended_by_themselves"),
    ],
)
def test_each_kind_of_harm_is_told_by_its_name(changed, found):
    assert list(violations(SOUND._replace(**changed))) == [found]
