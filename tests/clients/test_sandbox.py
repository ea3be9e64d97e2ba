"""What works in the sandbox of Codex, without a network, and before hooks are trusted."""

from __future__ import annotations

import re

import pytest

from tests.clients.conftest import Desk, each
from tests.clients.forms import Call, Say
from tests.clients.real import Codex

pytestmark = pytest.mark.slow

# Prints the exit code and the time that it took in ms; the first run fills caches.
TIMED = (
    "for n in 1 2 3; do begun=$(date +%s%N); agentbus inbox; code=$?;"
    " echo exit $code after $((($(date +%s%N) - begun) / 1000000)) ms; done"
)


@each([(Codex, "scripted")])
@pytest.mark.parametrize("sandbox", ["workspace-write", "read-only"])
def test_a_command_in_the_sandbox_of_codex_says_at_once_what_works_there(
    desk: Desk, sandbox: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(desk.client, "sandbox", sandbox)
    tell = desk.client.tool("tell", to=["reviewer"], text="from a tool")

    run = desk.run(desk.client.shell(TIMED), *tell, Say())

    shown = run.requests[1].from_tools
    took = [int(ms) for ms in re.findall(r"exit 1 after (\d+) ms", shown)]
    assert len(took) == 3, shown
    assert min(took) <= 100
    assert shown.count("a sandbox keeps this command from the bus (Operation not permitted)") == 3
    assert "catch_up" in shown
    assert "server repair" not in shown
    assert "defect" not in shown
    # Hooks named the session, and a tool has told something by that name.
    (message,) = desk.reviewer.inbox()
    assert message.agent_id == desk.agent


@each([(Codex, "scripted")])
def test_a_command_in_a_sandbox_of_codex_that_has_a_network_reads_the_inbox(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    allowed = [*desk.client.command("go on"), "-c", "sandbox_workspace_write.network_access=true"]
    monkeypatch.setattr(desk.client, "command", lambda prompt: allowed)

    run = desk.run(desk.tells("a text", desk.client.shell("agentbus inbox")), Say())

    assert "| a text" in run.requests[1].from_tools


@each([(Codex, "scripted")])
def test_codex_runs_no_hook_before_its_user_trusts_it_but_has_the_tools(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    words = [word for word in desk.client.command("go on") if "hook-trust" not in word]
    monkeypatch.setattr(desk.client, "command", lambda prompt: words)

    run = desk.run(*desk.client.tool("tell", to=["reviewer"], text="from a tool"), Say())

    assert "on AgentBus, project" not in run.requests[0].above
    (message,) = desk.reviewer.inbox()
    assert message.agent_id.startswith("codex-")


@each([(Codex, "scripted")])
def test_the_clients_of_these_tests_have_no_network_but_the_model(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    assert desk.client.isolated, "unshare -rn is not permitted here"
    monkeypatch.setattr(desk.client, "sandbox", "danger-full-access")

    run = desk.run(Call("exec_command", {"cmd": "cat /proc/net/dev"}), Say())

    found = re.findall(r"^\s*(\w+):", run.requests[1].from_tools, re.MULTILINE)
    assert set(found) & {"lo", "eth0", "wlan0", "ens3"} == {"lo"}
