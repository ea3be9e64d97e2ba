"""A project with something sound of every kind, made once and copied for each example."""

from __future__ import annotations

import contextlib
import json
import pathlib
from typing import Any

import redis

import agentbus
from agentbus.agents import tokens
from agentbus.core.keys import Keys
from agentbus.tasks import Flows, FlowTask, Schedules, chain
from agentbus.tasks.limits import Limits
from tests.forging import ledgers
from tests.hostile import DATABASE, World
from tests.servers import Server

# The database with the project as it was made.
_TEMPLATE = 10
LONG = 86_400 * 30.0
# What of the sound project must be found again in what a verb prints.
MESSAGE, NOTE, FLAG, QUEUE = "a sound message", "sound-note", "sound-flag", "sound"
CONSUMER = "sound-consumer"
SCHEDULE = "sound-schedule"
FLOW = "sound-flow"


class SoundWorld(World):
    """A project with sound records of every kind, and its neighbours."""

    def __init__(self, server: Server, ledger: pathlib.Path | None = None) -> None:
        """`ledger` is where to make a ledger, whose events are in the project."""
        super().__init__(server)
        self.socket = server.socket
        self.database = DATABASE
        self._made = redis.Redis(
            unix_socket_path=server.socket, db=_TEMPLATE, protocol=2, driver_info=None
        )
        self._made.flushdb()
        url = f"{server.url}?db={_TEMPLATE}"
        _make(url, self.project, self._made)
        if ledger is not None:
            self._made.delete(*self._made.keys(f"{self.project}:ev:*"))
            with agentbus.connect(url, project=self.project, agent="bob") as bus:
                ledgers.sound(ledger, bus)
        # Every key, its type, and what it holds.
        self.keys = {key: self._made.type(key) for key in sorted(self._made.scan_iter(count=1000))}
        self.ids = self._ids()
        self.held = {key: _content(self._made, key, kind) for key, kind in self.keys.items()}

    def _ids(self) -> dict[str, str]:
        """Return the ids of tasks by what became of them."""
        entries = [
            {each[-1]: f"{entry_id.decode()}@{queue}" for entry_id, each in self._read(queue)}
            for queue in (QUEUE, "worked")
        ]
        ((moved, _),) = self._made.hgetall(f"{self.project}:attempts:bounded:moved").items()
        (letter,) = (entry_id for entry_id, _ in self._read("worked", "dlq:worked:default"))
        named = {
            "task": '{"n":1}',
            "ordered": '"once"',
            **{name: f'"{name}"' for name in ("kept", "buried", "cancelled")},
            **{name: f'["{name}"]' for name in ("pending", "retried")},
        }
        found = {name: (entries[0] | entries[1])[payload] for name, payload in named.items()}
        delayed = {"delayed": f"d1@{QUEUE}", "dependent": f"d2@{QUEUE}", "letter": letter.decode()}
        delayed["moved"] = moved.decode().partition("\n")[0]
        return found | delayed

    def _read(self, queue: str, stream: str = "") -> list[tuple[bytes, list[str]]]:
        found = self._made.xrange(f"{self.project}:{stream or f'q:{queue}'}")
        return [(one, [fields[b"payload"].decode()]) for one, fields in found]

    def close(self) -> None:
        """Close the connections."""
        self._made.close()
        super().close()

    def renew(self) -> None:
        """Have the neighbours and the sound project as they were, and nothing else."""
        super().renew()
        with self._made.pipeline(transaction=False) as pipe:
            for key in self.keys:
                pipe.copy(key, key, destination_db=DATABASE)
            pipe.execute()


def _content(client: redis.Redis, key: bytes, kind: bytes) -> list[Any]:
    """Return what a key holds: fields and values, members and scores, entries' fields, or one text."""
    if kind == b"hash":
        return sorted(client.hgetall(key).items())
    if kind == b"zset":
        return client.zrange(key, 0, -1, withscores=True)
    if kind == b"stream":
        return [list(fields.items()) for _, fields in client.xrange(key)]
    if kind == b"set":
        return sorted(client.smembers(key))
    return [client.get(key)]


def _make(url: str, project: str, client: redis.Redis) -> None:
    with agentbus.connect(url, project=project, agent="bob") as bus:
        _talk(bus)
        _work(bus)
        _rest(Keys(project), client)


def _talk(bus: agentbus.Bus) -> None:
    bus.speak(MESSAGE, topic="t")
    bus.speak("another one")
    list(bus.overhear(peek=False))
    list(bus.overhear(topic="t"))
    bus.jot(NOTE, "the value", tags=["a", "b"])
    bus.announce(FLAG, ttl=LONG)
    bus.announce("building", ttl=LONG)
    bus.announce("done-flag")
    bus.satisfy("done-flag", note="it is done")
    bus.announce("failed-flag")
    bus.fail("failed-flag", note="it is not")
    bus.runner.run(tokens.create(bus.scope, "cloud", "talk", LONG), verb="token")


