"""agentbus flow: flows are listed, shown, cancelled and replayed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import agentbus
from agentbus.tasks import Flows, FlowTask, chain
from tests.servers import Shell


@pytest.fixture
def bus(real_url: str, project: str) -> Iterator[agentbus.Bus]:
    with agentbus.connect(real_url, project=project, agent="ada") as opened:
        yield opened


@pytest.fixture
def flow(bus: agentbus.Bus) -> str:
    """A flow of two tasks, of which the first can be undone."""
    first = FlowTask(1, queue="one", undo=FlowTask(-1, queue="back"), name="the first")
    return Flows(bus).publish(chain(first, FlowTask(2, queue="two")), id="order 17")


def test_list_and_show_print_the_flow(real_shell: Shell, flow: str) -> None:
    listed = real_shell.ok("flow", "list").splitlines()
    assert listed[0].split() == [
        *["FLOW", "STATE", "TASKS", "DONE", "FAILED", "CANCELLED", "CREATED", "ENDED"]
    ]
    assert listed[1].startswith('"order 17"  running')

    shown = real_shell.ok("flow", "show", flow).splitlines()
    assert shown[0] == '"order 17" running: 0 of 2 tasks done'
    assert shown[2].split() == ["1", '"the', 'first"', "d1@one", "-", "waiting", "waiting", "-"]
    assert shown[3].split() == ["2", "two", "d1@two", "1", "blocked", "-", "-"]


def test_the_json_has_all_fields(real_shell: Shell, flow: str) -> None:
    (listed,) = real_shell.records("flow", "list")
    (shown,) = real_shell.records("flow", "show", flow)
    tasks = shown.pop("tasks")

    assert shown == listed
    assert (shown["flow"], shown["state"], shown["size"], shown["ended"]) == (
        flow,
        "running",
        2,
        None,
    )
    assert tasks[1] == {
        "number": 2,
        "name": "two",
        "queue": "two",
        "task_id": "d1@two",
        "state": "blocked",
        "error": None,
        "after": [1],
        "undo_id": None,
        "undo_state": None,
    }


def test_a_failed_flow_is_undone_and_replayed(real_shell: Shell, flow: str) -> None:
    real_shell.ok("work", "one", "--drain", "--", "echo", "shelf 4")
    real_shell.run("work", "two", "--drain", "--", "sh", "-c", "exit 65")
    assert real_shell.records("flow", "list")[0]["state"] == "compensating"
    refused = real_shell.run("flow", "replay", flow)
    assert (refused.returncode, "is compensating" in refused.stderr) == (4, True)

    real_shell.ok(
        "work", "back", "--drain", "--", "sh", "-c", 'test "$AGENTBUS_RESULTS" = \'["shelf 4"]\''
    )
    assert real_shell.records("flow", "list")[0]["state"] == "compensated"

    assert "running: 0 of 2 tasks done" in real_shell.ok("flow", "replay", flow)
    for queue in ("one", "two"):
        real_shell.ok("work", queue, "--drain", "--", "true")
    assert real_shell.records("flow", "show", flow)[0]["state"] == "done"


def test_cancel_ends_it(real_shell: Shell, flow: str) -> None:
    assert "cancelled: 0 of 2 tasks done, 2 cancelled" in real_shell.ok("flow", "cancel", flow)
    again = real_shell.run("flow", "cancel", flow)
    assert (again.returncode, again.stderr.splitlines()[1]) == (
        4,
        "hint: see 'agentbus flow show 'order 17''",
    )


def test_an_unknown_flow_exits_5(real_shell: Shell) -> None:
    for action in ("show", "cancel", "replay"):
        assert real_shell.run("flow", action, "none").returncode == 5
    assert real_shell.run("flow", "list", "none").returncode == 2
    assert real_shell.run("flow", "show").returncode == 2
