"""The last hour of a project and its queues, from the metrics stream."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.dashboard import Dashboard
from agentbus.dashboard.history import POINTS_KEPT, WIDTH
from agentbus.errors import UsageError
from tests.servers import ask


def sample(
    bus: agentbus.Bus, queue: str, done: int, ago: float = 0.0, group: str = "default", **more: Any
) -> None:
    """Write what a worker wrote some seconds ago; the oldest first."""
    ran = more.pop("ran", "[0,0,3]")
    words = [word for pair in more.items() for word in map(str, pair)]
    at = f"{round((time.time() - ago) * 1000)}-*" if ago else "*"
    fields = ("queue", queue, "group", group, "worker", "w", "processed", str(done), "ran", ran)
    ask(bus, "XADD", Keys(bus.project).metrics, at, *fields, "busy_ms", "9", *words)


def done(found: Any) -> float:
    """Return the tasks done in the complete minutes of an hour."""
    return sum(one.done for one in found.points[:-1]) * WIDTH


def test_an_hour_has_a_point_a_minute_oldest_first(bus):
    sample(bus, "mail", 120, 3000)
    sample(bus, "mail", 60, 600)

    found = Dashboard(bus).history()

    assert len(found.points) == POINTS_KEPT
    times = [one.at for one in found.points]
    assert times == [times[0] + WIDTH * n for n in range(POINTS_KEPT)]
    assert [round(one.done, 6) for one in found.points if one.done] == [2.0, 1.0]
    assert found.complete
    assert found.since == pytest.approx(time.time() - 3000, abs=60)


def test_an_hour_without_samples_is_empty(bus):
    found = Dashboard(bus).history()

    assert {one.done for one in found.points} == {0.0}
    assert (found.since, found.complete, found.running) == (None, True, None)


def test_the_hour_of_a_queue_or_a_group_has_no_others(bus):
    sample(bus, "mail", 10, 900)
    sample(bus, "mail", 20, 800, group="audit")
    sample(bus, "shop", 40, 700)
    dashboard = Dashboard(bus)

    assert round(done(dashboard.history())) == 70
    assert round(done(dashboard.history(queue="mail"))) == 30
    assert round(done(dashboard.history(queue="mail", group="audit"))) == 20
    assert done(dashboard.history(queue="none")) == 0


def test_durations_are_percentiles_within_a_factor_of_two(bus):
    # 3 runs of 2 to 4 ms, 1 of 64 to 128 ms
    sample(bus, "mail", 4, 900, ran="[0,0,3,0,0,0,0,1]", waited="[4]", waited_ms=2)

    found = Dashboard(bus).history(queue="mail")

    assert found.running is not None
    assert found.waiting is not None
    assert (found.running.count, found.waiting.count) == (4, 4)
    assert 0.002 <= found.running.p50 <= 0.004
    assert 0.064 <= found.running.p95 <= 0.128
    (point,) = (one for one in found.points if one.running)
    assert point.running == found.running
    assert found.running.mean == pytest.approx(0.009 / 4)


def test_failures_and_burials_are_counted(bus):
    sample(bus, "mail", 1, 900, failed=120, dead=60)

    (point,) = (one for one in Dashboard(bus).history().points if one.done)

    assert (point.failed, point.dead) == (pytest.approx(2.0), pytest.approx(1.0))


def test_each_sample_is_counted_once_by_however_many_calls(bus):
    sample(bus, "mail", 10, 1800)
    sample(bus, "mail", 10, 120)
    dashboard = Dashboard(bus)
    dashboard.snapshot()
    dashboard.history()
    sample(bus, "mail", 10, 61)
    dashboard.snapshot()

    found = [round(done(dashboard.history())) for _ in range(3)]

    assert found == [30] * 3


def test_an_hour_with_many_samples_is_read_back_in_several_calls(bus, monkeypatch):
    monkeypatch.setattr("agentbus.dashboard.history._SLICE", 1000)
    for number in range(2500):
        sample(bus, "mail", 1, 3000 - number / 10)
    dashboard = Dashboard(bus)
    hours = [dashboard.history() for _ in range(4)]

    assert [one.complete for one in hours] == [False, False, True, True]
    assert [round(done(one)) for one in hours] == [1000, 2000, 2500, 2500]


def test_samples_older_than_an_hour_are_left_out(bus):
    sample(bus, "mail", 7, 4000)
    sample(bus, "mail", 5, 1000)

    assert round(done(Dashboard(bus).history())) == 5


@pytest.mark.parametrize(("range", "width", "points"), [("24h", 1800, 48), ("7d", 10_800, 56)])
def test_a_day_and_a_week_have_the_same_samples_at_other_points(bus, range, width, points):
    sample(bus, "mail", 3600, 60_000)
    sample(bus, "mail", 5, 20_000)
    sample(bus, "mail", 7, 240)
    dashboard = Dashboard(bus)
    dashboard.snapshot()

    first = dashboard.history(range=range)
    sample(bus, "mail", 100)
    found = dashboard.history(range=range)

    assert [round(b.at - a.at) for a, b in pairwise(found.points)] == [width] * (points - 1)
    assert found.complete
    for history, expected in ((first, 3612), (found, 3712)):
        *whole, last = history.points
        spent = max(1.0, min(width, time.time() - last.at))
        sums = sum(one.done for one in whole) * width + last.done * spent
        assert sums == pytest.approx(expected, rel=0.02)


def test_another_range_is_refused(bus):
    with pytest.raises(UsageError, match="'2h' is not a range"):
        Dashboard(bus).history(range="2h")


def test_a_stream_that_began_again_is_read_from_its_start(bus):
    sample(bus, "mail", 5, 120)
    dashboard = Dashboard(bus)
    dashboard.history()
    bus.clear()
    sample(bus, "mail", 7, 240)
    dashboard._metrics._quiet_since = 0.0
    dashboard.history()

    assert round(done(dashboard.history())) == 7


async def test_calls_that_overlap_count_each_sample_once(abus):
    import asyncio

    keys = Keys(abus.project)
    at = round((time.time() - 900) * 1000)
    fields = ("queue", "mail", "group", "default", "processed", "6")
    await ask(abus, "XADD", keys.metrics, f"{at}-*", *fields)
    await ask(abus, "XADD", keys.metrics, f"{at + 800_000}-*", *fields)
    dashboard = Dashboard(abus)

    await asyncio.gather(*(dashboard.history() for _ in range(5)))

    assert round(done(await dashboard.history())) == 12


async def test_calls_that_overlap_read_more_samples_than_one_reads_at_once(abus, monkeypatch):
    import asyncio

    monkeypatch.setattr("agentbus.admin.metrics_reader._PAGE", 5)
    monkeypatch.setattr("agentbus.dashboard.streams._MOST", 5)
    keys = Keys(abus.project)
    at = round((time.time() - 100) * 1000)
    for _ in range(20):
        await ask(abus, "XADD", keys.metrics, f"{at}-*", "queue", "mail", "processed", "6")
    dashboard = Dashboard(abus)

    await asyncio.gather(*(dashboard.history() for _ in range(5)))

    assert round(done(await dashboard.history())) == 120
