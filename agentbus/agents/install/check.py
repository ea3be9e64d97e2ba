"""Checks an installation by running it: each hook with an example, the server by a handshake."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentbus.agents import plugin
from agentbus.agents.clients import CLIENTS, Client
from agentbus.agents.install import edit, engine, files, folder, plugins, settings_json, trust
from agentbus.agents.install.folder import Installation
from agentbus.agents.install.steps import ClientProgram, shown
from agentbus.agents.install.trial import HookRun, HookTrial, tools
from agentbus.core.errors import AgentBusError

_TOOLS = 10
# The kinds of the events of a session, as they come.
_ORDER = ("start", "turn", "tool", "edit", "substart", "substop", "stop", "end")


@dataclass
class InstallFinding:
    """The result of a check: `status` is ok, warning or failed, `shows` the model's view after `ms`."""

    client: str
    check: str
    status: str
    found: str
    remedy: str = ""
    shows: str = ""
    ms: float | None = None


@dataclass
class ClientParts:
    """The commands of ours that a client runs: those of its hooks by event, and that of its server."""

    hooks: dict[str, str]
    server: list[str]


def check(
    place: Installation, clients: Sequence[str], *, quick: bool = False
) -> Iterator[InstallFinding]:
    """Yield what is found in each client; with `quick` no client is started that takes seconds."""
    for client in clients:
        try:
            yield from _check(client, place, quick)
        except AgentBusError as error:
            yield InstallFinding(
                client, "installed", "failed", error.message, error.shell_hint or ""
            )


def _check(client: str, place: Installation, quick: bool) -> Iterator[InstallFinding]:
    again = f"agentbus install {client}" if client != "git" else "agentbus install --git"
    facts = CLIENTS.get(client)
    if facts is None:
        steps = files.install(client, place)
        if any(step.perform is not None for step in steps):
            yield InstallFinding(
                client, "installed", "failed", "it is not what it should be", again
            )
        else:
            yield InstallFinding(client, "installed", "ok", steps[0].line.partition(" ")[2])
        return
    if not facts.hooks_file and not folder.is_written(place.program):
        what = f"{shown(place.folder)} is missing, or not of {place.program}"
        yield InstallFinding(client, "files", "failed", what, again)
        return
    look = _by_commands if engine.has_commands(client) else _by_files
    parts = look(facts, place, quick)
    if isinstance(parts, InstallFinding):
        yield parts
        return
    yield InstallFinding(client, "installed", "ok", f"{len(parts.hooks)} hooks, 1 server")
    yield from _tried(facts, parts, again)
    if facts.needs_trust:
        yield _trusted(place)
    if facts.plugin_file and not quick:
        yield _starts(place)


def _tried(client: Client, parts: ClientParts, again: str) -> Iterator[InstallFinding]:
    with HookTrial(client).running() as trial:
        if trial.away:
            yield InstallFinding(client.name, "bus", "warning", trial.away, "see 'agentbus doctor'")
        # In the order of a session, whatever that of the file is: the first hook names the session.
        for kind in _ORDER:
            for event in parts.hooks:
                if client.kind(event) == kind:
                    ran = trial.hook(parts.hooks[event], event)
                    yield _finding(client.name, event, ran, again)
    names, ran = tools(parts.server)
    if not ran.wrong and len(names) != _TOOLS:
        ran.wrong = f"it has {len(names)} tools, not {_TOOLS}"
    finding = _finding(client.name, "mcp", ran, again)
    if not ran.wrong:
        finding.found, finding.shows = f"{len(names)} tools", ", ".join(names)
    yield finding


def _finding(client: str, what: str, ran: HookRun, again: str) -> InstallFinding:
    if ran.wrong:
        return InstallFinding(client, what, "failed", ran.wrong, again, ms=ran.ms)
    says = "the model sees" if ran.text else "says nothing"
    return InstallFinding(client, what, "ok", says, shows=ran.text, ms=ran.ms)


# -- what each client runs --


