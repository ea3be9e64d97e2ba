"""The key of a unique task stands for it until it has ended, and no longer."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from typing import Any

import msgspec
import pydantic
import pytest

import agentbus
from agentbus.errors import UsageError
from agentbus.queues.delivery import Delivery
from agentbus.queues.ids import UNIQUE_KEPT
from agentbus.tasks import Schedules, Tasks
from tests.conftest import Connect
from tests.servers import ROOT, Server, Shell, ask
from tests.tiers import nightly, on_one_store

UNIQUE: Any = {"key": "k", "unique": "until_done"}


def drained(bus: agentbus.Bus, handler: Any = None, queue: str = "mail") -> list[Any]:
    done: list[Any] = []
    bus.subscribe(queue, handler or (lambda one: done.append(one.payload)), drain=True).run()
    return done


def bury(_delivery: Delivery) -> None:
    raise agentbus.Bury("enough")


def test_one_that_has_not_ended_is_published_once(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    first = queue.publish("a", **UNIQUE)
    assert queue.publish("b", **UNIQUE) == first

    (delivery,) = queue.fetch()
    assert queue.publish("c", **UNIQUE) == first
    delivery.retry()
    assert queue.publish("d", **UNIQUE) == first

    assert drained(bus) == ["a"]


def test_its_key_outlasts_the_window(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish("a", **UNIQUE)

    left = ask(bus, "TTL", bus.scope.keys.seen("mail", "k"))

    assert UNIQUE_KEPT - 60 < left <= UNIQUE_KEPT


@pytest.mark.parametrize("how", ["done", "buried", "cancelled", "cancelled while it runs", "acked"])
def test_once_it_has_ended_a_new_one_is_published(bus: agentbus.Bus, how: str) -> None:
    queue = bus.queue("mail")
    first = queue.publish("a", **UNIQUE)
    if how == "cancelled":
        bus.cancel(first)
    elif how == "acked":
        queue.fetch()[0].ack("by hand")
    else:

        def stopped(delivery: Delivery) -> None:
            bus.cancel(first)
            while not delivery.cancelled:
                pass
            raise ValueError("stopped")

        drained(bus, {"buried": bury, "cancelled while it runs": stopped}.get(how))

    assert ask(bus, "EXISTS", bus.scope.keys.seen("mail", "k")) == 0
    assert queue.publish("b", **UNIQUE) != first
    assert drained(bus) == ["b"]


@pytest.mark.parametrize("when", [{"delay": 3600}, {"after": "a task"}])
def test_one_that_waits_is_unique_too(bus: agentbus.Bus, when: dict[str, Any]) -> None:
    queue = bus.queue("mail")
    if "after" in when:
        when = {"after": bus.queue("first").publish(1)}
    first = queue.publish("a", **UNIQUE, **when)
    assert queue.publish("b", **UNIQUE) == first
    assert queue.publish("b", **UNIQUE, **when) == first

    if "after" in when:
        drained(bus, bury, "first")
    else:
        bus.set_task(first, now=True)
        assert drained(bus) == ["a"]

    assert queue.publish("c", **UNIQUE) != first


def test_a_batch_of_unique_tasks(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    items = [agentbus.Task(n, key=f"k{n % 3}", unique="until_done") for n in range(6)]
    mixed = [*items, agentbus.Task("x", key="x"), "plain"]

    ids = queue.publish_many(mixed)

    assert ids[:3] == ids[3:6]
    assert drained(bus) == [0, 1, 2, "x", "plain"]
    assert queue.publish_many(items[:3]) != ids[:3]
    assert queue.publish("y", key="x") == ids[6]


def test_a_task_that_ends_frees_no_key_of_another(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish("a", **UNIQUE)
    (delivery,) = queue.fetch()
    ask(bus, "SET", bus.scope.keys.seen("mail", "k"), "7-0@mail")

    delivery.ack()

    assert queue.publish("b", **UNIQUE) == "7-0@mail"


def test_unique_needs_a_key_and_has_one_value(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    with pytest.raises(UsageError, match="a unique task has no key"):
        queue.publish(1, unique="until_done")
    with pytest.raises(UsageError, match="a unique task has no key"):
        queue.publish_many([1], unique="until_done")
    with pytest.raises(UsageError, match="unique is 'for ever'"):
        queue.publish(1, key="k", unique="for ever")


@on_one_store
def test_a_typed_task_is_unique_by_its_arguments(bus: agentbus.Bus) -> None:
    tasks, calls = Tasks(), []

    @tasks.task(queue="mail", unique="until_done")
    def send(to: str, copies: int = 1) -> None:
        calls.append((to, copies))

    first = send.publish(bus, "ada")
    assert send.publish(bus, "ada").id == first.id
    assert send.publish(bus, "bob").id != first.id
    assert send.publish_many(bus, [send.item("ada"), send.item("eve")])[0].id == first.id
    assert send.options(key="again").publish(bus, "ada").id != first.id

    tasks.worker(bus, drain=True).run()
    assert calls == [("ada", 1), ("bob", 1), ("eve", 1), ("ada", 1)]
    assert send.publish(bus, "ada").id != first.id


_PUBLISH_SETS = """
import dataclasses, enum, sys, typing
import pydantic
import agentbus

tasks = agentbus.Tasks()
Color = enum.Enum("Color", {name: name for name in "abcdef"})
letters = set("abcdef")


@dataclasses.dataclass(frozen=True)
class Point:
    name: str


class Model(pydantic.BaseModel):
    names: set[str]


@tasks.task(queue="mail", unique="until_done")
def send(sets: typing.Any, more: Model, rest: dict[str, frozenset[frozenset[str]]]) -> None: ...


