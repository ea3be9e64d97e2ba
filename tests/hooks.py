"""A session of a client, whose hooks run in this process or in one of their own."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import agentbus
from agentbus.agents import event as events, hook
from agentbus.core import client_session
from tests import inprocess

RECORDED = pathlib.Path(__file__).parent / "clients/recorded"
SESSION = "3f6c2a10-7d0e-4c55-9b1e-0a6f2d8c41aa"


class Session:
    """A session of Claude Code in a repository, on a server."""

    def __init__(self, url: str, project: str, place: pathlib.Path, session: str = SESSION) -> None:
        self.url, self.project, self.id = url, project, session
        self.home, self.root = place / "home", place / "shop"
        self.home.mkdir(exist_ok=True)
        if not self.root.exists():
            self.root.mkdir()
            subprocess.run(["git", "init", "-q", "."], cwd=self.root, check=True)
        self.agent = client_session.name("claude", session)
        # Seconds that the server gets to answer: on a machine under load more than a hook allows.
        self.within = 30.0
        self.environment = {
            "AGENTBUS_URL": url,
            "AGENTBUS_PROJECT": project,
            "XDG_STATE_HOME": str(self.home / "state"),
        }

    @property
    def state(self) -> pathlib.Path:
        """The directory of this user's state."""
        return self.home / "state/agentbus"

    def event(self, event: str, **fields: Any) -> bytes:
        """Return what the client sends."""
        given = {"session_id": self.id, "cwd": str(self.root), "hook_event_name": event}
        return json.dumps(given | fields).encode()

    def answer(
        self, event: str, data: bytes | None = None, client: str = "claude", **fields: Any
    ) -> str:
        """Return what the hook of an event answers, '' for nothing."""
        given = self.event(event, **fields) if data is None else data
        before, events.WITHIN = events.WITHIN, self.within
        try:
            with inprocess.environment(self.environment), staying():
                return hook.answer(client, event, given)
        finally:
            events.WITHIN = before

    def context(self, event: str, **fields: Any) -> str:
        """Return what the hook of an event adds to what the model reads."""
        said = self.answer(event, **fields)
        return "" if not said else json.loads(said)["hookSpecificOutput"]["additionalContext"]

    def stop(self, *, again: bool = False) -> str:
        """Return why the turn does not end, '' if it does."""
        said = self.answer("Stop", stop_hook_active=again)
        return "" if not said else json.loads(said)["reason"]

    def edit(self, path: str, **fields: Any) -> str:
        """Return why an edit is refused, '' if it is not."""
        said = self.answer("PreToolUse", tool_name="Edit", tool_input={"file_path": path}, **fields)
        return (
            "" if not said else json.loads(said)["hookSpecificOutput"]["permissionDecisionReason"]
        )

    def bus(self, agent: str | None = None) -> agentbus.Bus:
        """Return a bus for this session's agent, or another one."""
        return agentbus.connect(self.url, project=self.project, agent=agent or self.agent)


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """Return to the directory: a hook changes to that of its session."""
    before = os.getcwd()
    try:
        yield
    finally:
        os.chdir(before)
