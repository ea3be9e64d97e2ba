"""A project on several shards of a cluster: where queues are, one view of all, what is refused."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import json
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import agentbus
import agentbus.aio
from agentbus.admin import acl
from agentbus.core.keys import Keys
from agentbus.errors import NotFound, Refused, UsageError
from agentbus.queues.shards import slot_of, spread
from agentbus.tasks import Flows, FlowTask, Scheduler, Schedules, chain
from agentbus.tasks.limits import Limits
from tests.test_discovery import Cluster, clustered

SHARDS, QUEUES = 12, 24
AT_HOME = ("shards", "shards:of", "agents:sessions", "tidied:forward")


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory) -> Iterator[Cluster]:
    with clustered(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def cluster(shared_cluster) -> Cluster:
    """An empty cluster, which no test kills or changes."""
    for node in shared_cluster.nodes:
        node.ask("FLUSHALL")
    return shared_cluster


@pytest.fixture
def own_cluster(tmp_path: pathlib.Path) -> Iterator[Cluster]:
    """A cluster of the test's own, to be killed."""
    with clustered(tmp_path) as started:
        yield started


@pytest.fixture
def bus(cluster, project) -> Iterator[agentbus.Bus]:
    """A bus on a project with twelve shards."""
    with agentbus.connect(cluster.url, project=project, agent="ada") as opened:
        opened.set_shards(SHARDS)
        yield opened


def names() -> list[str]:
    return [f"q{number}" for number in range(QUEUES)]


