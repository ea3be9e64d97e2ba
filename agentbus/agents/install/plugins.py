"""The clients whose own commands install the folder: Claude Code, Codex, Copilot and Gemini CLI."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentbus.agents import plugin
from agentbus.agents.install import folder, keep
from agentbus.agents.install.place import Installation
from agentbus.agents.install.steps import ClientProgram, InstallStep, done
from agentbus.core.errors import AgentBusError, Refused, UsageError

NAME = "agentbus@agentbus"
CLIENTS = ("claude", "codex", "copilot", "gemini")


@dataclass
class Installed:
    """The parts of ours that a client has: the directory of the marketplace, and its plugin."""

    market: str | None = None
    plugin: bool = False
    enabled: bool = False
    # The files that it reads, those that it copied among them.
    reads: str | None = None


def check_scope(client: str, place: Installation) -> None:
    """Raise `UsageError` for a client that knows no scope but the user's."""
    if place.scope == "project" and client != "claude":
        raise UsageError(
            f"{client} has plugins of the user only", hint=f"install {client} without --scope"
        )


def by_hand(client: str, place: Installation) -> list[str]:
    """Return the commands that a person types."""
    return [step.line for step in _whole(ClientProgram(client, client), place)]


def out_by_hand(client: str, place: Installation) -> list[str]:
    """Return the commands by which a person takes it out again."""
    return [step.line for step in _gone(ClientProgram(client, client), place)]


def install(client: ClientProgram, place: Installation) -> list[InstallStep]:
    """Return the steps; those that are done already among them. Raises `Refused` for what is not ours."""
    if client.name == "gemini":
        return [*_link(client, place)]
    keep.check(client.name, place)
    found = look(client, place)
    add, install = _whole(client, place)
    steps = []
    market = found.market
    if market is not None and not folder.is_ours(market):
        raise Refused(
            f"{client.name} has a marketplace agentbus in {market}, which is not ours",
            hint=f"remove it: {client.name} plugin marketplace remove agentbus",
        )
    stale = found.reads is None or bool(differing(found.reads, place))
    if found.plugin and (stale or not found.enabled or market != place.folder):
        steps.append(_uninstall(client, place))
        found.plugin = False
    if market is not None and market != place.folder:
        steps.append(client.step("plugin", "marketplace", "remove", "agentbus"))
        market = None
    steps.append(add if market is None else done(add.line))
    steps.append(done(install.line) if found.plugin else install)
    return steps


def uninstall(client: ClientProgram, place: Installation) -> list[InstallStep]:
    """Return the steps that take it out again."""
    if client.name == "gemini":
        there = linked(client)
        (step,) = _gone(client, place)
        ours = there is not None and folder.is_ours(there["path"])
        return [step if ours else done(step.line)]
    found = look(client, place)
    plugin_out, market_out = _gone(client, place)
    if found.market is not None and not folder.is_ours(found.market):
        # Somebody else's.
        return [done(plugin_out.line), done(market_out.line)]
    keeps = found.market is None or is_shared(client.name, place)
    return [
        plugin_out if found.plugin else done(plugin_out.line),
        done(market_out.line) if keeps else market_out,
    ]


def is_shared(client: str, place: Installation) -> bool:
    """Tell whether another scope, or another repository, uses the marketplace of a client."""
    return any(
        entry.startswith(f"{client} ") and entry != place.entry(client)
        for entry in place.record.clients
    )


def look(client: ClientProgram, place: Installation) -> Installed:
    """Return what a client has of ours, from its own lists."""
    markets = _json(client, "plugin", "marketplace", "list", "--json")
    plugins = _json(client, "plugin", "list", "--json")
    try:
        return _LOOK[client.name](client, place, markets, plugins)
    except (LookupError, TypeError, AttributeError):
        raise _unknown(client, "plugin list --json") from None


def linked(client: ClientProgram) -> Any:
    """Return Gemini CLI's extension of ours, None if there is none."""
    try:
        found = _json(client, "extensions", "list", "-o", "json")
        return next((one for one in found if one["name"] == plugin.NAME), None)
    except (LookupError, TypeError):
        raise _unknown(client, "extensions list -o json") from None


def differing(reads: str, place: Installation) -> list[str]:
    """Return the files of the plugin that a client has another version of."""
    inside = f"{plugin.NAME}/"
    files = plugin.files(place.program).items()
    ours = {path.removeprefix(inside): text for path, text in files if path.startswith(inside)}
    return folder.differing(reads, ours)


