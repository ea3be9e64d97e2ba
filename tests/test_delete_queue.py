"""A deleted queue leaves nothing behind: no task of it returns, and no other queue is touched."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import NotFound, Refused, TaskBuried
from agentbus.queues.retry_stream import move_aside
from agentbus.routing import Router, parse
from agentbus.workers.registry import WorkerRegistration
from tests import inprocess
from tests.conftest import Connect
from tests.servers import ask
from tests.test_after import drain

# Verbs leave connections as they do where a process ends.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def keys_of(bus: agentbus.Bus, queue: str) -> set[str]:
    """Return the keys that name a queue, without its tasks' results."""
    found = {key.decode() for key in ask(bus, "KEYS", f"{bus.settings.project}:*")}
    return {
        key
        for key in found
        if queue in key.split(":")[2:4] and not key.startswith(f"{bus.settings.project}:results")
    }


def fill(bus: agentbus.Bus, queue: str) -> None:
    """Give a queue everything that one can have: each kind of task, two groups, and letters."""
    tasks = bus.queue(queue)
    for number, priority in enumerate(("low", "normal", "high", "critical")):
        tasks.publish(number, priority=priority, key=f"k{number}", ordering_key="o")
    held = tasks.fetch(count=3)
    held[0].ack()
    held[1].retry(600)
    held[2].bury("broken")
    tasks.fetch(group="other", count=1)[0].bury("broken, too")
    tasks.publish("later", delay=600, key="later")
    first = tasks.publish("first")
    tasks.publish("second", after=first)


def test_a_deleted_queue_leaves_no_key(bus: agentbus.Bus) -> None:
    fill(bus, "mail")
    fill(bus, "mail2")
    other = keys_of(bus, "mail2")
    bus.pause(queue="mail", wait=0)

    deleted = bus.queue("mail").delete(force=True)

    # The last delayed task's number, so that no id is given twice.
    assert keys_of(bus, "mail") == {Keys(bus.settings.project).ids("mail")}
    assert keys_of(bus, "mail2") == other
    assert bus.paused() == []
    assert bus.queues() == ["mail2"]
    assert (deleted.queue, deleted.group, deleted.dead) == ("mail", None, 2)
    assert deleted.undone > 0


def test_no_task_of_a_deleted_queue_returns(bus: agentbus.Bus) -> None:
    fill(bus, "mail")
    before = bus.queue("mail").publish("before", delay=600, key="again")

    bus.queue("mail").delete(force=True)
    bus.tidy()
    after = bus.queue("mail").publish("after", delay=0.001, key="again")
    bus.queue("mail").publish("new", key="k1")

    assert after != before
    assert sorted(drain(bus)) == ["after", "new"]
    assert sorted(drain(bus, group="other")) == ["after", "new"]


def test_the_views_know_no_deleted_queue(bus: agentbus.Bus) -> None:
    fill(bus, "mail")
    bus.queue("mail").delete(force=True)

    for view in (
        bus.stats,
        lambda name: bus.queue(name).inspect(),
        lambda n: bus.queue(n).groups(),
    ):
        with pytest.raises(NotFound):
            view("mail")
    assert bus.stats() == []
    with pytest.raises(NotFound):
        bus.queue("mail").delete(force=True)


def test_a_queue_whose_tasks_are_done_is_deleted_without_force(bus: agentbus.Bus) -> None:
    done = bus.queue("mail").publish("done")
    bus.subscribe("mail", lambda delivery: 5, drain=True).run()

    assert bus.queue("mail").delete().undone == 0
    # An answer is kept as long as it would have been.
    assert bus.result(done) == 5


@pytest.mark.parametrize("left", ["waiting", "held", "delayed", "retrying", "dependent"])
def test_undone_tasks_prevent_a_deletion(bus: agentbus.Bus, left: str) -> None:
    tasks = bus.queue("mail")
    first = tasks.publish("x", delay=600 if left == "delayed" else None)
    if left == "held":
        tasks.fetch()
    if left == "retrying":
        tasks.fetch()[0].retry(600)
    if left == "dependent":
        bus.queue("other").publish("y", after=first, after_group="typo")
        drain(bus)

    with pytest.raises(Refused, match="mail"):
        tasks.delete()

    assert "mail" in {one.queue for one in bus.stats()}


def test_a_live_worker_prevents_a_deletion_and_a_dead_one_does_not(connect: Connect) -> None:
    bus = connect()
    bus.queue("mail").publish("x")
    drain(bus)
    worker = WorkerRegistration(bus.scope, "w1", "ada", "mail", "default", 1)
    bus._run("beat", worker.beat_op("working", 0, 0, 0))

    with pytest.raises(Refused, match="live workers: w1"):
        bus.queue("mail").delete()
    # Nothing of another group or queue prevents it.
    with pytest.raises(Refused, match="live workers: w1"):
        bus.queue("mail").delete("default")

    ask(bus, "ZADD", Keys(bus.settings.project).beats, 1, "w1")
    assert bus.queue("mail").delete().workers == ()