def test_the_shards_spread_evenly_over_the_nodes_and_the_queues_over_the_shards(bus):
    for name in names():
        bus.queue(name).publish(name)

    home, *shards = bus.shards()

    assert (len(shards), home.queues) == (SHARDS, 0)
    assert {*collections.Counter(shard.node for shard in shards).values()} == {SHARDS // 3}
    assert {shard.queues for shard in shards} == {QUEUES // SHARDS}


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("number", [1, 3, 12, 60])
def test_prefixes_are_chosen_for_nodes_with_any_slots(nodes, number):
    owners = {slot: f"node-{slot * 7 % nodes}" for slot in range(16384)}

    chosen = spread(Keys("{app}"), owners, number, [])

    counts = collections.Counter(owners[slot_of(f"{{app~{one}}}")] for one in chosen)
    assert len({*chosen}) == number
    assert max(counts.values()) - min(counts[f"node-{n}"] for n in range(nodes)) <= 1


def test_more_shards_leave_those_that_there_were():
    owners = {slot: f"node-{slot * 3 // 16384}" for slot in range(16384)}
    before = spread(Keys("{app}"), owners, 5, [])

    assert spread(Keys("{app}"), owners, 12, before)[:5] == before


def test_the_tasks_of_each_queue_are_done_and_their_results_found_by_id(bus):
    ids = {name: bus.queue(name).publish({"name": name}, key="k") for name in names()}

    for name in names():
        bus.subscribe(name, lambda delivery: delivery.payload["name"], drain=True).run()

    assert {name: bus.result(task_id) for name, task_id in ids.items()} == {n: n for n in names()}
    assert {bus.task(task_id).state for task_id in ids.values()} == {"done"}
    assert bus.queue("q1").publish({"name": "again"}, key="k") == ids["q1"]


def test_all_keys_of_a_task_that_crosses_nothing_have_one_prefix(bus, cluster, project):
    bus.queue("mail").publish(1)
    bus.queue("mail").publish(2, delay=60)
    bus.subscribe("mail", lambda _: "done", drain=True).run()

    keys = [key.decode() for node in cluster.nodes for key in node.ask("KEYS", "*")]
    home = {key for key in keys if key.startswith(f"{{{project}}}:")}
    prefix = bus.at("mail").project
    assert home <= {f"{{{project}}}:{kind}" for kind in AT_HOME}
    assert all(key.startswith(f"{prefix}:") for key in {*keys} - home)


async def test_an_asynchronous_bus_uses_the_same_shards(bus, cluster, project):
    async with agentbus.aio.connect(cluster.url, project=project, agent="bob") as abus:
        ids = [await abus.queue(name).publish(name) for name in names()]
        await asyncio.gather(
            *(abus.subscribe(name, _echo, drain=True).run() for name in names()[:6])
        )

        assert [await abus.result(one) for one in ids[:6]] == names()[:6]
        assert {row.queue for row in await abus.stats()} == {*names()}
        assert (await abus.health()).queues == QUEUES
    assert await asyncio.to_thread(bus.result, ids[0]) == "q0"


async def _echo(delivery):
    return delivery.payload


def test_what_is_asked_gets_its_answer_from_another_shard(bus):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        worker = bus.subscribe("sum", lambda delivery: sum(delivery.payload))
        running = pool.submit(worker.run)
        try:
            assert bus.ask("sum", [1, 2, 3]) == 6
        finally:
            worker.stop()
        assert running.result() == 1


def test_queues_that_exist_stay_where_they_are(cluster, project):
    with agentbus.connect(cluster.url, project=project, agent="ada") as bus:
        before = bus.queue("old").publish(1)
        bus.set_shards(3)
        placed = [bus.at(name).project for name in names()]
        bus.set_shards(6)

        assert bus.at("old") is bus
        assert bus.task(before).state == "waiting"
        assert [bus.at(name).project for name in names()] == placed
        assert len(bus.shards()) == 1 + 6
        assert [shard.opened for shard in bus.set_shards(2)].count(True) == 2


def test_a_process_that_was_there_before_finds_its_queue_with_all_others(cluster, project):
    with agentbus.connect(cluster.url, project=project, agent="ada") as early:
        queue = early.queue("mail")
        with agentbus.connect(cluster.url, project=project, agent="bob") as bus:
            bus.set_shards(3)
            task_id = queue.publish(1)

            assert bus.at("mail").project == bus.project
            assert bus.task(task_id).state == "waiting"


def test_shards_are_not_set_while_workers_run(cluster, project):
    with agentbus.connect(cluster.url, project=project, agent="ada") as bus:
        began = threading.Event()
        bus.queue("mail").publish(1)
        worker = bus.subscribe("mail", lambda _: began.set())
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(worker.run)
            assert began.wait(10)
            with pytest.raises(Refused, match="workers"):
                bus.set_shards(3)
            worker.stop()
            running.result()
        with pytest.raises(NotFound):
            bus.shards()


def test_one_server_has_no_shards(url, project, real_shell):
    with agentbus.connect(url, project=project) as bus:
        with pytest.raises(UsageError, match="Cluster"):
            bus.set_shards(3)
        assert bus.at("mail") is bus
    assert real_shell.run("shards", "set", "3").returncode == 2


# -- one view of all --


def test_views_show_all_shards(bus):
    for name in names():
        bus.queue(name).publish(name)

    assert [row.queue for row in bus.stats()] == sorted(names())
    assert bus.queues() == sorted(names())
    assert {info.queue for info in bus.streams() if info.kind == "queue"} == {*names()}
    assert bus.health().queues == QUEUES
    assert {finding.status for finding in bus.doctor()} <= {"ok", "warning"}


def test_a_halt_reaches_the_workers_of_all_shards(bus):
    workers = [bus.subscribe(name, lambda _: None) for name in names()[:4]]
    with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
        running = [pool.submit(worker.run) for worker in workers]
        try:
            _until(lambda: len(bus.workers()) == len(workers))
            order = bus.halt(why="deploy")

            assert {*order.confirmed} == {worker.name for worker in workers}
            assert [(one.kind, one.why) for one in bus.paused()] == [("project", "deploy")]
            assert [attendee.agent_id for attendee in bus.who()] == ["ada"]
            assert len(bus.who()[0].workers) == len(workers)
            assert bus.resume()
            assert bus.paused() == []
        finally:
            for worker in workers:
                worker.stop()
        assert [one.result() for one in running] == [0] * len(workers)


def _until(condition) -> None:
    while not condition():
        threading.Event().wait(0.05)


def test_clear_deletes_the_keys_of_all_shards(bus, cluster):
    for name in names():
        bus.queue(name).publish(name)

    assert bus.clear()["q"] == QUEUES
    assert [node.ask("DBSIZE") for node in cluster.nodes] == [0, 0, 0]


@pytest.mark.slow
async def test_a_shard_that_is_down_is_named_and_the_rest_shown(own_cluster, project, real_shell):
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in own_cluster.nodes)
    url = f"redis+cluster://{hosts}"
    for node in own_cluster.nodes:
        node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    with agentbus.connect(url, project=project, agent="ada") as bus:
        bus.set_shards(SHARDS)
        for name in names():
            bus.queue(name).publish(name)
        home = own_cluster.owner(project)
        dead = next(node for node in own_cluster.nodes if node is not home)
        down = {shard.name for shard in bus.shards() if shard.node == f"127.0.0.1:{dead.port}"}
        dead.kill()

        rows = bus.stats()

        assert len(rows) == QUEUES * 2 // 3
        assert {*bus._sharded.unanswered} == down
        health = bus.health()
        assert {one.subject for one in health.findings if one.check == "unreachable"} == down
        assert any(shard in one.found for one in bus.doctor() for shard in down)
    async with agentbus.aio.connect(url, project=project, agent="ada") as abus:
        assert len(await abus.stats()) == len(rows)
    said = real_shell.run("bus", "stats", "--url", url, "--project", project)
    assert said.returncode == 0
    assert all(shard in said.stderr for shard in down)
    assert real_shell.run("health", "--url", url, "--project", project).returncode == 6
    assert real_shell.run("clear", "--force", "--url", url, "--project", project).returncode == 1


def test_verbs_find_the_shards(bus, cluster, project, real_shell):
    where = ("--url", cluster.url, "--project", project)
    listed = [
        json.loads(line) for line in real_shell.ok("shards", "list", "--json", *where).splitlines()
    ]
    task_id = real_shell.ok("publish", "mail", '{"to": "a"}', *where).strip()
    real_shell.ok("work", "mail", "--drain", *where, "--", "cat")

    assert len(listed) == 1 + SHARDS
    assert json.loads(real_shell.ok("result", task_id, *where)) == {"to": "a"}
    assert "done" in real_shell.ok("task", "show", task_id, *where)
    assert "mail" in real_shell.ok("bus", "stats", *where)
    assert real_shell.ok("list", "--queues", *where).split() == ["mail"]
    real_shell.ok("pause", "mail", *where)
    assert "mail" in real_shell.ok("pause", *where)
    real_shell.ok("limit", "set", "mail", "--at-once", "3", *where)
    assert "mail" in real_shell.ok("limit", "list", *where)
    real_shell.ok("bus", "delete", "mail", "--force", *where)


# -- what crosses --


def elsewhere(bus: agentbus.Bus) -> tuple[str, str]:
    """Return two queues on different shards."""
    one, *others = names()
    return one, next(other for other in others if bus.at(other) is not bus.at(one))


def test_replies_and_notices_reach_other_shards_once_and_in_order(bus):
    here, there = elsewhere(bus)
    for number in range(40):
        bus.queue(here).publish(number, reply_to=there, notify=number % 10 == 0)

    bus.subscribe(here, lambda delivery: delivery.payload, drain=True).run()

    assert [reply["result"] for _, reply in bus.queue(there).peek(100)] == [*range(40)]
    assert [said.topic for said in bus.overhear()] == ["tasks"] * 4
    # One row for each queue: an outbox is none.
    assert [row.queue for row in bus.stats()] == sorted((here, there))


def test_a_reply_is_a_task_with_an_id_like_any_other(bus):
    here, there = elsewhere(bus)
    newer = bus.queue(there).publish("newer")
    bus.queue(here).publish(1, reply_to=there)
    bus.subscribe(here, lambda _: None, drain=True).run()
    done = []

    bus.subscribe(there, lambda delivery: done.append(delivery.id), drain=True).run()

    assert done[0] == newer
    assert [bus.task(task_id).state for task_id in done] == ["done", "done"]


def test_a_task_waits_for_tasks_on_other_shards(bus):
    queues = {bus.at(name).project: name for name in names()}
    first, *others = list(queues.values())[:4]
    needed = [bus.queue(name).publish(name) for name in others]
    waiting = bus.queue(first).publish("last", after=needed)
    bus.subscribe(first, lambda _: None, drain=True).run()
    order = []

    for name in others:
        assert bus.task(waiting).state == "blocked"
        bus.subscribe(name, lambda delivery: order.append(delivery.payload), drain=True).run()
    bus.subscribe(first, lambda delivery: order.append(delivery.payload), drain=True).run()

    assert order == [*others, "last"]


def test_a_task_on_another_shard_that_is_done_is_not_waited_for(bus):
    here, there = elsewhere(bus)
    done = bus.queue(here).publish(1)
    bus.subscribe(here, lambda _: None, drain=True).run()

    assert bus.task(bus.queue(there).publish(2, after=done)).state == "waiting"


def test_a_task_is_dead_if_one_on_another_shard_is(bus):
    here, there = elsewhere(bus)
    bad, cancelled = (bus.queue(here).publish(n) for n in range(2))
    waiting = [bus.queue(there).publish(1, after=one) for one in (bad, cancelled)]
    chained = bus.queue(here).publish(2, after=waiting[0])
    bus.cancel(cancelled)

    def fail(_):
        raise agentbus.Bury("no")

    with contextlib.suppress(agentbus.TaskBuried):
        bus.subscribe(here, fail, drain=True).run()
    bus.subscribe(there, lambda _: None, drain=True).run()
    bus.subscribe(here, lambda _: None, drain=True).run()

    assert [bus.task(one).state for one in (*waiting, chained)] == ["dead"] * 3
    with pytest.raises(Refused):
        bus.queue(there).publish(3, after=bad)
    with pytest.raises(NotFound):
        bus.queue(there).publish(3, after=f"1-1@{here}")


def test_a_dependent_whose_publisher_was_killed_before_it_asked_is_released(bus, monkeypatch):
    here, there = elsewhere(bus)
    first = bus.queue(here).publish(1)
    # A process that dies here has kept the task, and has not asked the other shard.
    monkeypatch.setattr(bus._sharded.forwarder, "ask", lambda *_: None)
    waiting = bus.queue(there).publish(2, after=first)
    monkeypatch.undo()
    bus.subscribe(here, lambda _: None, drain=True).run()
    done = []

    for _ in range(2):
        bus.subscribe(there, lambda delivery: done.append(delivery.id), drain=True).run()

    assert done == [waiting]


def test_the_ticks_of_a_schedule_reach_a_queue_on_another_shard(bus):
    queue = next(name for name in names() if bus.at(name) is not bus)
    schedules = Schedules(bus)
    schedules.add("often", queue, {"tick": 1}, every=0.1)
    threading.Event().wait(0.2)

    published = [tick for tick in Scheduler(bus).run_once() if tick.task_id]

    assert bus.queue(queue).peek() == [(tick.task_id, {"tick": 1}) for tick in published]
    assert published
    assert bus.task(schedules.show("often").last_task).state == "waiting"


def test_a_webhook_waits_at_home_for_its_sender(cluster, project, monkeypatch):
    monkeypatch.setenv("AGENTBUS_WEBHOOKS", "1")
    monkeypatch.setenv("AGENTBUS_WEBHOOK_SECRET", "a secret of webhooks")
    with agentbus.connect(cluster.url, project=project, agent="ada") as bus:
        bus.set_shards(3)
        bus.queue("mail").publish(1, webhook="https://example.org/done")
        bus.subscribe("mail", lambda _: None, drain=True).run()

        ((_, sent),) = bus.queue("~webhooks").peek()
        assert bus.at("mail") is not bus
        assert sent["url"] == "https://example.org/done"


# Forwards as often as it can, so that most kills hit it on the way.
_WORKER = """
import sys
import agentbus
from agentbus.client import forwarding
forwarding._EVERY, forwarding._LEFT = 0.001, 1
url, project, queue = sys.argv[1:]

def handle(delivery):
    print(delivery.id, flush=True)
    return delivery.payload

with agentbus.connect(url, project=project, agent="ada") as bus:
    bus.subscribe(queue, handle, visibility=2, prefetch=5).run()
"""


def work_and_kill(cluster: Cluster, bus: agentbus.Bus, queue: str) -> int:
    """Let workers do the tasks of a queue, each killed after some; return the number of kills."""
    kills = 0
    while bus.queue(queue).remaining() > _LAST:
        words = [sys.executable, "-c", _WORKER, cluster.url, bus.project.strip("{}"), queue]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as worker:
            for _ in range(_LAST // 2 + kills % 7 * 3):
                worker.stdout.readline()
            worker.kill()
        kills += 1
    bus.subscribe(queue, lambda delivery: delivery.payload, drain=True).run()
    return kills


_LAST = 30


@pytest.mark.slow
def test_no_dependent_is_released_early_or_twice_while_the_workers_that_forward_are_killed(
    cluster, bus
):
    here, there = elsewhere(bus)
    needed = [bus.queue(here).publish(number) for number in range(300)]
    waiting = [bus.queue(there).publish(one, after=one) for one in needed]
    early: list[str] = []
    runs: collections.Counter[str] = collections.Counter()

    def handle(delivery):
        runs.update([delivery.id])
        if bus.task(delivery.payload).state != "done":
            early.append(delivery.id)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        worker = bus.subscribe(there, handle)
        running = pool.submit(worker.run)
        kills = work_and_kill(cluster, bus, here)
        _until(lambda: len(runs) == len(waiting) or running.done())
        worker.stop()
        running.result()

    assert kills > 1
    assert early == []
    assert runs == dict.fromkeys(waiting, 1)


@pytest.mark.slow
def test_no_reply_is_lost_or_doubled_while_the_workers_that_forward_are_killed(cluster, bus):
    here, there = elsewhere(bus)
    sent = [bus.queue(here).publish(number, reply_to=there) for number in range(400)]

    kills = work_and_kill(cluster, bus, here)

    replies = collections.Counter(reply["task_id"] for _, reply in bus.queue(there).peek(10_000))
    assert kills > 1
    assert replies == dict.fromkeys(sent, 1)


def test_what_crosses_is_refused_before_anything_is_written(bus):
    here, there = elsewhere(bus)
    bus.queue(here).publish(1)
    attempts = [
        lambda: Flows(bus).publish(_flow(here, there)),
        lambda: Schedules(bus).add("nightly", there, every=60, key="k", unique="until_done"),
        lambda: Limits(bus).set(there, at_once=1),
        lambda: bus.subscribe_many("*", lambda _: None),
        lambda: list(bus.samples()),
    ]

    for attempt in attempts:
        with pytest.raises(UsageError, match="shard"):
            attempt()
    assert bus.queues() == [here]


def test_what_stays_in_a_shard_is_done_by_the_bus_of_the_shard(bus):
    _, there = elsewhere(bus)
    shard = bus.at(there)
    beside = next(name for name in names() if name != there and bus.at(name) is shard)
    Limits(shard).set(there, at_once=1)
    flow = Flows(shard).publish(_flow(there, beside))
    Schedules(shard).add("nightly", there, every=60)

    for name in (there, beside):
        bus.subscribe(name, lambda delivery: delivery.payload, drain=True).run()

    assert Flows(shard).show(flow).state == "done"
    assert Limits(shard).get(there).at_once == 1
    assert bus.queue(there).publish(1, after=bus.queue(beside).publish(2))


def _flow(*queues: str):
    return chain(*(FlowTask(1, queue) for queue in queues))


def test_a_user_of_one_project_works_on_its_shards_and_on_no_other(own_cluster, project):
    rule = acl.rule(project, user="ada", cluster=True, password="a long password!")
    for node in own_cluster.nodes:
        node.ask(*("ACL", "SETUSER", "ada", *rule.words))
    port = own_cluster.nodes[0].port
    url = f"redis+cluster://ada:a%20long%20password!@127.0.0.1:{port}"
    with agentbus.connect(url, project=project) as bus:
        bus.set_shards(3)
        ids = [bus.queue(name).publish(name) for name in names()[:6]]
        for name in names()[:6]:
            bus.subscribe(name, lambda delivery: delivery.payload, drain=True).run()
        assert [bus.result(one) for one in ids] == names()[:6]
        assert len(bus.stats()) == 6
    with (
        agentbus.connect(url, project=f"{project}x") as other,
        pytest.raises(agentbus.AgentBusError, match=r"(?i)perm|access|allow|refuse"),
    ):
        other.queue("mail").publish(1)
