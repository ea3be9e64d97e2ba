"""`install --check` runs what is installed: what it shows, and what it finds wrong."""

from __future__ import annotations

import json
import os
import pathlib
import stat

import pytest

from agentbus.agents import hook
from agentbus.agents.clients import CLIENTS as FACTS
from agentbus.agents.install import folder, trial
from agentbus.core.settings import resolve
from tests import inprocess
from tests.hooks import RECORDED
from tests.installing import User
from tests.servers import Server

CLIENTS = ("claude", "codex", "copilot", "gemini", "opencode", "cursor")
TOOLS = "catch_up, tell, ask, reply, receipts, who, lease, note, flag, work"
# The events that each client's hooks have something to say at, in the project of the check.
SAYS = {
    "SessionStart": "You are ",
    "UserPromptSubmit": "AgentBus: 1 message. ",
    "PreToolUse": " is leased by agentbus-check until ",
    "PostToolUse": "AgentBus: 1 message; 2 unread in all. ",
    "Stop": "AgentBus: before you stop, look at 1 ask from agentbus-check ",
    "SessionEnd": "",
}
SAME = {
    "gemini": ("SessionStart", "BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent"),
    "opencode": (
        *("session.created", "chat.message", "tool.execute.before", "tool.execute.after"),
        "session.idle",
    ),
}

# The bus of the check is opened in this process, and left as it is where a process ends.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def user(tmp_path: pathlib.Path, valkey: Server) -> User:
    user = User(tmp_path, "claude", "codex", "copilot", "gemini", "opencode")
    user.environment["AGENTBUS_URL"] = valkey.url
    return user


def test_claudes_hooks_are_run_and_what_the_model_sees_is_shown(user):
    user.install("claude")

    code, found = user.check("claude")

    assert code == 0
    for event, text in SAYS.items():
        finding = found["claude", event]
        assert finding["status"] == "ok"
        assert finding["ms"] > 0
        assert text in finding["shows"]
        assert bool(finding["shows"]) == bool(text)
    assert found["claude", "mcp"]["shows"] == TOOLS


@pytest.mark.parametrize("client", ["copilot", *SAME, "cursor"])
def test_each_clients_hooks_are_run(user, client):
    user.install(client)

    code, found = user.check(client)

    assert code == 0, found
    events = SAME.get(client, tuple(FACTS[client].events)[:-1])
    shows = {event: found[client, event]["shows"] for event in events}
    assert [event for event, text in shows.items() if not text] == (
        {"cursor": ["beforeSubmitPrompt"], "copilot": ["SubagentStop"]}.get(client, [])
    )


@pytest.mark.parametrize(
    "other", [{"command": "say it's done"}, {"command": 5}, {"hooks": [None]}, "say done", None]
)
def test_hooks_of_others_before_ours_are_left_alone(user, other):
    settings = user.home / ".cursor/hooks.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"hooks": {"stop": [other]}}))
    user.install("cursor")

    code, found = user.check("cursor")

    assert code == 0, found
    assert found["cursor", "stop"]["shows"].startswith("AgentBus: before you stop")


def test_the_check_leaves_nothing_on_the_bus(user):
    user.install("cursor")
    user.check("cursor")

    assert b"agentbus-check" not in user.run("projects").out
    assert user.run("who").out == b""


def test_people_read_what_the_model_would_see_in_lines(user):
    user.install("cursor")

    lines = user.run("install", "--check").out.decode().splitlines()
    assert lines[0] == "ok      cursor installed: 6 hooks, 1 server"
    assert lines[1].startswith("ok      cursor sessionStart: the model sees, ")
    assert lines[2].startswith("          | You are cursor-")


def test_codex_fails_until_the_user_trusts_the_hooks(user):
    user.install("codex")

    code, found = user.check("codex")
    assert code == 6
    assert found["codex", "trust"]["status"] == "failed"
    assert "enter /hooks" in found["codex", "trust"]["remedy"]
    assert found["codex", "PreToolUse"]["status"] == "ok"
    user.fake("trust", "trusted")
    assert user.check("codex")[0] == 0
    user.fake("trust", "modified")
    assert user.check("codex")[0] == 6


def test_a_hook_whose_program_is_gone_fails_with_a_remedy(user, tmp_path, monkeypatch):
    program = tmp_path / "moved/agentbus"
    monkeypatch.setattr(folder, "program", lambda: str(program))
    user.install("cursor")

    code, found = user.check("cursor")

    assert code == 6
    assert "it ends with exit 127" in found["cursor", "stop"]["found"]
    assert found["cursor", "stop"]["remedy"] == "agentbus install cursor"
    assert "it cannot be run" in found["cursor", "mcp"]["found"]


@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        ("echo this is no JSON", "what it prints is not JSON"),
        ("echo no such thing >&2; exit 1", "it ends with exit 1: no such thing"),
        ("exit 0", "it says nothing"),
    ],
)
def test_a_hook_that_does_something_else_fails(user, tmp_path, monkeypatch, script, wrong):
    program = tmp_path / "agentbus"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(folder, "program", lambda: str(program))
    user.install("cursor")

    code, found = user.check("cursor")

    assert code == 6
    assert found["cursor", "stop"]["found"] == wrong
    assert "it does not answer as an MCP server" in found["cursor", "mcp"]["found"]


