"""Installs AgentBus in clients, and takes it out again: client by client, step by step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentbus.agents import plugin
from agentbus.agents.install import folder, keep, places, plugins
from agentbus.agents.install.place import Installation
from agentbus.agents.install.steps import ClientProgram, InstallStep, done, shown
from agentbus.core.errors import AgentBusError, NotFound
from agentbus.core.settings import home

# The clients that are programs, or leave a directory; the others are installed only where they are named.
FOUND = (*plugins.CLIENTS, "opencode", "cursor")
NAMES = (*FOUND, "agents-md")
# Programs that show that Cursor is installed: it has no commands that install a plugin.
_CURSOR_PROGRAMS = ("cursor", "cursor-agent")


@dataclass
class StepOutcome:
    """The outcome of a step: done, already, planned or failed; `error` says why it failed."""

    client: str
    step: str
    state: str
    difference: str = ""
    error: AgentBusError | None = None


def found() -> list[str]:
    """Return the clients that are on the PATH."""
    return [client for client in FOUND if is_there(client)]


def is_there(client: str) -> bool:
    """Tell whether a client is on the PATH; Cursor, which is a window, also by its settings."""
    if client == "cursor":
        there = os.path.isdir(os.path.join(home(), ".cursor"))
        return there or any(map(shutil.which, _CURSOR_PROGRAMS))
    return shutil.which(client) is not None


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
        # Before anything of the client runs: its lists, too, may rewrite settings.
        kept = keep.Kept(client, place)
        planned = _planned(client, place, installs=True)
        worked, changes = True, not dry and isinstance(planned, list)
        lost: list[str] = []
        try:
            for outcome in _each(client, planned, dry=dry):
                worked = worked and outcome.error is None
                if changes and outcome.state == "done":
                    # A process that is killed within the next command must not lose it.
                    lost = kept.remember()
                    place.record.save()
                yield outcome
        finally:
            # Also what a command has changed that failed, or was interrupted.
            if changes:
                lost = kept.remember()
                place.record.save()
        for path in lost:
            yield StepOutcome(client, keep.line(path, lost=True), "done")
        if worked and not dry:
            place.record.clients[place.entry(client)] = os.path.basename(place.folder)
            place.record.save()
    if not dry and place.record.clients:
        place.record.tidy()


def uninstall(
    place: Installation, clients: Sequence[str], *, dry: bool = False
) -> Iterator[StepOutcome]:
    """Take it out of each of the clients, and yield what became of each step."""
    for client in clients:
        kept = keep.Kept(client, place)
        planned = _planned(client, place, installs=False)
        worked = True
        try:
            for outcome in _each(client, planned, dry=dry):
                worked = worked and outcome.error is None
                if outcome.state == "done":
                    kept.follow()
                    place.record.save()
                yield outcome
        finally:
            if not dry and isinstance(planned, list):
                kept.follow()
                place.record.save()
        if worked and not dry:
            for path in kept.give_back(shared=plugins.is_shared(client, place)):
                yield StepOutcome(client, keep.line(path, lost=False), "done")
            place.record.clients.pop(place.entry(client), None)
            place.record.save()
    if not dry:
        place.record.tidy()


def recorded(place: Installation) -> list[str]:
    """Return the clients in which it is installed, as the record says, for this scope and directory."""
    return [client for client in (*NAMES, "git") if place.entry(client) in place.record.clients]


def by_hand(client: str, place: Installation) -> list[str]:
    """Return the commands that install it in a client, or what to add to its files, for a person."""
    if client in plugins.CLIENTS:
        return plugins.by_hand(client, place)
    if client == "opencode":
        path = places.opencode(place)
        source = os.path.join(place.folder, "opencode", "agentbus.js")
        return [f"mkdir -p {shown(os.path.dirname(path))}", f"cp {shown(source)} {shown(path)}"]
    if client == "cursor":
        return places.to_add(place)
    return [f"agentbus install {'--git' if client == 'git' else client}"]


def missing(client: str, place: Installation, *, installs: bool = True) -> NotFound:
    """Return the error about a client that is not on the PATH, with what to type where it is."""
    typed = by_hand(client, place) if installs else plugins.out_by_hand(client, place)
    return NotFound(f"{client} is not on the PATH", hint=f"where it is, type: {' && '.join(typed)}")


def write(place: Installation) -> None:
    """Write the folder that clients read."""
    _writing(place, always=True)


def _writing(place: Installation, *, always: bool = False) -> InstallStep:
    line = f"write {shown(place.folder)} ({len(plugin.files(place.program))} files)"

    def perform() -> None:
        try:
            plugin.write(place.program, place.folder)
        except OSError as error:
            raise AgentBusError(f"{place.folder} cannot be written ({error.strerror})") from None

    if always:
        perform()
    return done(line) if folder.is_written(place.program) else InstallStep(line, perform)


def _planned(
    client: str, place: Installation, *, installs: bool
) -> list[InstallStep] | AgentBusError:
    """Return the steps for a client, or why there are none."""
    try:
        if client not in plugins.CLIENTS:
            # Files are removed even where the program has gone.
            if installs and client == "opencode" and not is_there(client):
                return missing(client, place)
            return (places.install if installs else places.uninstall)(client, place)
        plugins.check_scope(client, place)
        program = ClientProgram.find(client)
        if program is None:
            return missing(client, place, installs=installs)
        return (plugins.install if installs else plugins.uninstall)(program, place)
    except AgentBusError as error:
        return error


def _each(
    client: str, planned: list[InstallStep] | AgentBusError, *, dry: bool
) -> Iterator[StepOutcome]:
    if isinstance(planned, AgentBusError):
        yield StepOutcome(client, planned.message, "failed", error=planned)
        return
    for step in planned:
        outcome = _perform(client, step, dry=dry)
        yield outcome
        if outcome.error is not None:
            return


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
