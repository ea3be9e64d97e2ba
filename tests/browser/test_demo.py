"""The demo project of scripts/screenshots has something of each kind, at the same time of each run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentbus.dashboard import Dashboard, RowRange
from tests.screenshots.clock import END
from tests.screenshots.demo import demo

if TYPE_CHECKING:
    import pathlib

pytestmark = pytest.mark.slow


def test_the_demo_project_has_something_of_each_kind(tmp_path: pathlib.Path) -> None:
    with demo(tmp_path) as project:
        bus = project.bus("human:maria")
        found = Dashboard(bus).snapshot(queues=RowRange(limit=50), agents=RowRange(limit=50))
        totals = found.totals
        errors = {
            (letter.error or "").partition(":")[0]
            for queue in bus.queues()
            for letter in bus.queue(queue).dead_letters()
        }
        done = bus.metrics(since="60m")

    assert 0 <= found.at - END < 30
    assert (totals.agents, totals.queues) == (12, 18)
    assert {one.state for one in found.agents} == {"active", "idle", "waiting"}
    assert all((totals.backlog, totals.held, totals.delayed, totals.blocked, totals.dead))
    assert (totals.workers, totals.dead_workers, totals.quarantined) == (7, 4, 1)
    assert all((totals.unread, totals.flags, totals.waiters, totals.leases, totals.rate))
    assert any(one.stats.retrying for one in found.queues)
    assert any(one.paused for one in found.queues)
    assert {one.trouble for one in found.queues} == {"no worker", "late", "dead letters", None}
    assert {one.state for one in found.flags} == {"held", "satisfied", "failed", "free"}
    assert max(one.lag_events or 0 for one in found.events) > 0
    assert len(errors) == 7
    assert len([one for one in done if one.running]) > 8
    assert found.health.status == "critical"
