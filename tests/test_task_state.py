"""What a task's state is, from its publication to its end, and the record of its attempts."""

from __future__ import annotations

import time
from typing import Any

import pytest

import agentbus
from agentbus.errors import NotFound, UsageError
from agentbus.retry import Backoff
from agentbus.routing import Router, parse
from tests.conftest import Connect
from tests.servers import Shell, ask

SOON = Backoff(first=0.001)


def fails(_: agentbus.Delivery) -> None:
    raise ValueError("no such address")


def test_a_task_has_one_state_wherever_it_is_shown(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    done, buried, retrying, pending, waiting = queue.publish_many(range(5))
    delayed = queue.publish("later", delay=3600)
    dependent = queue.publish("after", after=waiting)
    held = queue.fetch(count=4)
    held[0].ack()
    held[1].bury("no such address")
    held[2].retry(600)
    expected = {
        done: "done",
        buried: "dead",
        retrying: "retrying",
        pending: "running",
        waiting: "waiting",
        delayed: "delayed",
        dependent: "blocked",
    }

    assert {one.id: one.state for one in queue.inspect()} == expected
    assert {one: bus.task(one).state for one in expected} == expected


def test_a_task_is_listed_under_the_id_that_publish_returned(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    first = queue.publish(1)
    delayed = queue.publish(2, delay=0)
    held = queue.fetch()

    assert [one.id for one in queue.inspect()] == [first, delayed]
    assert queue.peek() == [(first, 1), (delayed, 2)]
    held[1].bury("no such address")
    assert bus.task(queue.inspect()[1].id).error == "no such address"


def test_a_routed_task_is_listed_under_the_id_that_publish_returned(bus: agentbus.Bus) -> None:
    task = bus.queue("incoming").publish("x")
    Router(bus, parse("agents: [ada]\ndefault: ada\n", "team.yaml"), drain=True).run()
    queue = bus.queue("agent.ada")

    assert [one.id for one in queue.inspect()] == [task]
    assert queue.peek() == [(task, "x")]


def test_the_id_of_a_delayed_task_is_not_a_place_to_list_tasks_from(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1, delay=0)

    with pytest.raises(UsageError, match=f"'{task}' is not a place"):
        bus.queue("mail").inspect(start=task)


def test_what_is_not_ready_is_among_the_newest_tasks(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    first = queue.publish(1)
    later = queue.publish(2, delay=3600)

    assert [one.id for one in queue.inspect(last=2)] == [first, later]
    assert [one.id for one in queue.inspect(limit=1)] == [first]
    assert queue.inspect(last=1)[0].due == pytest.approx(time.time() + 3600, abs=60)


def test_each_attempt_is_recorded_with_its_worker_and_its_error(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1)
    worker = bus.subscribe("mail", fails, attempts=3, backoff=SOON, drain=True)
    worker.run()

    shown = bus.task(task)

    assert (shown.state, shown.attempts) == ("dead", 3)
    assert [(run.attempt, run.outcome, run.error) for run in shown.runs] == [
        (1, "failed", "ValueError: no such address"),
        (2, "failed", "ValueError: no such address"),
        (3, "dead", "ValueError: no such address"),
    ]
    assert {(run.worker, run.agent_id) for run in shown.runs} == {(worker.name, bus.agent)}
    assert all(run.began and run.waited is not None and run.took is not None for run in shown.runs)
    assert shown.error == "ValueError: no such address"
    assert shown.letter == bus.queue("mail").dead_letters()[0].id


def test_an_attempt_that_succeeds_after_others_is_recorded(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1)

    def handler(delivery: agentbus.Delivery) -> str:
        if delivery.attempt == 1:
            raise ValueError("not yet")
        assert [run.outcome for run in bus.task(task).runs] == ["failed", "running"]
        return "done"

    bus.subscribe("mail", handler, count=1, backoff=SOON).run()

    shown = bus.task(task)
    assert [run.outcome for run in shown.runs] == ["failed", "done"]
    assert (shown.state, shown.attempts) == ("done", 2)


def test_the_lost_attempt_of_a_dead_worker_names_it(bus: agentbus.Bus, connect: Connect) -> None:
    task = bus.queue("mail").publish(1)
    connect("bob").queue("mail").fetch(visibility=0.05)
    holder = bus.task(task).worker

    bus.subscribe("mail", lambda _: None, drain=True, visibility=0.05).run()

    lost, done = bus.task(task).runs
    assert (lost.attempt, lost.outcome, lost.worker) == (1, "lost", holder)
    assert (done.attempt, done.outcome) == (2, "done")


def test_a_first_attempt_that_succeeds_leaves_no_record(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1)

    bus.subscribe("mail", lambda _: "result", drain=True).run()

    assert ask(bus, "KEYS", f"{bus.project}:attempts:*") == []
    shown = bus.task(task)
    assert (shown.state, shown.attempts, len(shown.runs)) == ("done", 1, 1)


def test_the_record_of_attempts_is_bounded_and_expires(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1)
    bus.subscribe("mail", fails, attempts=25, backoff=Backoff(first=0.0), drain=True).run()

    shown = bus.task(task)

    assert [run.attempt for run in shown.runs] == list(range(6, 26))
    (key,) = ask(bus, "KEYS", f"{bus.project}:attempts:*:runs")
    assert 0 < ask(bus, "TTL", key) <= 86_400


def test_a_task_shows_what_it_waits_for_and_what_waits_for_it(bus: agentbus.Bus) -> None:
    first, second = (bus.queue(name).publish(1) for name in ("a", "b:%"))
    last = bus.queue("mail").publish(2, after=[first, second])

    assert bus.task(first).awaited_by == (last,)
    assert set(bus.task(last).waits_for) == {first, second}

    bus.subscribe("a", lambda _: None, drain=True).run()

    assert bus.task(last).waits_for == (second,)


def test_a_delayed_task_is_found_once_it_is_due(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task = queue.publish(7, delay=0)
    (held,) = queue.fetch()

    shown = bus.task(task)

    assert (shown.state, shown.payload) == ("running", 7)
    held.ack()
    assert bus.task(task).state == "done"


def test_a_finished_task_that_was_delayed_shows_no_wrong_priority(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    delayed = queue.publish(1, delay=0, priority="high")
    at_once = queue.publish(1, priority="low")
    bus.subscribe("mail", lambda _: "ok", drain=True).run()
    assert bus.task(delayed).priority == "high"

    for priority in ("high", "low"):
        ask(bus, "XTRIM", bus.scope.keys.queue("mail", priority), "MAXLEN", 0)

    assert [bus.task(one).state for one in (delayed, at_once)] == ["done", "done"]
    assert [bus.task(one).priority for one in (delayed, at_once)] == [None, "low"]


def test_a_routed_task_is_not_called_done_before_it_is(bus: agentbus.Bus) -> None:
    task = bus.queue("incoming").publish({"task": "x"})
    Router(bus, parse("agents: [ada]\ndefault: ada\n", "team.yaml"), drain=True).run()

    assert bus.task(task).state == "routed"

    bus.subscribe("agent.ada", lambda _: "ok", drain=True).run()
    assert bus.task(task).state == "done"


def test_a_routed_task_that_was_delayed_is_found_where_it_was_moved(bus: agentbus.Bus) -> None:
    tasks = [bus.queue("incoming").publish(number, delay=0) for number in (1, 2)]
    bus.tidy()
    Router(bus, parse("agents: [ada]\ndefault: ada\n", "team.yaml"), drain=True).run()
    shown = [bus.task(one.id) for one in bus.queue("agent.ada").inspect()]

    assert [(one.id, one.state, one.payload) for one in shown] == [
        (task, "routed", number) for number, task in enumerate(tasks, 1)
    ]

    bus.subscribe("agent.ada", lambda _: "ok", drain=True).run()
    assert {bus.task(task).state for task in tasks} == {"done"}


@pytest.mark.parametrize("task", ["1-1@mail", "d9@mail", "99999999999999-1@mail"])
def test_an_unknown_task_is_not_found(bus: agentbus.Bus, task: str) -> None:
    bus.queue("mail").publish(1)

    with pytest.raises(NotFound, match="there is no task"):
        bus.task(task)


def test_where_several_groups_could_be_meant_one_must_be_named(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1)
    for group in ("a", "b"):
        bus.subscribe("mail", lambda _: None, group=group, drain=True).run()

    with pytest.raises(UsageError, match="several groups"):
        bus.task(task)
    assert bus.task(task, group="a").state == "done"


def test_a_burial_is_known_by_its_letter_when_its_records_are_gone(
    bus: agentbus.Bus, monkeypatch: Any
) -> None:
    queue = bus.queue("mail")
    tasks = queue.publish_many([1, 2])
    one, other = queue.fetch()
    one.ack()
    other.bury("no such address")
    for kind in ("results", "attempts"):
        for key in ask(bus, "KEYS", f"{bus.project}:{kind}:*"):
            ask(bus, "DEL", key)
    monkeypatch.setattr("agentbus.queues.state.RUNS_KEPT", -60.0)

    assert [bus.task(task).state for task in tasks] == ["done", "dead"]


# -- what is not there --


def forget_all(bus: agentbus.Bus) -> None:
    """Wipe the project, as a server that comes back empty."""
    for key in ask(bus, "KEYS", f"{bus.project}:*"):
        ask(bus, "DEL", key)


@pytest.mark.parametrize("trims", [False, True])
def test_a_task_of_a_server_that_was_wiped_is_not_called_done(bus, trims) -> None:
    queue = bus.queue("q: 50%")
    lost = queue.publish("lost")
    again = queue.publish("again")
    while True:
        forget_all(bus)
        if (new := queue.publish("new")).split("-")[0] > again.split("-")[0]:
            break
    bus.subscribe("q: 50%", lambda _delivery: None, drain=True).run()
    if trims:
        queue.publish("newest")
        ask(bus, "XTRIM", bus.scope.keys.queue("q: 50%", "normal"), "MAXLEN", 1)

    assert bus.result(new) is None
    for gone in (lost, again):
        with pytest.raises(NotFound, match="there is no task"):
            bus.result(gone)
        with pytest.raises(NotFound, match="there is no task"):
            queue.publish("next", after=gone)


def test_a_task_that_was_trimmed_is_done_all_the_same(bus) -> None:
    queue = bus.queue("q")
    done = queue.publish("done")
    bus.subscribe("q", lambda _delivery: None, drain=True).run()
    queue.publish("next")
    ask(bus, "XTRIM", bus.scope.keys.queue("q", "normal"), "MAXLEN", 1)

    assert bus.result(done) is None


def test_a_task_that_a_failover_lost_is_not_called_done_beside_older_ones(bus) -> None:
    queue = bus.queue("q")
    queue.publish("older")
    lost = queue.publish("lost")
    stream = bus.scope.keys.queue("q", "normal")
    ask(bus, "XDEL", stream, lost.partition("@")[0])
    assert queue.publish("newer") > lost
    bus.subscribe("q", lambda _delivery: None, drain=True).run()

    with pytest.raises(NotFound, match="there is no task"):
        bus.result(lost)


def test_the_limit_of_attempts_is_not_their_number_and_a_name_is_not_an_id(
    real_shell: Shell,
) -> None:
    options = ("--attempts", "5", "--task", "send_mail")
    task = real_shell.ok("publish", "mail", "hello", *options).strip()
    real_shell.ok("work", "mail", "--drain", "--", "true")

    shown = dict(
        line.split(maxsplit=1) for line in real_shell.ok("task", "show", task).splitlines()
    )

    assert (shown["task"], shown["name"]) == (task, "send_mail")
    assert (shown["attempts"], shown["limit"]) == ("1", "5 attempts")
