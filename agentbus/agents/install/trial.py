"""Runs the hooks and the server that are installed, as their client would, in a separate project.

The project has another agent, who tells the session something before each hook that can say so, and leases
what it is about to edit; it is cleared afterwards. Nobody else's project is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentbus.agents import hook
from agentbus.agents.clients import TEXT, Client
from agentbus.client.bus import Bus
from agentbus.core import client_session
from agentbus.core.errors import AgentBusError, NotFound
from agentbus.core.settings import environment, home, repository, resolve

_OTHER = "agentbus-check"
_LONGEST = 20.0
# Seconds for the bus: an agent would not wait for it either.
_WITHIN = 2.0
# Variables by which a hook would take itself for the session that runs the check.
_OWN = ("AGENTBUS_AGENT", "AGENT_ID", "CLAUDE_ENV_FILE")


@dataclass
class HookRun:
    """The run of a hook or a server: its answer, its time, and what was wrong, '' for nothing."""

    text: str
    ms: float
    wrong: str = ""


class HookTrial:
    """A separate project for the hooks of a client."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.project = f"agentbus-check-{uuid.uuid4().hex[:12]}"
        self.session = f"check-{uuid.uuid4().hex[:12]}"
        self.agent = client_session.name(client.name, self.session)
        root, _ = repository()
        self.folder = os.getcwd()
        # Nothing is written to it.
        self.path = os.path.join(root or self.folder, f"agentbus-check-{os.getpid()}.txt")
        self.environment = {
            name: value for name, value in environment().items() if name not in _OWN
        } | {"AGENTBUS_PROJECT": self.project}
        self.bus: Bus | None = None
        # Why there is no bus.
        self.away = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[HookTrial]:
        """Open the bus, if it can be reached, and clear the project at the end."""
        try:
            settings = resolve({"project": self.project, "agent": _OTHER})
            settings.deadline = min(settings.deadline, _WITHIN)
            bus = Bus(settings)
            bus.here(state="active")
        except AgentBusError as error:
            self.away = error.message
            yield self
            return
        self.bus = bus
        hook.answers(settings)
        with bus:
            try:
                yield self
            finally:
                with contextlib.suppress(AgentBusError):
                    bus.clear()

    def hook(self, command: str, event: str) -> HookRun:
        """Run a hook's command with an example of its event, after something that it is to say."""
        given = sample(self.client, event, self.session, self.path)
        kind = self.client.kind(event) or ""
        try:
            with self._something_to_say(kind):
                began = time.perf_counter()
                done = subprocess.run(
                    ["sh", "-c", command],
                    input=json.dumps(given).encode(),
                    capture_output=True,
                    timeout=_LONGEST,
                    env=self.environment,
                    cwd=self.folder,
                    check=False,
                )
                took = _ms(began)
        except (OSError, subprocess.SubprocessError) as error:
            return HookRun("", _ms(began), f"it cannot be run ({type(error).__name__})")
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            why = f": {said[-1][:200]}" if said else ""
            return HookRun("", took, f"it ends with exit {done.returncode}{why}")
        form = self.client.form(event)
        return _read(done.stdout, took, form, says=kind if self.bus is not None else "")

    def _something_to_say(self, kind: str) -> contextlib.AbstractContextManager[object]:
        """Give a hook something to say: a message, or the lease of what is to be edited."""
        if self.bus is not None and kind == "edit":
            return self.bus.lease(self.path, why="agentbus install --check", ttl=60)
        if self.bus is not None and kind in ("turn", "tool", "stop"):
            said = "does this arrive?" if kind == "stop" else "this arrives"
            with contextlib.suppress(NotFound):
                # The hook that was to name the session has failed.
                self.bus.tell(self.agent, said)
        return contextlib.nullcontext()


def _ms(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 1)


def sample(client: Client, event: str, session: str, path: str) -> dict[str, Any]:
    """Return what hooks read of what a client sends at an event; `path` is the file that a tool edits."""
    given: dict[str, Any] = {client.session[-1]: session}
    kind = client.kind(event)
    if kind == "stop":
        return given | {client.stop_fields[-1]: False}
    if kind in ("substart", "substop"):
        return given | dict.fromkeys(client.parent[:1], session) | {client.subagent[0]: "trial"}
    if kind != "edit":
        return given
    tool, arguments = client.tool_fields[-1]
    name, fields = next(iter(client.edits.items()))
    if client.patching_shell:
        name, fields = client.patches[-1], client.patch_fields
        path = f"*** Begin Patch\n*** Update File: {path}\n@@\n-a\n+b\n*** End Patch\n"
    return given | {tool: name, arguments: {fields[0]: path}}


def _read(output: bytes, took: float, form: Mapping[str, Any] | None, *, says: str) -> HookRun:
    """Return what a hook answered; `says` is the kind of its event if it had something to say."""
    if not output:
        wrong = "it says nothing" if says in ("start", "tool", "edit", "stop") else ""
        return HookRun("", took, wrong)
    try:
        answer = json.loads(output)
    except ValueError:
        return HookRun("", took, "what it prints is not JSON")
    return HookRun(_text(answer, form or {}), took)


def _text(answer: Any, form: Mapping[str, Any]) -> str:
    """Return the text of an answer, by its form."""
    for name, value in form.items() if isinstance(answer, dict) else ():
        part = answer.get(name)
        if value == TEXT and isinstance(part, str):
            return part
        if isinstance(value, dict) and (text := _text(part, value)):
            return text
    return ""


def tools(command: Sequence[str]) -> tuple[list[str], HookRun]:
    """Start an MCP server as a client does, and return the names of its tools."""
    asked: list[dict[str, object]] = [
        {
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "agentbus-install", "version": "1"},
            },
        },
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list", "params": {}},
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **request}) + "\n" for request in asked)
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [*command],
            input=lines.encode(),
            capture_output=True,
            timeout=_LONGEST,
            cwd=home(),
            check=False,
        )
        replies = {reply.get("id"): reply for reply in map(json.loads, done.stdout.splitlines())}
        names = [tool["name"] for tool in replies[2]["result"]["tools"]]
    except OSError as error:
        return [], HookRun("", _ms(began), f"it cannot be run ({error.strerror})")
    except subprocess.TimeoutExpired:
        return [], HookRun("", _ms(began), f"it does not answer within {_LONGEST:g} s")
    except (ValueError, LookupError, TypeError, AttributeError):
        return [], HookRun("", _ms(began), "it does not answer as an MCP server")
    return names, HookRun("", _ms(began), "" if names else "it has no tools")