def _whole(client: ClientProgram, place: Installation) -> tuple[InstallStep, ...]:
    """Return the steps for a client that has nothing of ours."""
    if client.name == "gemini":
        return (_linking(client, place),)
    scope = ("--scope", "project") if place.scope == "project" else ()
    within = place.root if scope else None
    verb = "add" if client.name == "codex" else "install"
    return (
        client.step("plugin", "marketplace", "add", place.folder),
        client.step("plugin", verb, NAME, *scope, within=within),
    )


def _gone(client: ClientProgram, place: Installation) -> tuple[InstallStep, ...]:
    """Return the steps that take all of it out of a client."""
    if client.name == "gemini":
        return (client.step("extensions", "uninstall", "agentbus"),)
    market = client.step("plugin", "marketplace", "remove", "agentbus")
    return _uninstall(client, place), market


def _uninstall(client: ClientProgram, place: Installation) -> InstallStep:
    if client.name == "codex":
        return client.step("plugin", "remove", NAME)
    if place.scope == "project":
        return client.step("plugin", "uninstall", NAME, "--scope", "project", within=place.root)
    return client.step("plugin", "uninstall", NAME)


def _linking(client: ClientProgram, place: Installation) -> InstallStep:
    extension = os.path.join(place.folder, "gemini")
    # It trusts the directory in which it is called.
    return client.step("extensions", "link", extension, "--consent", within=extension)


def _link(client: ClientProgram, place: Installation) -> Iterator[InstallStep]:
    step = _linking(client, place)
    there = linked(client)
    if there is None:
        yield step
        return
    if not folder.is_ours(there["path"]):
        raise Refused(
            f"gemini has an extension agentbus in {there['path']}, which is not ours",
            hint="remove it: gemini extensions uninstall agentbus",
        )
    if there["path"] == os.path.join(place.folder, "gemini"):
        yield done(step.line)
        return
    yield client.step("extensions", "uninstall", "agentbus")
    yield step


# -- what each client's lists say --


def _claude(client: ClientProgram, place: Installation, markets: Any, plugins: Any) -> Installed:
    own = [
        one
        for one in plugins
        if one["id"] == NAME
        and one["scope"] == place.scope
        and (place.scope == "user" or one.get("projectPath", place.root) == place.root)
    ]
    found = Installed(_market(markets, "path"), bool(own))
    if own:
        found.enabled, found.reads = own[0]["enabled"], own[0]["installPath"]
    return found


def _codex(client: ClientProgram, place: Installation, markets: Any, plugins: Any) -> Installed:
    own = [one for one in plugins["installed"] if one["pluginId"] == NAME]
    found = Installed(_market(markets["marketplaces"], "root"), bool(own))
    if own:
        base = place.config("CODEX_HOME", ".codex")
        found.enabled = own[0]["enabled"]
        version = own[0]["version"]
        found.reads = os.path.join(base, "plugins", "cache", "agentbus", "agentbus", version)
    return found


def _copilot(client: ClientProgram, place: Installation, markets: Any, plugins: Any) -> Installed:
    own = [one for one in plugins if one["name"] == "agentbus" and one["marketplace"] == "agentbus"]
    market = _market(markets, "source")
    found = Installed(None if market is None else market.removeprefix("Local: "), bool(own))
    if own:
        # Once uninstalled it is still listed, as one that is not enabled.
        found.enabled = found.plugin = own[0]["enabled"]
        found.reads = os.path.join(found.market or "", "agentbus")
    return found


_LOOK = {"claude": _claude, "codex": _codex, "copilot": _copilot}


def _market(markets: Any, place: str) -> str | None:
    return next((one[place] for one in markets if one["name"] == "agentbus"), None)


def _json(client: ClientProgram, *words: str) -> Any:
    said = client.run(*words)
    # Warnings may stand before it.
    lines = said.splitlines()
    starts = (at for at, line in enumerate(lines) if line[:1] in ("[", "{"))
    try:
        return json.loads("\n".join(lines[next(starts, 0) :]))
    except ValueError:
        raise _unknown(client, " ".join(words)) from None


def _unknown(client: ClientProgram, words: str) -> AgentBusError:
    return AgentBusError(
        f"what '{client.name} {words}' prints is not what is known of it",
        hint=f"'{client.name} --version' may be too old or too new; see 'agentbus install --print'",
    )
