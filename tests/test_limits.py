"""Limits over all workers of a queue: how many tasks run at once, and how many start in a second."""

from __future__ import annotations

import collections
import math
import os
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

import agentbus
from agentbus.core.errors import UsageError
from agentbus.core.stream import id_time, text
from agentbus.queues.delivery import Delivery
from agentbus.queues.limits import QueueLimit
from agentbus.tasks.limits import Limits
from tests.servers import ROOT, Server, ask, program
from tests.tiers import nightly


class Running:
    """Counts how many handlers run at once, by key, and the most there ever were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.done: list[Any] = []

    def __call__(self, delivery: Delivery) -> None:
        payload: Any = delivery.payload
        key = payload[0]
        with self._lock:
            self.now[key] = self.now.get(key, 0) + 1
            self.most[key] = max(self.most.get(key, 0), self.now[key])
        # Long enough for another thread to start a task that should not run.
        threading.Event().wait(0.005)
        with self._lock:
            self.now[key] -= 1
            self.done.append(tuple(payload))


def publish(bus: agentbus.Bus, number: int, keys: str = "a") -> None:
    bus.queue("mail").publish_many(
        agentbus.Task([key, n], headers={"host": key}) for n in range(number) for key in keys
    )


@pytest.mark.parametrize("concurrency", [1, 4])
def test_no_more_tasks_run_at_once_than_the_limit_allows(
    bus: agentbus.Bus, concurrency: int
) -> None:
    publish(bus, 12)
    Limits(bus).set("mail", at_once=2)
    running = Running()

    assert bus.subscribe("mail", running, concurrency=concurrency, drain=True).run() == 12

    assert running.most["a"] <= 2
    assert sorted(running.done) == [("a", n) for n in range(12)]


def test_a_limit_by_key_lets_other_keys_run_and_none_starve(bus: agentbus.Bus) -> None:
    publish(bus, 6, "abc")
    Limits(bus).set("mail", at_once=1, by="headers.host")
    running = Running()

    assert bus.subscribe("mail", running, concurrency=4, drain=True).run() == 18

    assert running.most == {"a": 1, "b": 1, "c": 1}
    assert len(running.done) == 18


def test_a_key_at_its_limit_does_not_hold_up_those_behind_it(bus: agentbus.Bus) -> None:
    publish(bus, 5, "a")
    publish(bus, 1, "b")
    Limits(bus).set("mail", at_once=1, by="headers.host")
    queue = bus.queue("mail")

    (held,) = queue.fetch(count=1)
    (other,) = queue.fetch(count=1)

    assert (held.payload, other.payload) == (["a", 0], ["b", 0])
    assert queue.fetch(count=1) == []


def test_a_slot_is_free_when_its_task_is_settled(bus: agentbus.Bus) -> None:
    publish(bus, 3)
    Limits(bus).set("mail", at_once=1)
    queue, order = bus.queue("mail"), []

    for _ in range(3):
        (one,) = queue.fetch(count=2)
        order.append(one.payload)
        one.ack()

    assert order == [["a", 0], ["a", 1], ["a", 2]]
    keys = bus.scope.keys
    queue.fetch(count=1)
    assert ask(bus, "EXISTS", *keys.limits("mail", "default")[:2]) == 0


def test_no_more_tasks_start_in_a_second_than_the_bucket_holds(bus: agentbus.Bus) -> None:
    publish(bus, 5)
    Limits(bus).set("mail", per_second=0.001, burst=2)
    queue = bus.queue("mail")

    assert len(queue.fetch(count=5)) == 2
    assert queue.fetch(count=5) == []


def test_a_queue_without_a_limit_has_no_key_of_limits(bus: agentbus.Bus) -> None:
    publish(bus, 2)
    bus.subscribe("mail", Running(), drain=True).run()

    assert not ask(bus, "KEYS", f"{bus.scope.keys.project}:limits:*")


def test_limits_are_listed_and_removed(bus: agentbus.Bus) -> None:
    limits = Limits(bus)
    assert limits.get("mail") is None
    limits.set("mail", at_once=3, per_second=10, by="ordering_key")

    assert limits.list() == {"mail": QueueLimit(3, 10.0, None, "ordering_key")}
    assert bus.paused() == []
    assert limits.remove("mail")
    assert not limits.remove("mail")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"at_once": 0},
        {"at_once": True},
        {"per_second": 0},
        {"at_once": 1, "burst": 2},
        {"at_once": 1, "by": "payload."},
        {"at_once": 1, "by": "nothing"},
    ],
)
def test_wrong_limits_are_refused(bus: agentbus.Bus, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Limits(bus).set("mail", **given)


_WORKER = """
import sys, agentbus
from tests.servers import ask

