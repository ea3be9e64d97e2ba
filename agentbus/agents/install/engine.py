"""Installs AgentBus in clients, and takes it out again: client by client, step by step."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentbus.agents import plugin
from agentbus.agents.clients import CLIENTS
from agentbus.agents.install import files, folder, keep, plugins
from agentbus.agents.install.folder import Installation
from agentbus.agents.install.steps import ClientProgram, InstallStep, done, shown
from agentbus.core.errors import AgentBusError, NotFound

# All that can be named: AGENTS.md is written only where it is named.
NAMES = (*CLIENTS, "agents-md")


@dataclass
class StepOutcome:
    """The outcome of a step: done, already, planned or failed; `error` says why it failed."""

    client: str
    step: str
    state: str
    difference: str = ""
    error: AgentBusError | None = None


def present() -> list[str]:
    """Return the clients that are on the PATH."""
    return [client for client in CLIENTS if is_there(client)]


def is_there(client: str) -> bool:
    """Tell whether a client is on the PATH; Cursor, which is a window, also by its settings."""
    facts = CLIENTS[client]
    if facts.hooks_file and os.path.isdir(folder.user_directory(client)):
        return True
    return any(map(shutil.which, facts.programs))


def has_commands(client: str) -> bool:
    """Tell whether a client installs by its own commands."""
    facts = CLIENTS.get(client)
    return facts is not None and bool(facts.plugin or facts.extension)


def install(
    place: Installation, clients: Sequence[str], *, dry: bool = False
) -> Iterator[StepOutcome]:
    """Install in each of the clients, and yield what became of each step; one that fails ends its client's.

    A client's steps are known before the first is performed, so what is refused is refused whole. With
    `dry` nothing is changed.
    """
    if any(client not in ("git", "agents-md", "cursor") for client in clients):
        outcome = _perform("agentbus", _writing(place), dry=dry)
        yield outcome
        if outcome.error is not None:
            return
    for client in clients:
        yield from _change(client, place, installs=True, dry=dry)
    if not dry and place.record.clients:
        place.record.tidy()


def uninstall(
    place: Installation, clients: Sequence[str], *, dry: bool = False
) -> Iterator[StepOutcome]:
    """Take it out of each of the clients, and yield what became of each step."""
    for client in clients:
        yield from _change(client, place, installs=False, dry=dry)
    if not dry:
        place.record.tidy()


def _change(
    client: str, place: Installation, *, installs: bool, dry: bool
) -> Iterator[StepOutcome]:
    try:
        # Before anything of the client runs: its lists, too, may rewrite settings.
        kept = keep.Kept(client, place)
        steps = _steps(client, place, installs=installs)
    except AgentBusError as error:
        yield StepOutcome(client, error.message, "failed", error=error)
        return
    note = kept.remember if installs else kept.follow
    worked = True
    try:
        for step in steps:
            outcome = _perform(client, step, dry=dry)
            if outcome.state == "done":
                # A process that is killed within the next command must not lose it.
                note()
                place.record.save()
            yield outcome
            worked = outcome.error is None
            if not worked:
                break
    finally:
        # Also what a command has changed that failed, or was interrupted.
        if not dry:
            note()
            place.record.save()
    if installs:
        for path in kept.lost:
            yield StepOutcome(client, keep.line(path, lost=True), "done")
    if not worked or dry:
        return
    if installs:
        place.record.clients[place.entry(client)] = os.path.basename(place.folder)
    else:
        for path in kept.give_back(shared=plugins.is_shared(client, place)):
            yield StepOutcome(client, keep.line(path, lost=False), "done")
        place.record.clients.pop(place.entry(client), None)
    place.record.save()


def recorded(place: Installation) -> list[str]:
    """Return the clients in which it is installed, as the record says, for this scope and directory."""
    return [client for client in (*NAMES, "git") if place.entry(client) in place.record.clients]


def by_hand(client: str, place: Installation) -> list[str]:
    """Return the commands that install it in a client, or what to add to its files, for a person."""
    if has_commands(client):
        return plugins.by_hand(client, place, installs=True)
    if client not in CLIENTS:
        return [f"agentbus install {'--git' if client == 'git' else client}"]
    facts, directory = CLIENTS[client], place.directory(client)
    if facts.plugin_file:
        path = place.real(os.path.join(directory, facts.plugin_file))
        source = os.path.join(place.folder, client, os.path.basename(path))
        return [f"mkdir -p {shown(os.path.dirname(path))}", f"cp {shown(source)} {shown(path)}"]
    entries = {
        facts.hooks_file: plugin.hooks(client, place.program),
        facts.servers_file: {"mcpServers": {plugin.NAME: plugin.server(place.program)}},
    }
    return [
        f"add to {shown(place.real(os.path.join(directory, name)))}: {json.dumps(entry)}"
        for name, entry in entries.items()
    ]


def missing(client: str, place: Installation, *, installs: bool = True) -> NotFound:
    """Return the error about a client that is not on the PATH, with what to type where it is."""
    typed = by_hand(client, place) if installs else plugins.by_hand(client, place, installs=False)
    return NotFound(f"{client} is not on the PATH", hint=f"where it is, type: {' && '.join(typed)}")


def write(place: Installation) -> None:
    """Write the folder that clients read."""
    try:
        plugin.write(place.program, place.folder)
    except OSError as error:
        raise AgentBusError(f"{place.folder} cannot be written ({error.strerror})") from None


def _writing(place: Installation) -> InstallStep:
    line = f"write {shown(place.folder)} ({len(plugin.files(place.program))} files)"
    if folder.is_written(place.program):
        return done(line)
    return InstallStep(line, lambda: write(place))


def _steps(client: str, place: Installation, *, installs: bool) -> list[InstallStep]:
    """Return the steps for a client. Raises `AgentBusError` if there are none."""
    if not has_commands(client):
        # Files are removed even where the program has gone.
        if installs and client == "opencode" and not is_there(client):
            raise missing(client, place)
        return (files.install if installs else files.uninstall)(client, place)
    plugins.check_scope(client, place)
    program = ClientProgram.find(client)
    if program is None:
        raise missing(client, place, installs=installs)
    return (plugins.install if installs else plugins.uninstall)(program, place)


def _perform(client: str, step: InstallStep, *, dry: bool) -> StepOutcome:
    if step.perform is None:
        return StepOutcome(client, step.line, "already")
    if dry:
        return StepOutcome(client, step.line, "planned", step.difference)
    try:
        step.perform()
    except AgentBusError as error:
        return StepOutcome(client, step.line, "failed", error=error)
    return StepOutcome(client, step.line, "done", step.difference)
