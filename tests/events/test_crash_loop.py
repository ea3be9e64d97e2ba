"""Crash loops, on a clock that is only counted: whatever a worker's life, it is given up in the end."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from agentbus.errors import ConfigError
from agentbus.processes.crash_loop import (
    BACKOFF,
    HEALTHY,
    CrashHistory,
    CrashWindow,
    windows,
)
from agentbus.retry import Backoff
from tests.profiles import times

lives = st.floats(0.1, 30.0)
loads = st.floats(0.0, 5.0)


def crash(
    crashes: CrashHistory, lived: float, loading: float = 0.0, silence: float = 0.0
) -> int | None:
    """Return after how many crashes a worker that always lives so long is given up, if it is."""
    now = 0.0
    for number in range(1, 50):
        now += loading + lived + silence
        if crashes.add(now, lived) is not None:
            return number
        now += crashes.pause()
    return None


@times(5)
@given(lived=lives, loading=loads)
def test_a_worker_that_crashes_after_any_time_is_given_up(lived, loading):
    assert crash(CrashHistory(windows()), lived, loading) in range(5, 11)


def test_a_worker_is_given_up_for_every_tenth_of_a_second_up_to_30():
    for tenths in range(1, 301):
        assert crash(CrashHistory(windows()), tenths / 10) in range(5, 11)


@times(5)
@given(
    lived=st.floats(0.0, 59.9),
    silence=st.floats(2.0, 3600.0),
    longest=st.floats(0.1, 300.0),
)
def test_a_worker_that_hangs_is_given_up_however_long_one_waits_for_it(lived, silence, longest):
    backoff = Backoff(first=0.5, longest=longest)
    crashes = CrashHistory(windows(HEALTHY, silence, longest), backoff=backoff)

    assert crash(crashes, lived, silence=silence) in range(5, 11)


def test_the_short_window_alone_would_let_some_crash_for_ever():
    def alone(lived: float) -> int | None:
        at_once = Backoff(first=0.0, longest=0.0)
        return crash(CrashHistory(windows()[:1], backoff=at_once), lived)

    assert [alone(1.0), alone(16.0), alone(29.0)] == [5, None, None]


@given(lived=st.floats(60.0, 1e6))
def test_a_worker_that_runs_well_for_long_is_never_given_up(lived):
    assert crash(CrashHistory(windows()), lived) is None


def test_a_healthy_run_ends_a_series_of_crashes():
    crashes = CrashHistory([CrashWindow(3, 1000.0)])

    assert crashes.add(1.0, 0.1) is None
    assert crashes.add(2.0, 0.1) is None
    assert crashes.add(70.0, 60.0) is None
    assert crashes.count == 1
    assert crashes.add(71.0, 0.1) is None
    assert crashes.add(72.0, 0.1) == CrashWindow(3, 1000.0)


def test_crashes_that_lie_far_apart_are_no_series():
    crashes = CrashHistory([CrashWindow(3, 10.0)])

    assert [crashes.add(now, 1.0) for now in (0.0, 6.0, 12.0)] == [None, None, None]
    assert crashes.add(13.0, 1.0) is not None


def test_what_is_cleared_begins_anew():
    crashes = CrashHistory([CrashWindow(2, 10.0)])
    crashes.add(0.0, 0.1)
    crashes.clear()

    assert crashes.count == 0
    assert crashes.add(1.0, 0.1) is None


def test_each_pause_is_longer_up_to_the_longest():
    crashes = CrashHistory([CrashWindow(20, 1e9)])
    pauses = []
    for number in range(12):
        crashes.add(float(number), 0.1)
        pauses.append(crashes.pause())

    assert pauses[0] <= BACKOFF.first
    assert max(pauses) <= BACKOFF.longest
    assert pauses[-1] >= BACKOFF.longest / 2


@pytest.mark.parametrize("wrong", [[], [CrashWindow(0, 1.0)], [CrashWindow(1, 0.0)]])
def test_windows_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ConfigError):
        CrashHistory(wrong)