ENTER = '''
local now = redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
local most = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or 0)
if now > most then redis.call('HSET', KEYS[2], ARGV[1], now) end
'''
with agentbus.connect(sys.argv[1], project=sys.argv[2]) as bus:
    def handler(delivery):
        key = delivery.payload[0]
        ask(bus, "EVAL", ENTER, 2, "{%s}:now" % sys.argv[2], "{%s}:most" % sys.argv[2], key)
        ask(bus, "SADD", "{%s}:done" % sys.argv[2], "%s %s" % tuple(delivery.payload))
        ask(bus, "HINCRBY", "{%s}:now" % sys.argv[2], key, -1)

    bus.subscribe("mail", handler, concurrency=2, drain=True).run()
"""


@pytest.mark.parametrize("processes", [3, nightly(32)])
def test_the_limit_holds_over_processes(own_server: Server, processes: int) -> None:
    keys = [f"k{n}" for n in range(5 if processes == 3 else 100)]
    with agentbus.connect(own_server.url, project="app") as bus:
        bus.queue("mail").publish_many(
            agentbus.Task([key, n], headers={"host": key}) for n in range(12) for key in keys
        )
        Limits(bus).set("mail", at_once=2, by="headers.host")
        words = [sys.executable, "-c", _WORKER, own_server.url, "app"]
        started = [subprocess.Popen(words, cwd=ROOT) for _ in range(processes)]
        ends = [one.wait(300) for one in started]

        assert ends == [0] * processes
        assert ask(bus, "SCARD", "{app}:done") == 12 * len(keys)
        most = ask(bus, "HVALS", "{app}:most")
        assert len(most) == len(keys)
        assert max(map(int, most)) <= 2


def test_the_slot_of_a_dead_process_is_free_once_its_task_is_reclaimed(own_server: Server) -> None:
    with agentbus.connect(own_server.url, project="app") as bus:
        queue = bus.queue("mail")
        queue.publish_many([["a", 0], ["a", 1]])
        Limits(bus).set("mail", at_once=1)
        dies = (
            "import os, signal, sys, agentbus\n"
            "bus = agentbus.connect(sys.argv[1], project='app')\n"
            "bus.queue('mail').fetch(count=1, visibility=0.2)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        died = subprocess.run([sys.executable, "-c", dies, own_server.url], cwd=ROOT, check=False)
        assert died.returncode == -signal.SIGKILL

        # Its task still counts as running.
        assert queue.fetch(count=1) == []

    done: list[Any] = []
    while len(done) < 2:
        # The first fetch of a process looks for tasks to reclaim.
        with agentbus.connect(own_server.url, project="app") as bus:
            for one in bus.queue("mail").fetch(count=1, visibility=0.2, block=0.3):
                done.append(one.payload)
                one.ack()
    assert sorted(done) == [["a", 0], ["a", 1]]


def test_a_task_that_may_have_killed_its_worker_keeps_its_attempts_while_a_limit_holds_it_back(
    bus: agentbus.Bus,
) -> None:
    # given a task that its dead worker may have begun, and no token left
    queue = bus.queue("mail")
    queue.publish("poison", attempts=2)
    dead = bus.subscribe("mail", print)
    dead._do(dead._fetcher.new(1))
    Limits(bus).set("mail", per_second=1, burst=1)
    queue.publish("other")
    bus.subscribe("mail", print, count=1).run()

    # when its visibility ends, and another worker takes it and has to wait for a token
    ask(bus, "HSET", bus.scope.keys.visibilities("mail", "default"), dead.name, 1)
    attempts: list[int] = []
    bus.subscribe(
        "mail", lambda delivery: attempts.append(delivery.attempt), visibility=0.001, count=1
    ).run()

    # then this is its second attempt
    assert attempts == [2]
    dead.close()


def test_a_deleted_queue_has_no_limit_left(bus: agentbus.Bus) -> None:
    publish(bus, 3)
    Limits(bus).set("mail", at_once=1)
    queue = bus.queue("mail")
    queue.fetch(count=2)
    queue.delete(force=True)

    assert Limits(bus).list() == {}
    assert not ask(bus, "KEYS", f"{bus.scope.keys.project}:limits:*")


def test_attempts_count_also_where_the_next_one_waits_for_the_limit(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    Limits(bus).set("mail", at_once=1)
    bad = queue.publish("bad", attempts=2)
    (first,) = queue.fetch()
    first.retry(after=3600)
    queue.publish("other")
    (other,) = queue.fetch()

    bus.set_task(bad, now=True)
    assert queue.fetch() == []
    other.ack()
    (second,) = queue.fetch(block=60)

    assert (second.payload, second.attempt) == ("bad", 2)


def test_a_task_that_was_held_by_hand_too_long_has_had_that_attempt_once_the_limit_lets_it_start(
    bus: agentbus.Bus,
) -> None:
    queue = bus.queue("mail")
    queue.publish("by hand")
    held = bus.take("mail")
    Limits(bus).set("mail", at_once=1)
    queue.publish("other")
    (other,) = queue.fetch()

    held.renew(visibility=0.001)
    assert queue.fetch() == []
    other.ack()
    (second,) = queue.fetch(block=60)

    assert (second.payload, second.attempt) == ("by hand", 2)
    assert ask(bus, "HGET", bus.scope.keys.stats("mail"), "reclaimed") == b"1"


def test_a_task_that_failed_gives_its_slot_to_the_next_one(bus: agentbus.Bus) -> None:
    publish(bus, 2)
    Limits(bus).set("mail", at_once=1)
    queue = bus.queue("mail")
    (first,) = queue.fetch(count=2)
    first.retry(after=60)

    (second,) = queue.fetch(count=2)

    assert second.payload == ["a", 1]


_STARTS = """
import os, agentbus
from tests.servers import ask

