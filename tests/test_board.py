"""The board: tasks that agents pull, listed by what is ready, running and blocked."""

from __future__ import annotations

from typing import Any

import pytest

import agentbus
from agentbus.dashboard import Dashboard
from tests.servers import Shell
from tests.test_mcp import McpClient, client  # noqa: F401


def states(bus: agentbus.Bus, **wanted: Any) -> list[tuple[str, str, bool]]:
    now = bus.scope.server_now()
    rows = Dashboard(bus).board(**wanted).rows
    return [(row.id, row.state, row.is_ready(now)) for row in rows]


def test_ready_tasks_come_first_in_the_order_in_which_they_are_taken(bus: agentbus.Bus) -> None:
    queue = bus.queue("todo")
    first, second = queue.publish("first\nand more"), queue.publish({"title": "second", "body": 1})
    urgent = queue.publish("urgent", priority="high")
    later = queue.publish("later", delay=3600)
    blocked = queue.publish("blocked", after=[first, second])

    rows = Dashboard(bus).board(queue="todo").rows

    assert [row.id for row in rows] == [urgent, first, second, later, blocked]
    assert [row.title for row in rows] == ["urgent", "first", "second", "later", "blocked"]
    assert rows[-1].waits_for == (first, second)
    assert [ready for *_, ready in states(bus)] == [True, True, True, False, False]
    assert [bus.take("todo").id for _ in range(3)] == [urgent, first, second]


def test_a_finished_dependency_blocks_no_longer(bus: agentbus.Bus) -> None:
    queue = bus.queue("todo")
    first, second = queue.publish("first"), queue.publish("second")
    queue.publish("blocked", after=[first, second])
    bus.take("todo").ack()

    (blocked,) = (row for row in Dashboard(bus).board().rows if row.state == "blocked")

    assert blocked.waits_for == (second,)


def test_the_board_says_who_holds_a_task_and_since_when(bus: agentbus.Bus) -> None:
    bus.queue("todo").publish("work")
    began = bus.scope.server_now()
    task = bus.take("todo", visibility=3600)

    (row,) = Dashboard(bus).board().rows

    assert (row.state, row.worker) == ("running", f"hand:{bus.agent}")
    assert row.began is not None
    assert abs(row.began - began) < 60
    assert task.until == pytest.approx(row.due)


def test_a_task_whose_holder_let_its_visibility_pass_is_ready(bus: agentbus.Bus) -> None:
    task_id = bus.queue("todo").publish("work")
    bus.take("todo", visibility=0.001)

    (row,) = Dashboard(bus).board().rows

    assert row.due is not None
    assert (row.is_ready(row.due - 1), row.is_ready(row.due)) == (False, True)
    assert bus.take("todo", wait=20).id == task_id


def test_only_the_first_task_of_an_ordering_key_is_ready(bus: agentbus.Bus) -> None:
    queue = bus.queue("todo")
    first = queue.publish("first", ordering_key="main")
    second = queue.publish("second", ordering_key="main")
    other = queue.publish("other")

    assert states(bus) == [
        (first, "waiting", True),
        (other, "waiting", True),
        (second, "waiting", False),
    ]
    assert bus.take("todo").id == first
    (row,) = (row for row in Dashboard(bus).board().rows if row.id == second)
    assert row.waits_for == (first,)


def test_queues_of_the_bus_itself_are_no_work(bus: agentbus.Bus) -> None:
    bus.queue("todo").publish("work", webhook="https://example.org/")
    bus.take("todo").ack()

    assert states(bus) == []


def test_task_list_shows_what_is_ready_and_what_blocks_the_rest(
    real_shell: Shell, real_url: str, project: str
) -> None:
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        first = bus.queue("todo").publish("add VAT\nand a test")
        bus.queue("todo").publish("print euros", after=first)
        bus.queue("mail").publish("elsewhere")

    (record,) = real_shell.records("task", "list", "--ready", "--queue", "todo")

    assert (record["task_id"], record["title"], record["waits_for"]) == (first, "add VAT", [])
    text = real_shell.ok("task", "list", "--state", "blocked")
    assert f"print euros: after {first}" in text
    assert len(real_shell.records("task", "list", "--ready", "--limit", "1")) == 1
    assert real_shell.run("task", "list", "--ready", "--state", "done").returncode == 2


