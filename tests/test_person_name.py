"""The name of a person, `human:<name>`, is refused in a session of a coding agent."""

from __future__ import annotations

import os
import subprocess

import pytest

import agentbus
from agentbus.core import client_session, person_name
from agentbus.core.settings import resolve, state_directory
from agentbus.dashboard import person


@pytest.mark.parametrize("variable", ["CLAUDE_CODE_SESSION_ID", "CODEX_THREAD_ID", "GEMINI_CLI"])
@pytest.mark.parametrize("name", ["human:ada", "Human:ada"])
def test_an_agent_does_not_speak_as_a_person(monkeypatch, variable, name):
    monkeypatch.setenv(variable, "1")

    with pytest.raises(agentbus.InvalidName, match="session of a coding agent"):
        agentbus.connect(agent=name)
    monkeypatch.setenv("AGENTBUS_AGENT", name)
    with pytest.raises(agentbus.InvalidName, match="session of a coding agent"):
        resolve()


def test_a_process_below_a_client_does_not_speak_as_a_person_without_its_variables():
    folder = client_session.folder_in(state_directory())
    client_session.write(folder, "claude", "s-1", "claude-otter-k3f", os.getppid())

    with pytest.raises(agentbus.InvalidName, match=f"process {os.getppid()}"):
        agentbus.connect(agent="human:ada")


def test_a_process_below_a_client_without_hooks_does_not_speak_as_a_person(tmp_path, monkeypatch):
    program = tmp_path / "claude"
    program.symlink_to("/bin/cat")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([program], **pipes) as client:
        client.stdin.write(b"\n")
        client.stdin.flush()
        # It has the name of its program once it runs.
        client.stdout.readline()
        monkeypatch.setattr(client_session, "ancestors", lambda: iter([(client.pid, "1")]))
        try:
            with pytest.raises(agentbus.InvalidName, match=f"process {client.pid}"):
                agentbus.connect(agent="human:ada")
        finally:
            client.kill()


@pytest.mark.parametrize("write", [True, False])
def test_an_agent_opens_a_dashboard_that_only_reads(monkeypatch, write):
    settings = resolve()
    monkeypatch.setenv("CLAUDE_CODE_SESSION_ID", "s-1")
    if not write:
        assert person.acting(settings, "eve", write=False).agent == "human:eve"
        return
    with pytest.raises(agentbus.InvalidName, match="session of a coding agent"):
        person.acting(settings, "eve")


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("redis://ada:secret@host:6379/0", True),
        ("redis://a%64a:secret@host", True),
        ("redis://default:secret@host", True),
        ("redis://:secret@host", True),
        ("redis://host", True),
        ("unix:///tmp/a@b/socket", True),
        ("rediss://agents:secret@host", False),
        ("redis://ADA@host", False),
    ],
)
def test_a_person_speaks_as_the_redis_user_of_that_name(monkeypatch, url, allowed):
    monkeypatch.setattr(person_name, "_client", lambda *_: "")
    if allowed:
        assert resolve({"agent": "human:ada", "url": url}).agent == "human:ada"
        return
    with pytest.raises(agentbus.InvalidName) as refused:
        resolve({"agent": "human:ada", "url": url})
    assert "secret" not in str(refused.value)