def _work(bus: agentbus.Bus) -> None:
    queue = bus.queue(QUEUE)
    first = queue.publish({"n": 1})
    queue.publish("urgent", priority="high", headers={"k": "v"}, correlation_id="c1")
    queue.publish("later", delay=LONG)
    queue.publish("dependent", after=[first])
    queue.publish("once", key="dedup", ordering_key="customer")
    worked = bus.queue("worked")
    kept = worked.publish("kept")
    worked.publish("buried")

    def handler(task: Any) -> str:
        if task.payload == "buried":
            raise ValueError("no")
        return "a result"

    bus.subscribe("worked", handler, drain=True, attempts=1).run()
    cancelled = worked.publish("cancelled")
    bus.cancel(cancelled)
    for retried in (False, True):
        worked.publish(["retried" if retried else "pending"])
        (task,) = worked.fetch()
        if retried:
            task.retry(after=LONG)
    assert bus.result(kept) == "a result"
    bounded = bus.queue("bounded", bound=5)
    bounded.publish("far away")
    (task,) = bounded.fetch()
    task.retry(after=LONG)
    # It is moved out of the way of those that come after it.
    for number in range(60):
        bounded.publish(number)
        bounded.fetch()[0].ack()
    undone = FlowTask(1, queue="flowing", undo=FlowTask(2, queue="flowing"))
    Flows(bus).publish(chain(undone, FlowTask(3, queue="chores")), id=FLOW)
    Limits(bus).set("limited", at_once=1, per_second=100.0)
    bus.queue("limited").publish_many([1, 2])
    bus.queue("limited").fetch(count=2)
    Schedules(bus).add(SCHEDULE, "chores", {"n": 1}, every=LONG)
    bus.queue("held").publish(1)
    bus.pause(queue="held", why="a sound reason", wait=0)


def _rest(keys: Keys, client: redis.Redis) -> None:
    """Write by hand what only supervisors, relays, archivers and routers write."""
    why = {"stream": "orders", "quarantined_at": "2026-01-20T15:30:00Z", "reason": "crash_loop"}
    client.hset(keys.quarantined, CONSUMER, json.dumps(why | {"crashes": 3, "last_error": "no"}))
    event = {
        *(("event_uuid", "u1"), ("event_type", "Placed"), ("payload", '{"a":1}')),
        *(("metadata", "{}"), ("outbox_id", "1"), ("created_ms", "1790000000000")),
    }
    client.xadd(keys.events("orders"), dict(sorted(event)))
    client.hset(keys.event_readers("orders"), "reader", "0-0")
    client.hset(keys.relay("orders"), mapping={"token": "7", "trimmed": "0"})
    client.hset(keys.readers(QUEUE), "archive", "0-1")
    client.zadd(keys.sink("s1", 0), {"5f2a": 3})
    client.hset(keys.replay("r1"), mapping={"asked": "{}", "published": "3", "finished": ""})
    client.zadd(keys.triggers, {"bob\nada": 1_790_000_000_000})
    client.zadd(keys.rate("agent", "bob"), {"1-1@sound": 1_790_000_000_000})
    client.hset(keys.shards, mapping={"numbers": '["1"]', "open": "1"})
    client.hset(keys.places, QUEUE, "")
    client.set(keys.tidied("results"), "worker-1", ex=int(LONG))
    client.set(keys.salt, "5a" * 32)
    client.set(keys.cursor("ada"), "0-1")
    client.hset(keys.client_sessions, mapping={"claude:1": "bob", "bob": "claude:1"})
    client.hset(keys.who("bob"), mapping={"state": "active", "seen": "1790000000000", "pid": "1"})
    client.xadd(keys.inbox("bob"), {"agent_id": "ada", "message": "hi"})
    client.hset(keys.inbox_at("bob"), "heard", "0-1")
    lease = {"agent": "bob", "pattern": "src/**", "until": 9_000_000_000_000, "token": 7}
    client.hset(keys.leases, "src/**\nbob", json.dumps(lease))
    client.sadd(keys.purged("worked", "default"), "1-1")
    client.hset(keys.replayed("worked", "default"), "1-1", "2-1@worked")
    client.hset(keys.beat("w1"), mapping={"queue": QUEUE, "group": "default", "agent": "bob"})
    client.zadd(keys.beats, {"w1": 1_790_000_000_000})
    client.xadd(keys.replies("caller"), {"task": "1-1@sound", "result": "1"})
    client.zadd(keys.waiting, {f"{FLAG}\nsatisfied\nbob\n1790000000000\nu": 9e12})
    with contextlib.suppress(redis.ResponseError):
        client.xgroup_create(keys.queue(QUEUE), "others", "0")
