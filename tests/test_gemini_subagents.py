"""Subagents of Gemini CLI, whose hooks do not name them: what happens within `invoke_agent` is theirs."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from agentbus.core import client_session
from agentbus.store import scope
from tests import inprocess
from tests.hooks import RECORDED, Session


class Gemini:
    """A session of Gemini CLI that sends recorded inputs."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.id = session.id
        self.agent = client_session.name("gemini", session.id)
        self.bus = session.bus(self.agent)
        self.folder = str(session.state / "sessions")

    def send(self, event: str, tool: str = "", **fields: Any) -> str:
        given = json.loads((RECORDED / f"gemini-0.61.0/{event}.json").read_text())
        given |= {"session_id": self.id, "cwd": str(self._session.root), **fields}
        given |= {"tool_name": tool} if tool else {}
        return self._session.answer(event, json.dumps(given).encode(), "gemini")

    def held(self) -> list[tuple[str, bool]]:
        """Return the leased paths, and whether a subagent has each."""
        return [(lease.pattern, lease.sub is not None) for lease in self.bus.leases()]


@pytest.fixture
def gemini(url, project, tmp_path: pathlib.Path) -> Gemini:
    found = Gemini(Session(url, project, tmp_path))
    found.send("SessionStart")
    found.send("BeforeAgent")
    return found


def test_an_edit_within_the_call_is_leased_for_the_subagent_until_the_call_ends(gemini):
    assert gemini.send("BeforeTool", "invoke_agent") == ""
    gemini.send("BeforeTool", "replace")
    assert gemini.held() == [("src/db.py", True)]

    gemini.send("AfterTool", "invoke_agent")
    assert gemini.held() == []
    gemini.send("BeforeTool", "replace")
    assert gemini.held() == [("src/db.py", False)]


def test_the_bell_waits_for_the_agent_itself(gemini):
    gemini.send("BeforeTool", "invoke_agent")
    with gemini._session.bus("bob") as bob:
        bob.tell(gemini.agent, "hello")

    within = gemini.send("AfterTool", "replace")
    after = gemini.send("AfterTool", "invoke_agent")

    assert within == ""
    assert "1 message" in after


def test_two_calls_at_once_have_one_name_until_both_have_ended(gemini):
    gemini.send("BeforeTool", "invoke_agent")
    gemini.send("BeforeTool", "replace")
    gemini.send("BeforeTool", "invoke_agent")
    gemini.send("AfterTool", "invoke_agent")
    assert gemini.held() == [("src/db.py", True)]

    gemini.send("AfterTool", "invoke_agent")
    assert gemini.held() == []


@pytest.mark.parametrize("event", ["BeforeAgent", "AfterAgent", "SessionStart"])
def test_a_call_whose_end_no_hook_has_seen_is_over_with_the_turn(gemini, event):
    gemini.send("BeforeTool", "invoke_agent")
    gemini.send(event)

    gemini.send("BeforeTool", "replace")

    assert gemini.held() == [("src/db.py", False)]


def test_a_folder_that_cannot_be_written_keeps_no_edit_from_its_lease(gemini, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(client_session, "_record", refuse)
    gemini.send("BeforeTool", "invoke_agent")
    gemini.send("BeforeTool", "replace")

    assert gemini.held() == [("src/db.py", False)]


def test_a_shell_of_the_subagent_acts_for_it(gemini, monkeypatch):
    above = client_session.ClientSession("gemini", gemini.id, gemini.agent, "ancestor", 1)
    monkeypatch.setattr(client_session, "of_ancestor", lambda _: above)
    shell = gemini._session.environment | {"GEMINI_CLI": "1"}
    gemini.send("BeforeTool", "invoke_agent")

    with inprocess.environment(shell):
        within = scope._subagent()
    gemini.send("AfterTool", "invoke_agent")
    with inprocess.environment(shell):
        after = scope._subagent()

    assert (len(within), after) == (6, "")
