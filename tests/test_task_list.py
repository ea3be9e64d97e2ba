"""The list of tasks: those that wait, run or have ended, and the search by what they contain."""

from __future__ import annotations

from typing import Any

import pytest

import agentbus
from agentbus.dashboard import Dashboard
from agentbus.errors import UsageError
from agentbus.queues.policy import Policies
from agentbus.store.steps import Command, one_step
from agentbus.tasks import Tasks
from tests.servers import Shell

NOW = agentbus.Backoff(0.0, 0.0)


def listed(bus: agentbus.Bus, **wanted: Any) -> Any:
    return Dashboard(bus).task_list(**wanted).rows


def work(bus: agentbus.Bus, handler: Any = lambda _: None, **options: Any) -> None:
    with bus.subscribe("mail", handler, drain=True, backoff=NOW, **options) as worker:
        worker.run()


def test_a_task_in_each_state_is_listed_with_it(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    done, buried, retrying, running, waiting = queue.publish_many(range(5))
    delayed = queue.publish("later", delay=3600)
    blocked = queue.publish("after", after=waiting)
    cancelled = queue.publish("never", delay=3600)
    bus.cancel(cancelled)
    held = queue.fetch(count=4)
    held[0].ack()
    held[1].bury("no such address")
    held[2].retry(600)
    expected = {
        done: "done",
        buried: "dead",
        retrying: "retrying",
        running: "running",
        waiting: "waiting",
        delayed: "delayed",
        blocked: "blocked",
    }

    assert {row.id: row.state for row in listed(bus)} == expected
    for task, state in expected.items():
        assert [row.id for row in listed(bus, state=state)] == [task]


def test_done_tasks_are_listed_newest_first_with_their_times(bus: agentbus.Bus) -> None:
    tasks = bus.queue("mail").publish_many(range(60))
    work(bus)

    rows = listed(bus, state="done", limit=20)

    ended = [row.finished or 0.0 for row in rows]
    # Several may end in one millisecond.
    assert ended == sorted(ended, reverse=True)
    assert rows[0].id == tasks[-1]
    assert len({row.id for row in rows} & {*tasks}) == 20
    assert all(row.finished and row.took is not None and row.host for row in rows)


def test_done_tasks_are_listed_after_their_entries_were_trimmed(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1)
    work(bus)
    key = bus.scope.keys.queue("mail", "normal")
    bus.runner.run(one_step(Command("XTRIM", key, "MAXLEN", 0)))

    (row,) = listed(bus)
    assert (row.id, row.state, row.attempts) == (task, "done", 1)


def test_without_a_log_done_tasks_are_listed_without_times(bus: agentbus.Bus) -> None:
    bus.runner._policies = Policies({"*": {"record_attempts": 0}}, "test")
    task = bus.queue("mail").publish(1)
    work(bus)

    (row,) = listed(bus, state="done")
    assert (row.id, row.finished, row.worker) == (task, None, None)


def test_a_dead_task_that_is_put_back_has_not_ended(bus: agentbus.Bus) -> None:
    def handler(_: agentbus.Delivery) -> None:
        raise ValueError("no mailbox")

    bus.queue("mail").publish(1)
    work(bus, handler, attempts=1)
    (dead,) = listed(bus)
    assert (dead.state, dead.error) == ("dead", "ValueError: no mailbox")

    (letter,) = bus.queue("mail").dead_letters()
    again = bus.queue("mail").replay(letter.id)

    assert {row.id: row.state for row in listed(bus)} == {dead.id: "dead", again: "waiting"}


def test_a_list_is_narrowed_by_queue_name_group_and_time(bus: agentbus.Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="mail")
    def send_mail(to: str) -> None: ...

    named = send_mail.publish(bus, "ada")
    plain = bus.queue("post").publish(1)
    other = bus.queue("images").publish(2)

    assert [row.id for row in listed(bus, name="send_mail")] == [named.id]
    assert [row.id for row in listed(bus, queue="images")] == [other]
    assert {row.id for row in listed(bus, group="default")} == {named.id, plain, other}
    tasks.worker(bus, drain=True).run()
    (row,) = listed(bus, name="send_mail")
    assert (row.id, row.state) == (named.id, "done")
    assert [hit.id for hit in listed(bus, text="send_mail")] == [named.id]
    assert listed(bus, queue="mail", group="audit") == ()
    assert listed(bus, since=4e9) == ()


def test_a_task_is_found_by_its_payload_key_correlation_and_error(bus: agentbus.Bus) -> None:
    def handler(delivery: agentbus.Delivery) -> None:
        if delivery.payload == {"order": 400}:
            raise ValueError("Mailbox is full")

    queue = bus.queue("mail")
    wanted = queue.publish({"order": 399, "to": "Ada@example.org"}, key="k-1")
    failing = queue.publish({"order": 400})
    chained = queue.publish(1, correlation_id="c-1")
    delayed = queue.publish({"order": 399}, delay=3600)
    work(bus, handler, attempts=1)

    assert {row.id for row in listed(bus, text="399")} == {wanted, delayed}
    assert [row.id for row in listed(bus, text="ada@EXAMPLE.org order")] == [wanted]
    assert [row.id for row in listed(bus, text="k-1")] == [wanted]
    assert [row.id for row in listed(bus, text="c-1")] == [chained]
    assert [row.id for row in listed(bus, text="mailbox full")] == [failing]
    assert [row.id for row in listed(bus, text=wanted)] == [wanted]
    assert [row.state for row in listed(bus, text="399", state="done")] == ["done"]
    assert listed(bus, text="nobody") == ()


def test_a_queue_that_has_only_delayed_tasks_is_listed(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1, delay=3600)

    assert [(row.id, row.state) for row in listed(bus)] == [(task, "delayed")]
    assert [row.id for row in listed(bus, state="delayed", queue="mail")] == [task]


def test_a_list_that_is_cut_says_so(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(5))

    assert Dashboard(bus).task_list(limit=10).complete
    assert not Dashboard(bus).task_list(limit=3).complete


@pytest.mark.parametrize("wanted", [{"state": "buried"}, {"limit": 0}], ids=str)
def test_a_list_that_cannot_be_is_refused(bus: agentbus.Bus, wanted: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        listed(bus, **wanted)


def test_task_list_prints_a_line_for_each_task(
    real_shell: Shell, real_url: str, project: str
) -> None:
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        done = bus.queue("mail").publish({"order": 399})
        work(bus)
        waiting = bus.queue("mail").publish({"order": 400})

    text = real_shell.ok("task", "list")
    lines = text.splitlines()
    (record,) = real_shell.records("task", "list", "--state", "done", "--text", "399")

    assert lines[1].split() == ["TASK", "STATE", "WORKER", "ABOUT", "WHEN", "RAN"]
    assert [line.split()[:2] for line in lines[2:]] == [[waiting, "waiting"], [done, "done"]]
    assert (record["task_id"], record["state"], record["attempts"]) == (done, "done", 1)
    assert record["finished"] >= record["began"] >= record["timestamp"] > "20"
    assert real_shell.records("task", "list", "--since", "2099-01-01T00:00:00Z") == []
    assert "there may be more" in real_shell.run("task", "list", "--json", "--limit", "1").stderr


@pytest.mark.parametrize(
    "argv",
    [
        ("list", "1-1@mail"),
        ("show",),
        ("show", "1-1@mail", "--state", "done"),
        ("list", "--state", "buried"),
        ("list", "--since", "soon"),
        ("list", "--limit", "0"),
    ],
    ids=" ".join,
)
def test_task_list_refuses_what_makes_no_sense(real_shell: Shell, argv: tuple[str, ...]) -> None:
    assert real_shell.run("task", *argv).returncode == 2
