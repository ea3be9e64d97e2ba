"""Installs by the commands of Claude Code, Codex and Copilot, which take plugins, and of Gemini CLI."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from agentbus.agents import plugin
from agentbus.agents.clients import CLIENTS, Plugin
from agentbus.agents.install import folder, keep
from agentbus.agents.install.folder import Installation
from agentbus.agents.install.steps import ClientProgram, InstallStep, done
from agentbus.core.errors import AgentBusError, Refused, UsageError

NAME = "agentbus@agentbus"


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
    if place.scope == "project" and not CLIENTS[client].project:
        raise UsageError(
            f"{client} has plugins of the user only", hint=f"install {client} without --scope"
        )


def by_hand(client: str, place: Installation, *, installs: bool) -> list[str]:
    """Return the commands by which a person installs it, or takes it out again."""
    add, remove = _commands(ClientProgram(client, client), place)
    return [step.line for step in (add if installs else remove)]


def install(client: ClientProgram, place: Installation) -> list[InstallStep]:
    """Return the steps; those that are done already among them. Raises `Refused` for what is not ours."""
    (*add, install), (remove, *remove_market) = _commands(client, place)
    if CLIENTS[client.name].extension:
        there = linked(client)
        if there is None:
            return [install]
        if not folder.is_ours(there["path"]):
            raise Refused(
                f"gemini has an extension agentbus in {there['path']}, which is not ours",
                hint=f"remove it: {remove.line}",
            )
        current = there["path"] == _extension(client.name, place)
        return [done(install.line)] if current else [remove, install]
    keep.check(client.name, place)
    has = look(client, place)
    market = has.market
    if market is not None and not folder.is_ours(market):
        raise Refused(
            f"{client.name} has a marketplace agentbus in {market}, which is not ours",
            hint=f"remove it: {remove_market[0].line}",
        )
    steps = []
    stale = has.reads is None or bool(differing(has.reads, place))
    if has.plugin and (stale or not has.enabled or market != place.folder):
        steps.append(remove)
        has.plugin = False
    if market is not None and market != place.folder:
        steps += remove_market
        market = None
    steps += add if market is None else [done(add[0].line)]
    steps.append(done(install.line) if has.plugin else install)
    return steps


def uninstall(client: ClientProgram, place: Installation) -> list[InstallStep]:
    """Return the steps that take it out again."""
    _, (remove, *remove_market) = _commands(client, place)
    if CLIENTS[client.name].extension:
        there = linked(client)
        ours = there is not None and folder.is_ours(there["path"])
        return [remove if ours else done(remove.line)]
    has = look(client, place)
    others = has.market is not None and not folder.is_ours(has.market)
    stays = others or has.market is None or is_shared(client.name, place)
    return [
        remove if has.plugin and not others else done(remove.line),
        done(remove_market[0].line) if stays else remove_market[0],
    ]


def is_shared(client: str, place: Installation) -> bool:
    """Tell whether another scope, or another repository, uses the marketplace of a client."""
    return any(
        entry.startswith(f"{client} ") and entry != place.entry(client)
        for entry in place.record.clients
    )


def differing(reads: str, place: Installation) -> list[str]:
    """Return the files of the plugin that a client has another version of."""
    inside = f"{plugin.NAME}/"
    files = plugin.files(place.program).items()
    ours = {path.removeprefix(inside): text for path, text in files if path.startswith(inside)}
    return folder.differing(reads, ours)


def _commands(
    client: ClientProgram, place: Installation
) -> tuple[list[InstallStep], list[InstallStep]]:
    """Return the steps for a client that has nothing of ours, and those that take all of it out."""
    facts = CLIENTS[client.name].plugin
    if facts is None:
        extension = _extension(client.name, place)
        # It trusts the directory in which it is called.
        link = client.step("extensions", "link", extension, "--consent", within=extension)
        return [link], [client.step("extensions", "uninstall", plugin.NAME)]
    scope = ("--scope", "project") if place.scope == "project" else ()
    within = place.root if scope else None
    return [
        client.step("plugin", "marketplace", "add", place.folder),
        client.step("plugin", facts.add, NAME, *scope, within=within),
    ], [
        client.step("plugin", facts.remove, NAME, *scope, within=within),
        client.step("plugin", "marketplace", "remove", plugin.NAME),
    ]


def _extension(client: str, place: Installation) -> str:
    return os.path.join(place.folder, CLIENTS[client].extension)


# -- what each client's lists say --


def look(client: ClientProgram, place: Installation) -> Installed:
    """Return what a client has of ours, from its own lists."""
    facts = CLIENTS[client.name].plugin
    assert facts is not None
    markets = _json(client, "plugin", "marketplace", "list", "--json")
    plugins = _json(client, "plugin", "list", "--json")
    try:
        return _installed(client.name, facts, place, markets, plugins)
    except (LookupError, TypeError, AttributeError):
        raise _unknown(client, "plugin list --json") from None


def _installed(
    client: str, facts: Plugin, place: Installation, markets: Any, plugins: Any
) -> Installed:
    listed = markets[facts.market_key] if facts.market_key else markets
    market = next(
        (each[facts.market_field] for each in listed if each["name"] == plugin.NAME), None
    )
    has = Installed(None if market is None else market.removeprefix("Local: "))
    for each in plugins[facts.plugin_key] if facts.plugin_key else plugins:
        if any(each[name] != value for name, value in facts.plugin_fields.items()):
            continue
        # Only a client with settings of a repository says which scope a plugin has.
        if CLIENTS[client].project and (
            each["scope"] != place.scope
            or (place.scope == "project" and each.get("projectPath", place.root) != place.root)
        ):
            continue
        has.enabled = each["enabled"]
        has.plugin = has.enabled or not facts.lists_removed
        user = folder.user_directory(client)
        has.reads = facts.copy.format_map({**each, "user": user, "market": has.market or ""})
        break
    return has


def linked(client: ClientProgram) -> Any:
    """Return Gemini CLI's extension of ours, None if there is none."""
    try:
        extensions = _json(client, "extensions", "list", "-o", "json")
        return next((each for each in extensions if each["name"] == plugin.NAME), None)
    except (LookupError, TypeError):
        raise _unknown(client, "extensions list -o json") from None


def _json(client: ClientProgram, *words: str) -> Any:
    output = client.run(*words)
    # Warnings may stand before it.
    lines = output.splitlines()
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