def test_what_was_never_installed_fails_with_the_command_that_does(user):
    code, found = user.check()

    assert code == 6
    assert {one["remedy"] for one in found.values()} == {
        f"agentbus install {client}" for client in CLIENTS if client != "cursor"
    }


def test_a_client_that_lost_the_plugin_fails(user):
    user.install("claude", "codex", "gemini")
    for client in ("claude", "codex", "gemini"):
        (user.home / ".fake" / f"{client}.json").unlink()

    code, found = user.check()

    assert code == 6
    assert found["claude", "installed"]["found"] == "it has no plugin agentbus"
    assert found["codex", "installed"]["found"] == "it has no plugin agentbus"
    assert "no extension agentbus" in found["gemini", "installed"]["found"]


def test_a_plugin_that_the_user_disabled_fails(user):
    user.install("claude")
    path = user.home / ".fake/claude.json"
    path.write_text(path.read_text().replace('"enabled": true', '"enabled": false'))

    assert user.check()[1]["claude", "installed"]["found"] == "its plugin agentbus is disabled"


def test_a_copy_that_somebody_changed_fails(user):
    user.install("claude")
    next((user.home / ".claude").rglob("hooks.json")).write_text("{}")

    code, found = user.check()
    assert code == 6
    assert "another version of hooks/hooks.json" in found["claude", "installed"]["found"]


def test_settings_that_lost_our_entries_fail(user):
    user.install("cursor")
    (user.home / ".cursor/hooks.json").write_text("{}")

    assert user.check()[0] == 6


def test_the_lines_in_agents_md_and_the_hook_of_git_are_checked(user):
    user.install("agents-md", "--git")
    assert user.check()[0] == 0

    (user.root / "AGENTS.md").unlink()
    code, found = user.check()
    assert code == 6
    assert found["agents-md", "installed"]["remedy"] == "agentbus install agents-md"
    assert found["git", "installed"]["status"] == "ok"


def test_without_a_bus_hooks_are_run_and_the_rest_is_a_warning(user):
    user.install("cursor")
    user.environment |= {"AGENTBUS_URL": "redis://127.0.0.1:1", "AGENTBUS_DEADLINE": "0.1"}

    code, found = user.check()

    assert code == 0
    assert found["cursor", "bus"]["status"] == "warning"
    assert found["cursor", "stop"]["found"] == "says nothing"


def test_a_server_that_was_away_until_now_is_asked_again(user):
    user.install("cursor")
    with inprocess.environment(user.environment):
        mark = pathlib.Path(hook._mark(resolve({})))
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()

    code, found = user.check()
    assert code == 0, found
    assert found["cursor", "stop"]["shows"]


def test_the_session_that_runs_the_check_keeps_its_name(user, tmp_path):
    shells = tmp_path / "shells"
    shells.touch()
    user.environment |= {"CLAUDE_ENV_FILE": str(shells), "AGENTBUS_AGENT": "reviewer"}
    user.install("claude")

    code, found = user.check("claude")

    assert code == 0
    assert shells.read_text() == ""
    assert "reviewer" not in found["claude", "SessionStart"]["shows"]


def test_the_samples_have_the_fields_that_clients_send():
    names = {"cursor-2.4": "cursor"}
    for path in sorted(RECORDED.glob("*/*.json")):
        client = names.get(path.parent.name, path.parent.name.partition("-")[0])
        if "files" in path.parent.name or path.stem == "Wake":
            continue
        recorded = json.loads(path.read_text())
        ours = trial.sample(FACTS[client], path.stem, "s", "/work/shop/src/db.py")
        assert set(ours) <= set(recorded), path


def test_a_server_that_says_nothing_is_waited_for_no_longer_than_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "_LONGEST", 0.05)

    names, ran = trial.tools(["sleep", "5"])
    assert names == []
    assert "does not answer within" in ran.wrong


def test_no_check_writes_to_the_repository(user):
    user.install("claude")
    before = sorted(os.listdir(user.root))

    user.check("claude")
    assert sorted(os.listdir(user.root)) == before


# -- doctor --


def doctor(user: User) -> dict[str, tuple[str, str]]:
    done = user.run("doctor", "--json")
    found = [json.loads(line) for line in done.out.splitlines()]
    return {
        one["check"]: (one["status"], one["found"])
        for one in found
        if one["check"].startswith("install ")
    }


def test_doctor_says_nothing_of_clients_in_which_nothing_is_installed(user):
    assert doctor(user) == {}


def test_doctor_says_whether_what_is_installed_works(user):
    user.install("cursor", "codex")

    found = doctor(user)
    assert found["install cursor"] == ("ok", "its hooks and tools work")
    status, why = found["install codex"]
    assert status == "warning"
    assert why == "trust: not trusted yet: stop"


def test_doctor_goes_on_where_the_record_is_damaged(user):
    user.install("cursor")
    (user.home / ".local/share/agentbus/clients/installed.json").write_text("[")

    assert doctor(user)["install record"][0] == "warning"