bus = agentbus.connect()
def note(delivery):
    ask(bus, "XADD", "{app}:starts", "*", "key", delivery.payload)
"""


@pytest.mark.slow
def test_the_rate_of_each_key_holds_over_a_minute_in_32_processes(
    own_server: Server, tmp_path: pathlib.Path
) -> None:
    keys, workers, seconds = [f"k{n}" for n in range(100)], 8, 60
    (tmp_path / "starts.py").write_text(_STARTS)
    env = {
        **os.environ,
        "AGENTBUS_URL": own_server.url,
        "AGENTBUS_PROJECT": "app",
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
    }
    with agentbus.connect(own_server.url, project="app") as bus:
        Limits(bus).set("mail", per_second=1, burst=1, by="headers.host")
        bus.queue("mail").publish_many(
            agentbus.Task(key, headers={"host": key})
            for _ in range(seconds * 3 // 2)
            for key in keys
        )
        words = [program(), "work", "mail", "--handler", "starts:note", "--processes", "4"]
        started = [subprocess.Popen(words, env=env) for _ in range(workers)]
        try:
            entries: list[Any] = []
            after, begins, until = "0-0", 0, math.inf
            while not entries or id_time(text(entries[-1][0])) < until:
                found = ask(bus, "XREAD", "BLOCK", 1000, "STREAMS", "{app}:starts", after) or []
                page = found[0][1] if found else []
                entries += page
                after = text(entries[-1][0]) if entries else after
                seen = {one[1][1] for one in entries}
                if len(seen) < len(keys):
                    # The minute begins when each key has had its first task.
                    begins = len(entries)
                elif until == math.inf:
                    until = id_time(text(entries[-1][0])) + seconds
        finally:
            for one in started:
                one.terminate()
            ends = [one.wait(60) for one in started]

    counts = collections.Counter(
        entry[1][1] for entry in entries[begins:] if id_time(text(entry[0])) < until
    )
    assert ends == [0] * workers
    assert 0.95 * seconds * len(keys) <= counts.total() <= 1.05 * seconds * len(keys)
    assert 0.95 * seconds <= min(counts.values())
    assert max(counts.values()) <= 1.05 * seconds