def test_force_names_the_live_workers(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish("x")
    worker = WorkerRegistration(bus.scope, "w1", "ada", "mail", "default", 1)
    bus._run("beat", worker.beat_op("working", 0, 0, 0))

    assert bus.queue("mail").delete(force=True).workers == ("w1",)


def test_tasks_that_wait_for_those_of_a_deleted_queue_are_buried(bus: agentbus.Bus) -> None:
    first = bus.queue("mail").publish("first")
    second = bus.queue("mail").publish("second", after=first)
    third = bus.queue("other").publish("third", after=first)
    fourth = bus.queue("other").publish("fourth", after=second)
    fifth = bus.queue("other").publish("fifth", after=fourth)

    bus.queue("mail").delete(force=True)

    for task in (third, fourth, fifth):
        with pytest.raises(TaskBuried, match="the queue 'mail' was deleted by ada"):
            bus.result(task)
    assert keys_of(bus, "mail") == {Keys(bus.settings.project).ids("mail")}
    assert drain(bus, "other") == []
    assert bus.queue("other").remaining() == 0


@pytest.mark.parametrize("group", [None, "default"])
def test_tasks_that_wait_for_one_that_was_routed_to_a_deleted_queue_are_buried(
    bus: agentbus.Bus, group: str | None
) -> None:
    first = bus.queue("incoming").publish("first")
    second = bus.queue("incoming").publish("second", after=first)
    third = bus.queue("other").publish("third", after=first, after_group="audit")
    Router(bus, parse("agents: [ada]\ndefault: ada\n", "team.yaml"), drain=True).run()
    bus.queue("agent.ada").fetch()

    bus.queue("agent.ada").delete(group, force=True)

    with pytest.raises(TaskBuried, match=r"'agent\.ada' was deleted by ada"):
        bus.result(second)
    assert bus.task(third).state == ("blocked" if group else "dead")


def test_tasks_that_wait_for_a_routed_one_among_the_retries_of_a_deleted_queue_are_buried(
    bus: agentbus.Bus,
) -> None:
    first = bus.queue("incoming").publish("first")
    second = bus.queue("other").publish("second", after=first)
    Router(bus, parse("agents: [ada]\ndefault: ada\n", "team.yaml"), drain=True).run()
    bus.queue("agent.ada").fetch()[0].retry(600)
    assert bus._run("move", move_aside(bus.scope, "agent.ada", "default", "normal")) == 1

    bus.queue("agent.ada").delete(force=True)

    assert bus.task(second).state == "dead"


@pytest.mark.parametrize("force", [False, True])
def test_tasks_that_wait_for_one_that_was_routed_on_outlive_the_queue_in_between(
    bus: agentbus.Bus, force: bool
) -> None:
    first = bus.queue("incoming").publish("first")
    second = bus.queue("other").publish("second", after=first)
    for rules in (
        "agents: [ada]\ndefault: ada\n",
        "incoming: agent.ada\nagents: [bob]\ndefault: bob\n",
    ):
        Router(bus, parse(rules, "team.yaml"), drain=True).run()

    bus.queue("agent.ada").delete(force=force)

    assert bus.task(second).state == "blocked"
    drain(bus, "agent.bob")
    assert bus.task(second).state == "waiting"


@pytest.mark.parametrize("force", [False, True])
def test_tasks_that_wait_for_one_that_is_done_in_a_deleted_queue_are_not_buried(
    bus: agentbus.Bus, force: bool
) -> None:
    first = bus.queue("incoming").publish("first")
    second = bus.queue("other").publish("second", after=first)
    Router(bus, parse("agents: [ada]\ndefault: ada\n", "team.yaml"), drain=True).run()
    bus.queue("agent.ada").fetch()
    # As another program does it, which does not record the outcome.
    stream = Keys(bus.settings.project).queue("agent.ada", "normal")
    ((entry, *_),) = ask(bus, "XPENDING", stream, "default", "-", "+", 1)
    ask(bus, "XACK", stream, "default", entry)

    bus.queue("agent.ada").delete(force=force)

    assert bus.task(second).state == "blocked"


def test_tasks_that_wait_for_a_routed_one_prevent_a_deletion(bus: agentbus.Bus) -> None:
    first = bus.queue("incoming").publish("first")
    bus.queue("other").publish("second", after=first, after_group="audit")
    Router(bus, parse("agents: [ada]\ndefault: ada\n", "team.yaml"), drain=True).run()
    drain(bus, "agent.ada")

    with pytest.raises(Refused, match="1 task of other queues waiting for it"):
        bus.queue("agent.ada").delete()


def test_a_mistyped_group_no_longer_closes_its_queue(bus: agentbus.Bus) -> None:
    tasks = bus.queue("mail", bound=3)
    tasks.publish("first")
    tasks.fetch(group="oops")
    for text in ("second", "third"):
        tasks.publish(text)
    drain(bus)
    with pytest.raises(agentbus.errors.QueueFull):
        tasks.publish("fourth")

    with pytest.raises(Refused, match="the group 'oops' of 'mail' is not deleted"):
        tasks.delete("oops")
    deleted = tasks.delete("oops", force=True)

    assert (deleted.group, deleted.undone) == ("oops", 3)
    assert [one.group for one in tasks.groups()] == ["default"]
    tasks.publish("fourth")
    assert drain(bus) == ["fourth"]


def test_a_deleted_group_leaves_no_key_and_the_other_groups_theirs(bus: agentbus.Bus) -> None:
    fill(bus, "mail")
    project = Keys(bus.settings.project)
    tasks = bus.queue("mail")

    tasks.delete("other", force=True)

    assert not {key for key in keys_of(bus, "mail") if "other" in key}
    assert not [f for f in ask(bus, "HKEYS", project.positions("mail")) if b"other" in f]
    assert [one.error for one in tasks.dead_letters()] == ["broken"]
    with pytest.raises(NotFound, match="no group 'other'"):
        tasks.delete("other")
    with pytest.raises(NotFound, match="no queue 'none'"):
        bus.queue("none").delete("other")


def test_a_task_that_waits_for_a_deleted_group_is_buried(bus: agentbus.Bus) -> None:
    first = bus.queue("mail").publish("first")
    bus.queue("mail").fetch(group="other")
    second = bus.queue("next").publish("second", after=first, after_group="other")
    third = bus.queue("next").publish("third", after=first)

    bus.queue("mail").delete("other", force=True)

    with pytest.raises(TaskBuried, match="the group 'other' of the queue 'mail' was deleted"):
        bus.result(second)
    assert drain(bus, "mail", "next") == ["first", "third"]
    assert third


def test_dead_letters_that_queues_share_are_not_deleted(
    connect: Connect, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bus.yaml").write_text(
        "queues: {mail: {dead_letters: lost}, post: {dead_letters: lost}}\n"
    )
    monkeypatch.setenv("AGENTBUS_CONFIG", str(tmp_path / "bus.yaml"))
    bus = connect()
    for name in ("mail", "post"):
        bus.queue(name).publish(name)
        bus.queue(name).fetch()[0].bury("broken")

    assert bus.queue("mail").delete().dead == 0

    assert ask(bus, "XLEN", Keys(bus.settings.project).dead_letters("lost", "default")) == 2


def test_a_worker_that_lost_its_queue_cannot_settle_its_task(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish("x")
    (held,) = bus.queue("mail").fetch()

    bus.queue("mail").delete(force=True)

    with pytest.raises(agentbus.errors.AgentBusError):
        held.retry(0.001)
    assert drain(bus) == []


async def test_an_asynchronous_bus_deletes_a_queue(abus: agentbus.AsyncBus) -> None:
    await abus.queue("mail").publish("x")

    with pytest.raises(Refused):
        await abus.queue("mail").delete()
    assert (await abus.queue("mail").delete(force=True)).undone == 1
    assert await abus.queues() == []


# -- the verb --


@pytest.fixture
def in_shell(connect: Connect, real_url: str, project: str) -> Iterator[agentbus.Bus]:
    """A bus on the real server that command lines in this process use, too."""
    given = {"AGENTBUS_URL": real_url, "AGENTBUS_PROJECT": project, "AGENTBUS_AGENT": "ada"}
    with inprocess.environment(given):
        yield connect(url=real_url)


@pytest.mark.parametrize("url", ["valkey"], indirect=True)
def test_bus_delete_refuses_with_4_and_its_hint_does_not_propose_force(
    in_shell: agentbus.Bus,
) -> None:
    in_shell.queue("mail").publish("x")

    done = inprocess.run("bus", "delete", "mail")

    assert done.code == 4
    assert b"'mail' is not deleted, since it has 1 undone task\n" in done.err
    assert b"force" not in done.err
    assert inprocess.run("bus", "delete", "none").code == 5
    assert inprocess.run("bus", "delete").code == 2


@pytest.mark.parametrize("url", ["valkey"], indirect=True)
def test_bus_delete_says_what_it_deleted(in_shell: agentbus.Bus) -> None:
    fill(in_shell, "mail")

    group = inprocess.run("bus", "delete", "mail", "--group", "other", "--force")
    queue = inprocess.run("bus", "delete", "mail", "--force", "--json")

    assert group.out == b"mail other: deleted, with 4 undone tasks and 1 dead letter\n"
    assert (queue.code, json.loads(queue.out)) == (
        0,
        {
            "project": in_shell.project,
            "queue": "mail",
            "group": None,
            "undone": 5,
            "dead": 1,
            "workers": [],
        },
    )


@pytest.mark.parametrize("url", ["valkey"], indirect=True)
def test_bus_delete_warns_of_live_workers(in_shell: agentbus.Bus) -> None:
    in_shell.queue("mail").publish("x")
    worker = WorkerRegistration(in_shell.scope, "w1", "ada", "mail", "default", 1)
    in_shell._run("beat", worker.beat_op("working", 0, 0, 0))

    done = inprocess.run("bus", "delete", "mail", "--force")

    assert done.code == 0
    assert b"w1 still runs and creates its group again" in done.err
