"""The name of a real client's session, its tools, and what becomes of its task when it is killed."""

from __future__ import annotations

import json
import threading

import pytest

import agentbus
from tests.clients.conftest import Desk, all_models, five
from tests.clients.forms import Answer, Request, Say

pytestmark = pytest.mark.slow

SERVER = "mcp__plugin_agentbus_agentbus__"
TOOLS = ("ask", "catch_up", "flag", "lease", "note", "receipts", "reply", "tell", "who", "work")


@all_models
def test_hooks_tools_and_shells_of_a_session_have_one_name(desk: Desk):
    script = [
        desk.client.shell("agentbus whoami --json"),
        *desk.client.tool("tell", to=["reviewer"], text="from a tool"),
        Say(),
    ]

    run = desk.run(*script)

    (message,) = desk.reviewer.inbox()
    shown = run.requests[1].last
    whoami = json.loads(shown[shown.index("{") : shown.rindex("}") + 1])
    presence = desk.presence
    assert presence.client == desk.client.name
    assert presence.agent == whoami["agent_id"] == message.agent_id
    assert presence.agent.startswith(f"{desk.client.name}-")
    assert whoami["session"]["id"] == presence.session


@five
def test_all_tools_are_listed_for_the_model(desk: Desk):
    run = desk.run(Say())

    first = run.requests[0]
    if desk.client.name == "claude":
        # It names the tools of servers, and describes each after a search.
        lines = first.at("system").splitlines()
        assert [line for line in lines if line.startswith(SERVER)] == [SERVER + t for t in TOOLS]
    else:
        assert len({first.named(tool) for tool in TOOLS}) == len(TOOLS)


@five
def test_a_command_of_a_shell_reads_the_inbox(desk: Desk):
    if desk.client.name == "codex":
        desk.client.sandbox = "danger-full-access"
    try:
        step = desk.tells("text of a message", desk.client.shell("agentbus inbox"))
        run = desk.run(step, Say())
    finally:
        desk.client.sandbox = "workspace-write"

    assert "| text of a message" in run.requests[1].from_tools
    assert all("text of a message" not in request.above for request in run.requests)
    assert desk.presence.unread == 0


@five
def test_a_task_of_a_client_that_was_killed_comes_back_after_its_visibility(desk: Desk):
    desk.reviewer.queue("builds").publish({"n": 1})
    going_on, killed = threading.Event(), threading.Event()

    def dies(request: Request) -> Answer:
        going_on.set()
        killed.wait(60)
        return Say()

    if desk.client.name == "codex":
        desk.client.sandbox = "danger-full-access"
    try:
        take = desk.client.shell("agentbus task take builds --visibility 8s")
        with desk.start(take, dies) as run:
            assert going_on.wait(60)
            assert "builds" in run.requests[1].from_tools
            with pytest.raises(agentbus.NotFound):
                desk.reviewer.take("builds")
            run.kill()
            killed.set()
            again = desk.reviewer.take("builds", wait=60)
    finally:
        desk.client.sandbox = "workspace-write"

    assert again is not None
    assert (again.payload, again.attempt) == ({"n": 1}, 2)
