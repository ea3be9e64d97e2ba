"""Thresholds: which one holds for what, and what a mistake in the config is told as."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentbus.admin.health.thresholds import CHECKS, Levels, Thresholds
from agentbus.errors import ConfigError

FIGURES = st.floats(min_value=0, max_value=1e9) | st.integers(0, 10**9)


def levels(given: dict[Any, Any], check: str, queue: str | None = None) -> Levels:
    return Thresholds(given, "bus.yaml").levels(check, queue)


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ("stream_length", (2, 5)),
        ("pending", (50, 200)),
        ("idle", (300, 900)),
        ("lag", (100, 500)),
        ("lag_ms", (60_000, 300_000)),
        ("lag_events", (10_000, None)),
        ("silent", (None, 300)),
        ("memory", (0.8, 0.95)),
        ("clock", (1, 30)),
    ],
)
def test_what_is_not_set_is_as_the_seeds_say(check: str, expected: tuple[Any, Any]) -> None:
    assert levels({}, check) == Levels(*expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, 2], (1, 2)),
        ([1.5, 1.5], (1.5, 1.5)),
        ([0, "off"], (0, None)),
        ([False, 7], (None, 7)),
        (["off", False], (None, None)),
        ("off", (None, None)),
        (False, (None, None)),
        (["5m", "1h"], (300, 3600)),
        (["90", "1.5h"], (90, 5400)),
    ],
)
def test_a_threshold_is_a_pair_either_of_which_may_be_off(
    value: Any, expected: tuple[Any, Any]
) -> None:
    assert levels({"idle": value}, "idle") == Levels(*expected)


@pytest.mark.parametrize(
    "value",
    [
        *(5, True, None, "5m", [], [1], [1, 2, 3], [2, 1], [-1, 2], [1, True], [1, "x"]),
        *([1, None], {"warning": 1}, [float("nan"), 1], [1, float("inf")], [[1], 2]),
    ],
)
def test_what_is_no_threshold_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"bus\.yaml: 'health\.lag' is \S.*; give \["):
        Thresholds({"lag": value}, "bus.yaml")


def test_only_times_are_durations() -> None:
    with pytest.raises(ConfigError, match=r"'health\.lag' is"):
        Thresholds({"lag": ["5m", "6m"]}, "bus.yaml")


@pytest.mark.parametrize("value", [[1, 2], 1, "loud", None, True])
def test_a_state_is_warning_critical_or_off(value: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"'health\.eviction' is .*; give one of warning, critical, off"
    ):
        Thresholds({"eviction": value}, "bus.yaml")


@pytest.mark.parametrize(
    ("value", "expected"),
    [("warning", "warning"), ("critical", "critical"), ("off", None), (False, None)],
)
def test_a_state_is_as_severe_as_the_config_says(value: Any, expected: str | None) -> None:
    found = Thresholds({"eviction": value}, "bus.yaml")

    assert found.severity("eviction", "critical") == expected
    assert found.severity("persistence", "critical") == "critical"


def test_an_unknown_check_is_told_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"the key 'xyz' of 'health' is unknown") as refusal:
        Thresholds({"xyz": "off"}, "bus.yaml")

    assert all(check in str(refusal.value.hint) for check in CHECKS)


def test_a_queue_has_thresholds_of_queues_alone() -> None:
    with pytest.raises(ConfigError, match=r"'clock' of 'health' of the queue 'mail' is unknown"):
        Thresholds({"queues": {"mail": {"clock": "off"}}}, "bus.yaml")


@pytest.mark.parametrize("queues", [[], {5: {}}, {"mail.*": {}}, {"mail": [1]}, {"": {}}])
def test_what_names_no_queues_is_refused(queues: Any) -> None:
    with pytest.raises(ConfigError):
        Thresholds({"queues": queues}, "bus.yaml")


def test_the_longest_prefix_counts_and_leaves_open_what_it_does_not_set() -> None:
    given = {
        "lag": [1, 1],
        "pending": [1, 1],
        "idle": [1, 1],
        "queues": {"*": {"lag": [2, 2]}, "a": {"pending": [3, 3]}, "a.b": {"lag": [4, 4]}},
    }

    found = [levels(given, check, "a.b.c").warning for check in ("lag", "pending", "idle")]

    assert found == [4, 3, 1]
    assert levels(given, "lag", "a.bc").warning == 2
    assert levels(given, "lag").warning == 1


def test_an_empty_section_sets_nothing() -> None:
    assert levels({"queues": None}, "lag", "mail") == levels({}, "lag")


@given(FIGURES, FIGURES, FIGURES)
def test_a_figure_is_as_severe_as_the_highest_level_below_it(
    one: float, other: float, figure: float
) -> None:
    low, high = sorted((one, other))

    crossed = levels({"lag": [low, high]}, "lag").crossed(figure)

    if figure > high:
        assert crossed == ("critical", high)
    elif figure > low:
        assert crossed == ("warning", low)
    else:
        assert crossed is None


@given(
    st.dictionaries(
        st.sampled_from([*CHECKS, "queues"]) | st.text(max_size=8),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=4,
    )
)
def test_whatever_stands_in_the_config_is_read_or_refused(given: dict[Any, Any]) -> None:
    with contextlib.suppress(ConfigError):
        found = Thresholds(given, "bus.yaml")
        for check in ("lag", "idle", "clock"):
            assert found.levels(check).least >= 0


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        Thresholds(
            {"lagg": "off", "idle": 5, "queues": {"mail": {"lag": 1}, "a.*": {}}}, "bus.yaml"
        )

    for said in (
        "4 problems: bus.yaml: the key 'lagg' of 'health' is unknown (did you mean 'lag'?)",
        "bus.yaml: 'health.idle' is 5 (give [warning, critical], or off",
        "bus.yaml: 'health.lag' of the queue 'mail' is 1 (give",
        "bus.yaml: the queue 'a.*' is a pattern (write 'a'",
    ):
        assert said in refusal.value.message
