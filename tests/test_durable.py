"""Publishes that answer once replicas, or the server's disk, have confirmed them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import agentbus
import agentbus.aio
from agentbus.core.errors import BackendUnavailable, OutcomeUnknown
from tests.servers import Server
from tests.test_discovery import joined


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator[tuple[Server, Server]]:
    """A primary and its replica."""
    place = tmp_path_factory.mktemp("pair")
    with Server(place / "primary") as primary:
        primary.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        options = ("--replicaof", "127.0.0.1", str(primary.port))
        with Server(place / "replica", *options) as replica:
            joined(replica, primary)
            yield primary, replica


@pytest.fixture
def bus(pair, project) -> Iterator[agentbus.Bus]:
    with agentbus.connect(pair[0].url, project=project, agent="ada", deadline=1) as opened:
        yield opened


@pytest.fixture
def frozen(pair) -> Iterator[Server]:
    """The replica, stopped: connected, and not answering."""
    pair[1].stop()
    yield pair[1]
    pair[1].go_on()
    joined(pair[1], pair[0])


def test_a_durable_publish_returns_the_id_of_a_task_that_the_replica_has(pair, bus, project):
    task_id = bus.queue("work").publish({"n": 1}, durable="replica")

    assert bus.queue("work").peek() == [(task_id, {"n": 1})]
    assert pair[1].ask("XLEN", f"{project}:q:work") == 1


def test_a_replica_that_does_not_answer_leaves_the_outcome_unknown(bus, frozen):
    with pytest.raises(OutcomeUnknown, match="0 of 1 replicas confirmed it within 1 s"):
        bus.queue("work").publish(1, durable="replica")

    assert [payload for _, payload in bus.queue("work").peek()] == [1]


def test_a_repeated_publish_of_a_task_is_confirmed_only_with_that_task(bus, frozen):
    # given a task that only the primary has
    task_id = bus.queue("work").publish(1, key="once")

    # when it is published again, which writes nothing
    with pytest.raises(OutcomeUnknown):
        bus.queue("work").publish(1, key="once", durable="replica")

    # then its replica is waited for all the same
    frozen.go_on()
    assert bus.queue("work").publish(1, key="once", durable="replica") == task_id


def test_without_a_replica_nothing_is_published(real_url, project):
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        with pytest.raises(BackendUnavailable, match=r"has 0 connected replicas, .* needs 1"):
            bus.queue("work").publish(1, durable="replica")

        assert bus.queue("work").peek() == []


def test_more_replicas_than_there_are_can_be_demanded(bus):
    with pytest.raises(BackendUnavailable, match=r"has 1 connected replicas, .* needs 2"):
        bus.queue("work").publish(1, durable="replica", min_replicas=2)

    assert bus.queue("work").peek() == []