def test_a_task_given_back_is_ready_at_once_and_its_attempt_does_not_count(
    real_shell: Shell, real_url: str, project: str
) -> None:
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        task_id = bus.queue("todo").publish("work")
    real_shell.ok("task", "take", "todo")

    assert real_shell.ok("task", "give-back", task_id) == f"{task_id} given back\n"

    assert real_shell.run("task", "give-back", task_id).returncode == 5
    (ready,) = real_shell.records("task", "list", "--ready")
    (taken,) = real_shell.records("task", "take", "todo")
    assert (ready["task_id"], taken["task_id"], taken["attempt"]) == (task_id, task_id, 1)
    stale = real_shell.run("task", "give-back", task_id, "--token", "17")
    assert stale.returncode == 4


# -- the tool --


def test_the_tool_lists_the_board(client: McpClient) -> None:  # noqa: F811
    _, first = client.call("work", do="put", queue="todo", title="add VAT", body="19 %")
    _, second = client.call(
        *("work",), do="put", queue="todo", body="print\neuros", after=[first["task_id"]]
    )
    _, urgent = client.call("work", do="put", queue="todo", title="now", priority="high")

    text, _ = client.call("work", do="list", queue="todo")

    assert text.splitlines() == [
        f'ready {urgent["task_id"]} high "now"',
        f'ready {first["task_id"]} "add VAT"',
        f'blocked {second["task_id"]} "print" after {first["task_id"]}',
    ]
    client.call("work", do="take", queue="todo")
    _, taken = client.call("work", do="take", queue="todo")
    assert taken["payload"] == {"title": "add VAT", "body": "19 %"}
    assert f'running {first["task_id"]} "add VAT" by ' in client.call("work", do="list")[0]
    client.call("work", do="done", id=first["task_id"])
    assert f'ready {second["task_id"]} "print"' in client.call("work", do="list")[0]
    assert client.call("work", do="list", queue="else")[0] == "No task is unfinished."


def test_a_key_puts_work_once_while_it_is_unfinished(client: McpClient) -> None:  # noqa: F811
    put = {"do": "put", "queue": "todo", "body": "add VAT", "key": "vat"}
    _, first = client.call("work", **put)
    assert client.call("work", **put)[1]["task_id"] == first["task_id"]
    client.call("work", do="take", queue="todo")
    client.call("work", do="done", id=first["task_id"])

    assert client.call("work", **put)[1]["task_id"] != first["task_id"]


def test_the_tool_fails_and_gives_back_tasks(client: McpClient) -> None:  # noqa: F811
    _, put = client.call("work", do="put", queue="todo", body="add VAT")
    task_id = put["task_id"]
    client.call("work", do="take", queue="todo")
    assert "given back" in client.call("work", do="give_back", id=task_id)[0]
    _, taken = client.call("work", do="take", queue="todo")
    assert taken["attempt"] == 1

    assert "retrying" in client.call("work", do="fail", id=task_id, body="red")[0]
    assert f"retrying {task_id}" in client.call("work", do="list")[0]


def test_taking_from_a_queue_that_does_not_exist_is_an_error(client: McpClient) -> None:  # noqa: F811
    client.call("work", do="put", queue="todo", body="add VAT")

    assert "there is no queue 'tod'" in client.failed("work", do="take", queue="tod")
    client.call("work", do="take", queue="todo")
    assert client.call("work", do="take", queue="todo")[0] == "no task of 'todo' is ready"


@pytest.mark.parametrize(
    "given",
    [
        {"do": "list", "id": "1-1@todo"},
        {"do": "take"},
        {"do": "take", "queue": "todo", "after": ["1-1@todo"]},
        {"do": "put", "queue": "todo"},
        {"do": "put", "body": "x"},
        {"do": "give_back", "id": "1-1@todo", "body": "x"},
        {"do": "done", "queue": "todo"},
    ],
    ids=str,
)
def test_the_tool_refuses_what_an_action_does_not_take(
    client: McpClient,  # noqa: F811
    given: dict[str, Any],
) -> None:
    assert client.failed("work", **given)