def _by_commands(client: Client, place: Installation, quick: bool) -> ClientParts | InstallFinding:
    again = f"agentbus install {client.name}"
    program = ClientProgram.find(client.name)
    if program is None:
        error = engine.missing(client.name, place)
        return _failed(client.name, error.message, error.hint)
    facts = client.plugin
    if facts is None:
        inside = os.path.join(place.folder, client.extension)
        if not quick:
            there = plugins.linked(program)
            if there is None or there["path"] != inside:
                return _failed(client.name, "it has no extension agentbus of this version", again)
        return _parts(client, inside, "hooks/hooks.json", "gemini-extension.json")
    has = plugins.look(program, place)
    if not has.plugin or has.reads is None or has.market is None:
        return _failed(client.name, "it has no plugin agentbus", again)
    if not has.enabled:
        return _failed(client.name, "its plugin agentbus is disabled", again)
    if different := plugins.differing(has.reads, place):
        what = f"it has another version of {', '.join(different[:3])}"
        return _failed(client.name, what, again)
    if facts.validates and not quick:
        program.run("plugin", "validate", os.path.join(place.folder, "agentbus"))
    return _parts(client, has.reads, facts.hooks, facts.servers)


def _by_files(client: Client, place: Installation, quick: bool) -> ClientParts | InstallFinding:
    directory = place.directory(client.name)
    if client.hooks_file:
        if any(step.perform is not None for step in files.install(client.name, place)[:2]):
            path = shown(os.path.join(directory, client.hooks_file))
            what = f"{path} or {client.servers_file} lacks what it should have"
            return _failed(client.name, what)
        return _parts(client, directory, client.hooks_file, client.servers_file)
    path = place.real(os.path.join(directory, client.plugin_file))
    text = (edit.read(path) or b"").decode("utf-8", "surrogateescape")
    if text != plugin.text(f"{client.name}.js", place.program):
        what = f"{shown(path)} is {'another version' if text else 'missing'}"
        return _failed(client.name, what)
    hooks = {event: plugin.command(place.program, client.name, event) for event in client.events}
    return ClientParts(hooks, [place.program, "mcp"])


def _failed(client: str, what: str, remedy: str | None = None) -> InstallFinding:
    return InstallFinding(
        client, "installed", "failed", what, remedy or f"agentbus install {client}"
    )


def _json(path: str) -> Any:
    try:
        return json.loads(edit.read(path) or b"")
    except ValueError:
        raise AgentBusError(f"{path} is not JSON", hint="run 'agentbus install' again") from None


def _parts(client: Client, directory: str, hooks: str, servers: str) -> ClientParts:
    """Return what a client runs, by the two files that it reads in a directory."""
    commands: dict[str, str] = {}
    for event, groups in _json(os.path.join(directory, hooks))["hooks"].items():
        for group in groups:
            # A file that we merge into may have anything else in it, which is not run.
            for hook in group.get("hooks", [group]) if isinstance(group, dict) else ():
                words = settings_json.words(hook)
                # One that waits in the background would keep the check waiting.
                ours = words[1:3] == ["hook", client.name] and settings_json.is_program(words[0])
                if ours and not hook.get("asyncRewake"):
                    commands[event] = hook["command"]
    server = _json(os.path.join(directory, servers))["mcpServers"]["agentbus"]
    return ClientParts(commands, [server["command"], *server["args"]])


def _trusted(place: Installation) -> InstallFinding:
    program = ClientProgram.find("codex")
    assert program is not None
    ours = [
        hook
        for hook in trust.hooks(program.path, place.root)
        if hook.get("pluginId") == plugins.NAME
    ]
    remedy = (
        "start codex, enter /hooks, and trust the hooks of agentbus; it runs none of them before"
    )
    waiting = [hook["eventName"] for hook in ours if hook.get("trustStatus") not in trust.TRUSTED]
    if not ours:
        return _failed("codex", "it finds no hook of agentbus", "agentbus install codex")
    if waiting:
        return InstallFinding(
            "codex", "trust", "failed", f"not trusted yet: {', '.join(waiting)}", remedy
        )
    off = [hook["eventName"] for hook in ours if not hook.get("enabled", True)]
    if off:
        what = f"disabled in Codex: {', '.join(off)}"
        return InstallFinding(
            "codex", "trust", "failed", what, "start codex, enter /hooks, enable them"
        )
    return InstallFinding("codex", "trust", "ok", f"{len(ours)} hooks are trusted")


def _starts(place: Installation) -> InstallFinding:
    """Start OpenCode, which loads the plugin and connects to the server that it adds."""
    program = ClientProgram.find("opencode")
    if program is None:
        return _failed("opencode", "opencode is not on the PATH")
    said = program.run("mcp", "list", "--print-logs", within=place.root)
    if "agentbus" in said and "connected" in said:
        return InstallFinding(
            "opencode", "start", "ok", "it loads the plugin and connects to the server"
        )
    return InstallFinding(
        "opencode", "start", "failed", "it does not load the plugin", "opencode --print-logs"
    )
