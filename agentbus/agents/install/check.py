"""Checks an installation by running it: each hook with an example, the server by a handshake."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentbus.agents import clients, plugin
from agentbus.agents.install import edit, folder, places, plugins, run, settings_json, trust
from agentbus.agents.install.place import Installation
from agentbus.agents.install.steps import ClientProgram, shown
from agentbus.agents.install.trial import HookRun, HookTrial, tools
from agentbus.core.errors import AgentBusError

_TOOLS = 10
_SERVERS = {"codex": "codex.mcp.json"}


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
    if client in ("agents-md", "git"):
        steps = places.install(client, place)
        if any(step.perform is not None for step in steps):
            yield InstallFinding(
                client, "installed", "failed", "it is not what it should be", again
            )
        else:
            yield InstallFinding(client, "installed", "ok", steps[0].line.partition(" ")[2])
        return
    if client != "cursor" and not folder.is_written(place.program):
        what = f"{shown(place.folder)} is missing, or not of {place.program}"
        yield InstallFinding(client, "files", "failed", what, again)
        return
    parts = _LOOK[client](client, place, quick)
    if isinstance(parts, InstallFinding):
        yield parts
        return
    yield InstallFinding(client, "installed", "ok", f"{len(parts.hooks)} hooks, 1 server")
    yield from _tried(client, parts, again)
    if client == "codex":
        yield _trusted(place)
    if client == "opencode" and not quick:
        yield _starts(place)


def _tried(client: str, parts: ClientParts, again: str) -> Iterator[InstallFinding]:
    module = clients.load(client)
    with HookTrial(client).running() as trial:
        if trial.away:
            yield InstallFinding(client, "bus", "warning", trial.away, "see 'agentbus doctor'")
        # In the order of a session, whatever that of the file is: the first hook names the session.
        for event in (one for one in module.EVENTS if one in parts.hooks):
            ran = trial.hook(parts.hooks[event], event, module.EVENTS[event])
            yield _finding(client, event, ran, again)
    names, ran = tools(parts.server)
    if not ran.wrong and len(names) != _TOOLS:
        ran.wrong = f"it has {len(names)} tools, not {_TOOLS}"
    found = _finding(client, "mcp", ran, again)
    if not ran.wrong:
        found.found, found.shows = f"{len(names)} tools", ", ".join(names)
    yield found


def _finding(client: str, what: str, ran: HookRun, again: str) -> InstallFinding:
    if ran.wrong:
        return InstallFinding(client, what, "failed", ran.wrong, again, ms=ran.ms)
    found = "the model sees" if ran.text else "says nothing"
    return InstallFinding(client, what, "ok", found, shows=ran.text, ms=ran.ms)


# -- what each client runs --


def _plugin(client: str, place: Installation, quick: bool) -> ClientParts | InstallFinding:
    again = f"agentbus install {client}"
    program = ClientProgram.find(client)
    if program is None:
        return _failed(client, f"{client} is not on the PATH", run.missing(client, place).hint)
    if client == "gemini":
        inside = os.path.join(place.folder, "gemini")
        if not quick:
            there = plugins.linked(program)
            if there is None or there["path"] != inside:
                return _failed(client, "it has no extension agentbus of this version", again)
        server = _json(os.path.join(inside, "gemini-extension.json"))
        return _parts(client, os.path.join(inside, "hooks", "hooks.json"), server)
    found = plugins.look(program, place)
    if not found.plugin or found.reads is None or found.market is None:
        return _failed(client, "it has no plugin agentbus", again)
    if not found.enabled:
        return _failed(client, "its plugin agentbus is disabled", again)
    if different := plugins.differing(found.reads, place):
        return _failed(client, f"it has another version of {', '.join(different[:3])}", again)
    if client == "claude" and not quick:
        program.run("plugin", "validate", os.path.join(place.folder, "agentbus"))
    name = {"claude": "hooks.json"}.get(client, f"{client}.json")
    server = _json(os.path.join(found.reads, _SERVERS.get(client, ".mcp.json")))
    return _parts(client, os.path.join(found.reads, "hooks", name), server)


def _cursor(client: str, place: Installation, quick: bool) -> ClientParts | InstallFinding:
    hooks, servers = places.cursor(place)
    if any(step.perform is not None for step in places.install(client, place)[:2]):
        return _failed(client, f"{shown(hooks)} or mcp.json lacks what it should have", "")
    return _parts(client, hooks, _json(servers))


def _opencode(client: str, place: Installation, quick: bool) -> ClientParts | InstallFinding:
    path = places.opencode(place)
    text = (edit.read(path) or b"").decode("utf-8", "surrogateescape")
    again = "agentbus install opencode"
    if not text:
        return _failed(client, f"{shown(path)} is missing", again)
    if text != plugin.text("opencode.js", place.program):
        return _failed(client, f"{shown(path)} is another version", again)
    module = clients.load("opencode")
    hooks = {
        event: plugin.command(place.program, client, event)
        for event in module.EVENTS
        if event != "Wake"
    }
    return ClientParts(hooks, [place.program, "mcp"])


_LOOK = {**dict.fromkeys(plugins.CLIENTS, _plugin), "cursor": _cursor, "opencode": _opencode}


def _failed(client: str, found: str, remedy: str | None) -> InstallFinding:
    return InstallFinding(
        client, "installed", "failed", found, remedy or f"agentbus install {client}"
    )


def _json(path: str) -> Any:
    try:
        return json.loads(edit.read(path) or b"")
    except ValueError:
        raise AgentBusError(f"{path} is not JSON", hint="run 'agentbus install' again") from None


def _parts(client: str, hooks: str, servers: Any) -> ClientParts:
    """Return what a client runs, by the files that it reads."""
    found: dict[str, str] = {}
    for event, groups in _json(hooks)["hooks"].items():
        for group in groups:
            # A file that we merge into may have anything else in it.
            for hook in group.get("hooks", [group]) if isinstance(group, dict) else ():
                words = settings_json.words(hook)
                # One that waits in the background would keep the check waiting.
                if words[1:3] == ["hook", client] and not hook.get("asyncRewake"):
                    found[event] = hook["command"]
    server = servers["mcpServers"]["agentbus"]
    return ClientParts(found, [server["command"], *server["args"]])


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
    waiting = [one["eventName"] for one in ours if one.get("trustStatus") not in trust.TRUSTED]
    if not ours:
        return _failed("codex", "it finds no hook of agentbus", "agentbus install codex")
    if waiting:
        return InstallFinding(
            "codex", "trust", "failed", f"not trusted yet: {', '.join(waiting)}", remedy
        )
    off = [one["eventName"] for one in ours if not one.get("enabled", True)]
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
        return _failed("opencode", "opencode is not on the PATH", "")
    said = program.run("mcp", "list", "--print-logs", within=place.root)
    if "agentbus" in said and "connected" in said:
        return InstallFinding(
            "opencode", "start", "ok", "it loads the plugin and connects to the server"
        )
    return InstallFinding(
        "opencode", "start", "failed", "it does not load the plugin", "opencode --print-logs"
    )
