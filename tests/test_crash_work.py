"""Workers that are killed at any moment lose no task, and bury the poison alone."""

from __future__ import annotations

import sys

import pytest

from tests.servers import Server
from tests.work_harness import Site


@pytest.mark.parametrize("seed", [7])
def test_killed_workers_lose_nothing_and_bury_only_the_poison(
    own_server: Server, project: str, seed: int
) -> None:
    # given tasks, some of which kill whoever runs them, published before the first worker exists
    with Site(own_server.url, project, "agentbus", seed) as site:
        site.publish(2000, poison=5)

        # when six processes share them and are killed again and again
        site.suffer(workers=6, kills=30, seconds=60)
        sys.stdout.write(site.figures() + "\n")

        # then everything is done or buried, and only poison is buried, once
        assert site.kills == 30
        assert site.lost == set(), site.figures()
        assert site.buried == sorted(site.poison), site.figures()
        assert set(site.runs) == set(range(2000)) - site.poison


def test_the_same_deaths_show_the_losses_of_a_consumer_that_acknowledges_first(
    own_server: Server, project: str
) -> None:
    with Site(own_server.url, project, "ack_first") as site:
        site.publish(600, poison=3)

        site.suffer(workers=3, kills=10, seconds=30)
        sys.stdout.write(site.figures() + "\n")

        assert site.lost - site.poison


def test_the_same_deaths_show_the_innocents_that_a_delivery_count_buries(
    own_server: Server, project: str
) -> None:
    with Site(own_server.url, project, "count_deliveries") as site:
        site.publish(600, poison=3)

        site.suffer(workers=3, kills=10, seconds=45)
        sys.stdout.write(site.figures() + "\n")

        assert site.innocents_buried
