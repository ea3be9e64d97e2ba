"""The folder that coding agents' clients install: its files, and the commands in them."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import stat
import subprocess

import pytest

from agentbus.agents import plugin
from agentbus.agents.clients import CLIENTS
from agentbus.core.settings import VARIABLES

PROGRAM = "/opt/an agent's place/bin/agentbus"
DESCRIPTION = (
    "Talk to the other coding agents in this repository, lease files before editing them, hand over work,"
    " wait for builds. Use when several agents or worktrees share a repository, when a hook mentions"
    " AgentBus, or when asked to coordinate."
)


def commands(found: object) -> list[str]:
    """The shell commands of the hooks of a file."""
    if isinstance(found, list):
        return [one for each in found for one in commands(each)]
    if isinstance(found, dict):
        own = [found["command"]] if isinstance(found.get("command"), str) else []
        return own + [one for each in found.values() for one in commands(each)]
    return []


@pytest.fixture
def files() -> dict[str, str]:
    return plugin.files(PROGRAM)


def test_the_folder_has_a_manifest_for_each_client(files):
    assert set(files) == {
        ".claude-plugin/marketplace.json",
        "agentbus/.claude-plugin/plugin.json",
        "agentbus/.codex-plugin/plugin.json",
        "agentbus/.plugin/plugin.json",
        "agentbus/hooks/hooks.json",
        "agentbus/hooks/codex.json",
        "agentbus/hooks/copilot.json",
        "agentbus/.mcp.json",
        "agentbus/codex.mcp.json",
        "agentbus/skills/agentbus/SKILL.md",
        "portable/plugin.json",
        "portable/skills/agentbus/SKILL.md",
        "gemini/gemini-extension.json",
        "gemini/hooks/hooks.json",
        "gemini/GEMINI.md",
        "opencode/agentbus.js",
    }
    for path, content in files.items():
        if path.endswith(".json"):
            json.loads(content)
        assert "@AGENTBUS" not in content, path


@pytest.mark.parametrize(
    ("client", "path"),
    [
        ("claude", "agentbus/hooks/hooks.json"),
        ("codex", "agentbus/hooks/codex.json"),
        ("copilot", "agentbus/hooks/copilot.json"),
        ("gemini", "gemini/hooks/hooks.json"),
    ],
)
def test_each_hook_calls_this_program_with_the_client_and_an_event_that_it_answers(
    files, client, path
):
    found = json.loads(files[path])["hooks"]

    assert set(found) <= set(CLIENTS[client].events)
    for event, groups in found.items():
        called = [shlex.split(one) for one in commands(groups)]
        tools = ["--tools"] if event == "SessionStart" else []
        assert called.pop(0) == [PROGRAM, "hook", client, event, *tools]
        waits = client == "claude" and event == "Stop"
        assert called == ([[PROGRAM, "hook", client, "Wake"]] if waits else [])


def test_the_portable_plugin_has_the_fields_of_agent_plugins_alone(files):
    manifest = json.loads(files["portable/plugin.json"])

    assert manifest["$schema"] == "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"
    assert set(manifest) <= {"$schema", "name", "version", "description", "author"}
    assert files["portable/skills/agentbus/SKILL.md"] == files["agentbus/skills/agentbus/SKILL.md"]


def test_cursor_has_hooks_of_its_own_form():
    found = plugin.hooks("cursor", PROGRAM)

    assert found["version"] == 1
    assert shlex.split(found["hooks"]["stop"][0]["command"])[1:] == ["hook", "cursor", "stop"]


def test_gemini_counts_the_timeouts_in_milliseconds(files):
    def timeouts(path: str) -> set[int]:
        found = json.loads(files[path])["hooks"].values()
        return {hook["timeout"] for groups in found for group in groups for hook in group["hooks"]}

    assert timeouts("agentbus/hooks/codex.json") == {3, 10}
    assert timeouts("gemini/hooks/hooks.json") == {3_000, 10_000}


def test_the_servers_are_started_by_this_program(files):
    for path in ("agentbus/.mcp.json", "gemini/gemini-extension.json"):
        assert json.loads(files[path])["mcpServers"] == {
            "agentbus": {"command": PROGRAM, "args": ["mcp"]}
        }
    assert json.dumps(PROGRAM) in files["opencode/agentbus.js"]


def test_codex_passes_on_all_variables_of_settings_to_the_server(files):
    manifest = json.loads(files["agentbus/.codex-plugin/plugin.json"])
    server = json.loads(files[f"agentbus/{manifest['mcpServers']}".replace("./", "")])["mcpServers"]

    found = server["agentbus"]
    assert (found["command"], found["args"]) == (PROGRAM, ["mcp"])
    for names in VARIABLES.values():
        assert set(names) <= set(found["env_vars"])
    assert "XDG_STATE_HOME" in found["env_vars"]


def test_the_skill_is_short_and_says_when_to_use_it(files):
    skill = files["agentbus/skills/agentbus/SKILL.md"]
    _, head, text = skill.split("---\n", 2)

    assert head == f"name: agentbus\ndescription: {DESCRIPTION}\n"
    assert len(DESCRIPTION) <= 300
    assert len(skill.splitlines()) <= 120
    assert shlex.quote(PROGRAM) in text


def test_what_goes_into_agents_md_is_short():
    assert len(plugin.text("agents.md", PROGRAM).splitlines()) <= 8


def test_the_version_is_one_that_clients_take(monkeypatch):
    for ours, theirs in {"1.2.3": "1.2.3", "0.2.0.dev0": "0.2.0-dev0"}.items():
        monkeypatch.setattr(plugin, "__version__", ours)
        assert plugin.version() == theirs


def test_writing_the_folder_twice_changes_nothing(tmp_path):
    folder = str(tmp_path / "clients")

    assert plugin.write(PROGRAM, folder)
    before = {path: os.stat(os.path.join(folder, path)).st_ino for path in plugin.present(folder)}
    assert not plugin.write(PROGRAM, folder)
    assert before == {
        path: os.stat(os.path.join(folder, path)).st_ino for path in plugin.present(folder)
    }


def test_what_a_former_version_left_in_the_folder_is_removed(tmp_path):
    plugin.write("/old/agentbus", str(tmp_path))
    (tmp_path / "agentbus/hooks/former.json").write_text("{}")

    assert plugin.write(PROGRAM, str(tmp_path))
    assert set(plugin.present(str(tmp_path))) == set(plugin.files(PROGRAM))


def test_a_hook_of_a_program_in_a_path_with_spaces_runs(tmp_path: pathlib.Path):
    program = tmp_path / "it's a $place" / "agentbus"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)

    command = plugin.command(str(program), "claude", "Stop")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "hook claude Stop\n"
