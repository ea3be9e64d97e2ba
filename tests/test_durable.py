"""Publishes that answer once replicas, or the server's disk, have confirmed them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
import redis

import agentbus
import agentbus.acl
import agentbus.aio
from agentbus.core.errors import BackendUnavailable, ConfigError, OutcomeUnknown, UsageError
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
    with pytest.raises(BackendUnavailable, match=r"has 1 connected replica, .* needs 2"):
        bus.queue("work").publish(1, durable="replica", min_replicas=2)

    assert bus.queue("work").peek() == []


async def test_coroutines_that_publish_at_the_same_time_share_a_wait(pair, project):
    async with agentbus.aio.connect(pair[0].url, project=project, agent="ada") as abus:
        queue = abus.queue("work")
        before = waits(pair[0])

        ids = await asyncio.gather(*(queue.publish(n, durable="replica") for n in range(1000)))

        # At most 500 of them in one wait, and the first one alone.
        assert waits(pair[0]) - before <= 5
        assert len(set(ids)) == 1000
    assert pair[1].ask("XLEN", f"{project}:q:work") == 1000


def waits(server: Server) -> int:
    """Return how many waits a server has served."""
    with redis.Redis(unix_socket_path=server.socket) as other:
        return int(other.info("commandstats").get("cmdstat_wait", {"calls": 0})["calls"])


async def test_coroutines_whose_replica_does_not_answer_learn_so_by_the_deadline(
    pair, frozen, project
):
    async with agentbus.aio.connect(pair[0].url, project=project, agent="ada", deadline=1) as abus:
        queue = abus.queue("work")

        found = await asyncio.gather(
            *(queue.publish(n, durable="replica") for n in range(5)), return_exceptions=True
        )

        # Those without a replica to wait for are not held up by the others.
        assert await queue.publish(5)
    assert [type(one) for one in found] == [OutcomeUnknown] * 5


async def test_a_cancelled_publish_leaves_the_others_their_answers(pair, project):
    async with agentbus.aio.connect(pair[0].url, project=project, agent="ada") as abus:
        queue = abus.queue("work")
        tasks = [asyncio.ensure_future(queue.publish(n, durable="replica")) for n in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()

        found = await asyncio.gather(*tasks, return_exceptions=True)

    assert [isinstance(one, str) for one in found] == [True, False, True, True]


async def test_coroutines_without_a_replica_publish_nothing(real_url, project):
    async with agentbus.aio.connect(real_url, project=project, agent="ada") as abus:
        with pytest.raises(BackendUnavailable, match="nothing was published"):
            await abus.queue("work").publish(1, durable="replica")

        assert await abus.queue("work").peek() == []


def online(server: Server) -> int:
    """Return how many replicas a server sends its writes to."""
    with redis.Redis(unix_socket_path=server.socket) as other:
        state = other.info("replication")
    replicas = (value for name, value in state.items() if name.startswith("slave"))
    return sum(isinstance(one, dict) and one["state"] == "online" for one in replicas)


def test_a_replica_that_goes_is_not_waited_for_any_longer(pair, bus, project, tmp_path):
    # given a second replica that is connected, and answers nothing
    options = ("--replicaof", "127.0.0.1", str(pair[0].port))
    with Server(tmp_path / "second", *options) as second:
        while online(pair[0]) < 2:
            time.sleep(0.01)
        second.stop()
        with pytest.raises(OutcomeUnknown, match="1 of 2 replicas"):
            bus.queue("work").publish(1, key="k", durable="replica")

        # when it is gone for good
        second.kill()

        # then those that are left confirm it, if they are enough
        assert bus.queue("work").publish(1, key="k", durable="replica")
        with pytest.raises(BackendUnavailable, match="needs 2"):
            bus.queue("work").publish(2, durable="replica", min_replicas=2)


def test_batches_delayed_tasks_and_followers_are_confirmed_too(pair, bus, project):
    queue = bus.queue("work")
    first, *_ = queue.publish_many(range(3), durable="replica")
    list(queue.publish_stream(range(2), durable="replica"))
    queue.publish(1, delay=60, durable="replica")
    queue.publish(2, after=first, durable="replica")

    assert pair[1].ask("XLEN", f"{project}:q:work") == 5
    keys = {key.decode() for key in pair[1].ask("KEYS", f"{project}:*")}
    assert {f"{project}:delayed:work", f"{project}:after:work"} <= keys


@pytest.mark.parametrize("publish", ["publish", "publish_many", "publish_stream"])
def test_each_way_to_publish_waits_for_a_replica(bus, frozen, publish):
    with pytest.raises(OutcomeUnknown):
        list(getattr(bus.queue("work"), publish)([1], durable="replica"))


def test_a_policy_makes_publishes_and_asks_durable(pair, frozen, project, tmp_path, monkeypatch):
    config = tmp_path / "config.yaml"
    config.write_text("queues: {work: {durable: replica}, rare: {durable: disk}}")
    monkeypatch.setenv("AGENTBUS_CONFIG", str(config))
    with agentbus.connect(pair[0].url, project=project, agent="ada", deadline=1) as bus:
        with pytest.raises(OutcomeUnknown):
            bus.queue("work").publish(1)
        with pytest.raises(OutcomeUnknown):
            bus.ask("work", 1, timeout=5)
        assert bus.queue("rare").publish(1)
        assert bus.queue("other").publish(1)


def test_a_disk_confirms_a_task(bus):
    task_id = bus.queue("work").publish(1, durable="disk")

    assert bus.queue("work").peek() == [(task_id, 1)]


def test_a_server_without_an_append_only_file_says_so(tmp_path, project):
    with (
        Server(tmp_path / "server", "--appendonly", "no") as server,
        agentbus.connect(server.url, project=project, agent="ada") as bus,
    ):
        with pytest.raises(ConfigError, match="appendonly"):
            bus.queue("work").publish(1, durable="disk")

        assert bus.queue("work").peek() == []


def test_memory_confirms_nothing():
    with agentbus.connect("memory://durable", project="test", agent="ada") as bus:
        with pytest.raises(ConfigError, match="memory://durable cannot confirm"):
            bus.queue("work").publish(1, durable="replica")

        assert bus.queue("work").peek() == []


@pytest.mark.parametrize(
    "how",
    [
        {"durable": "replicas"},
        {"durable": True},
        {"min_replicas": 1},
        {"durable": "disk", "min_replicas": 1},
        {"durable": "replica", "min_replicas": 0},
        {"durable": "replica", "min_replicas": True},
    ],
)
def test_what_cannot_be_demanded_is_refused(bus, how):
    with pytest.raises(UsageError):
        bus.queue("work").publish(1, **how)


@pytest.mark.parametrize("role", [None, "publisher"])
def test_a_confined_user_publishes_durably(pair, project, role):
    rule = agentbus.acl.rule(project, role=role, password="correct-horse-battery")
    pair[0].ask("ACL", "SETUSER", rule.user, *rule.words)
    url = f"redis://{project}:correct-horse-battery@127.0.0.1:{pair[0].port}"

    with agentbus.connect(url, project=project, agent="ada") as bus:
        assert bus.queue("work").publish(1, durable="replica")


def test_a_shell_learns_whether_its_task_is_confirmed(pair, shell):
    pair[1].stop()
    words = ("publish", "work", "1", "--key", "k", "--durable", "replica", "--url", pair[0].url)
    unknown = shell.run(*words, "--deadline", "1")
    pair[1].go_on()

    assert (unknown.returncode, unknown.stdout) == (7, "")
    assert "0 of 1 replicas confirmed it" in unknown.stderr
    assert shell.ok(*words).endswith("@work\n")
    too_many = shell.run(*words, "--min-replicas", "2")
    assert (too_many.returncode, too_many.stdout) == (1, "")