sets = [letters, set(Color), {1, None, *letters}, {Point(one) for one in letters}, (letters,)]
nested = frozenset(frozenset({one, one * 2}) for one in letters)
with agentbus.connect(sys.argv[1], project=sys.argv[2]) as bus:
    print(send.publish(bus, sets, Model(names=letters), {"z": nested, "a": nested}).id)
"""


def test_a_task_with_sets_is_unique_whichever_process_publishes_it(
    real_url: str, project: str
) -> None:
    ids = []
    for seed in "12":
        command = [sys.executable, "-c", _PUBLISH_SETS, real_url, project]
        env = {**os.environ, "PYTHONHASHSEED": seed}
        ids.append(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE).stdout)

    assert ids[0] == ids[1]


class Renamed(msgspec.Struct, rename="camel", tag=True, omit_defaults=True):
    retries: int = 0
    user_ids: set[int] = set()


class Array(msgspec.Struct, array_like=True):
    user_ids: set[int]


class Tagged(Array, tag=True):
    pass


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(serialize_by_alias=True)
    user_ids: set[int] = pydantic.Field(alias="userIds")


class Root(pydantic.RootModel[set[int]]):
    pass


_WITH_SET: dict[str, Any] = {
    "renamed": lambda ids: Renamed(user_ids=ids),
    "array": Array,
    "tagged array": Tagged,
    "aliased": lambda ids: Aliased(userIds=ids),
    "root": Root,
}


@pytest.mark.parametrize("kind", _WITH_SET)
@on_one_store
def test_a_task_with_sets_is_unique_whatever_form_its_objects_have_in_the_data(
    bus: agentbus.Bus, kind: str
) -> None:
    tasks, make = Tasks(), _WITH_SET[kind]

    @tasks.task(queue="mail", unique="until_done")
    def send(value: Any) -> None: ...

    # Their hashes collide in a set of this size, whose order is then that of insertion.
    one, other = {0, 8}, {8, 0}
    assert [*one] != [*other]

    assert send.publish(bus, make(one)).id == send.publish(bus, make(other)).id


@on_one_store
def test_a_tick_is_left_out_while_the_last_one_runs(bus: agentbus.Bus) -> None:
    schedules = Schedules(bus)
    schedules.add("poll", "mail", every=3600, **UNIQUE)

    first = schedules.trigger("poll")
    assert schedules.trigger("poll") == first
    drained(bus)

    assert schedules.trigger("poll") != first


@on_one_store
def test_a_coroutines_task_is_unique(bus: agentbus.Bus, connect: Connect) -> None:
    async def main() -> None:
        async with agentbus.AsyncBus(bus.settings) as other:
            queue = other.queue("mail")
            first = await queue.publish("a", **UNIQUE)
            assert await queue.publish("b", **UNIQUE) == first

            async def handle(_delivery: Any) -> None: ...

            await other.subscribe("mail", handle, drain=True).run()
            assert await queue.publish("c", **UNIQUE) != first

    asyncio.run(main())


# A worker that says when it begins a task, and when it ends it.
_WORKER = """
import sys, agentbus
from tests.servers import ask

with agentbus.connect(sys.argv[1], project=sys.argv[2]) as bus:
    def handler(delivery):
        ask(bus, "RPUSH", "log", f"begins {delivery.payload} {delivery.id}")
        ask(bus, "RPUSH", "log", f"ends {delivery.payload} {delivery.id}")

    bus.subscribe("mail", handler, attempts=1000, visibility=0.3).run()
"""


@pytest.mark.parametrize("kills", [4, nightly(100)])
def test_a_key_stands_for_one_task_at_a_time_however_workers_are_killed(
    own_server: Server, project: str, kills: int
) -> None:
    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", _WORKER, own_server.url, project], cwd=ROOT)

    chance, running = random.Random(7), [start(), start()]
    with agentbus.connect(own_server.url, project=project, agent="ada") as bus:
        queue = bus.queue("mail")
        published: dict[str, list[str]] = {key: [] for key in "abc"}

        def ended(one: Delivery) -> tuple[str, str, str]:
            return "RPUSH", "log", f"ends {one.payload} {one.id}"

        def publish() -> None:
            for key, ids in published.items():
                task_id = queue.publish(key, key=key, unique="until_done")
                if task_id not in ids:
                    ids.append(task_id)

        try:
            for kill in range(1, kills + 1):
                # When about this many tasks are done, whatever the process is doing then.
                while ask(bus, "LLEN", "log") < 20 * kill:
                    publish()
                at = chance.randrange(len(running))
                running[at].kill()
                running[at].wait()
                running[at] = start()
            bus.subscribe(
                "mail", lambda one: ask(bus, *ended(one)), drain=True, visibility=0.3
            ).run()
        finally:
            for one in running:
                one.kill()
                one.wait()
        log = [line.decode().split() for line in ask(bus, "LRANGE", "log", 0, -1)]

    for key, ids in published.items():
        own = [(what, task_id) for what, of, task_id in log if of == key]
        # Each began after the one before it had ended, and ended.
        assert [*dict.fromkeys(task_id for _, task_id in own)] == ids
        assert own == sorted(own, key=lambda line: ids.index(line[1]))
        assert {task_id for what, task_id in own if what == "ends"} == set(ids)


def test_the_shell_publishes_unique_tasks(real_shell: Shell) -> None:
    publish = ("publish", "mail", "a", "--key", "k", "--unique")
    first = real_shell.ok(*publish)
    assert real_shell.ok(*publish) == first
    real_shell.ok("work", "mail", "--drain", "--", "true")

    assert real_shell.ok(*publish) != first
    assert real_shell.run("publish", "mail", "a", "--unique").returncode == 2
