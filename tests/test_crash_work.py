"""Workers that are killed, frozen and cut off, and a server that dies: no task is lost, none wronged.

`scripts/soak` runs the same with more of everything.
"""

from __future__ import annotations

import pathlib
import sys

import pytest

from tests import history
from tests.history import Story
from tests.servers import Server
from tests.work_harness import Plan, Site


def run(server: Server, project: str, place: pathlib.Path, plan: Plan, seed: int) -> Story:
    """Run a plan, say what happened, and return its story; the histories stay where they are."""
    with Site(server, project, place / "site", plan, seed) as site:
        story = site.run()
        sys.stdout.write(f"{site.figures(story)}\n{place}\n")
        assert site.too_few() == {}, site.figures(story)
    return story


@pytest.mark.parametrize("seed", [7])
def test_no_task_is_lost_or_wronged_whatever_dies(
    own_server: Server, project: str, tmp_path: pathlib.Path, seed: int
) -> None:
    # given tasks of every priority, some late, some failing at first, and some that kill their worker
    plan = Plan(tasks=2000, poison=5, kills=30, server_kills=3, stops=3, cuts=6, seconds=60)

    # when six processes share them while workers, the server and connections die or freeze
    story = run(own_server, project, tmp_path, plan, seed)

    # then all is done or buried, only poison is buried, once, and no stale acknowledgement counted
    assert history.violations(story) == {}
    assert len(story.accepted) == 2000
    assert story.unsure == frozenset()


def test_no_task_is_lost_or_wronged_by_workers_that_run_several_at_once(
    own_server: Server, project: str, tmp_path: pathlib.Path
) -> None:
    plan = Plan(
        tasks=600, poison=2, workers=4, kills=8, server_kills=1, stops=1, cuts=4, kind="threads"
    )

    story = run(own_server, project, tmp_path, plan, seed=7)

    assert history.violations(story) == {}
    assert len(story.accepted) == 600


# -- the same checks find what other consumers do wrong --


def test_a_consumer_that_acknowledges_first_is_found_to_lose_tasks(
    own_server: Server, project: str, tmp_path: pathlib.Path
) -> None:
    plan = Plan(tasks=600, poison=3, workers=3, kills=10, kind="ack_first", seconds=30)

    story = run(own_server, project, tmp_path, plan, seed=7)

    assert history.lost(story) - story.poison


def test_a_consumer_that_counts_deliveries_is_found_to_bury_innocents(
    own_server: Server, project: str, tmp_path: pathlib.Path
) -> None:
    plan = Plan(tasks=600, poison=3, workers=3, kills=10, kind="count_deliveries", seconds=45)

    story = run(own_server, project, tmp_path, plan, seed=7)

    assert history.innocents_buried(story)


def test_a_consumer_that_never_asks_whose_a_task_is_is_found_to_accept_stale_acknowledgements(
    own_server: Server, project: str, tmp_path: pathlib.Path
) -> None:
    plan = Plan(tasks=600, workers=3, stops=2, kind="ack_after", seconds=45)

    story = run(own_server, project, tmp_path, plan, seed=7)

    assert history.stale_accepted(story)
