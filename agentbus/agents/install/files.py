"""Installs files: OpenCode's plugin, Cursor's settings, AGENTS.md, and a hook of git."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from agentbus.agents import plugin
from agentbus.agents.clients import CLIENTS
from agentbus.agents.install import block, edit, settings_json
from agentbus.agents.install.edit import Change
from agentbus.agents.install.folder import Installation, InstallRecord
from agentbus.agents.install.steps import InstallStep
from agentbus.core import written_path
from agentbus.core.errors import NotFound, Refused

MARK = "Written by `agentbus install`"
_RULE = """---
description: Coordination with the other coding agents of this repository by AgentBus
alwaysApply: true
---
<!-- {mark}; it is replaced by the next one. -->
{text}"""
_COMMIT = """#!/bin/sh
# {mark}: no commit of what another agent has leased.
[ -x {program} ] || exit 0
exec {program} lease --check --staged
"""


@dataclass
class InstalledFile:
    """A file of an installation: its step that installs it, and the one that takes it out again."""

    install: Callable[[], InstallStep]
    uninstall: Callable[[], InstallStep]


def _own(path: str, text: str, *folders: str) -> InstalledFile:
    """Return a file that is ours alone; these directories go with it once they are empty."""
    return InstalledFile(
        lambda: edit.own(path, text, MARK), lambda: edit.remove_own(path, MARK, *folders)
    )


def _merged(path: str, put: Change, drop: Change, record: InstallRecord) -> InstalledFile:
    """Return a file of others with entries of ours, which two changes put in and take out."""
    return InstalledFile(
        lambda: edit.merge(path, put, drop, record.merged, record.save),
        lambda: edit.restore(path, drop, record.merged),
    )


def install(name: str, place: Installation) -> list[InstallStep]:
    """Return the steps; those that are done already among them. Raises `Refused` for what is not ours."""
    if name == "git":
        _check_hooks_of_git(place)
    return [file.install() for file in files_of(name, place, rules=place.in_repository)]


def uninstall(name: str, place: Installation) -> list[InstallStep]:
    """Return the steps that take it out again."""
    return [file.uninstall() for file in files_of(name, place)]


def files_of(name: str, place: Installation, *, rules: bool = True) -> list[InstalledFile]:
    """Return the files of a client, of AGENTS.md, or of git; without `rules` not those of a repository."""
    program = place.program
    if name == "git":
        text = _COMMIT.format(mark=MARK, program=shlex.quote(program))
        return [_own(_commit_hook(place), text)]
    if name == "agents-md":
        path = place.inside(os.path.join(place.root, "AGENTS.md"))
        put = block.put(path, plugin.text("agents.md", program))
        return [_merged(path, put, block.drop(path), place.record)]
    client, directory = CLIENTS[name], place.directory(name)
    files: list[InstalledFile] = []
    if client.plugin_file:
        path = os.path.join(directory, client.plugin_file)
        text = plugin.text(f"{name}.js", program)
        files.append(_own(place.real(path), text, os.path.dirname(path)))
    if client.hooks_file:
        path = place.real(os.path.join(directory, client.hooks_file))
        put = settings_json.add_hooks(path, plugin.hooks(name, program))
        files.append(_merged(path, put, settings_json.drop_hooks(path), place.record))
    if client.servers_file:
        path = place.real(os.path.join(directory, client.servers_file))
        put = settings_json.add_server(path, plugin.server(program))
        files.append(_merged(path, put, settings_json.drop_server(path), place.record))
    if client.rule_file and rules:
        path = os.path.join(place.root, client.rule_file)
        folder = os.path.dirname(path)
        text = _RULE.format(mark=MARK, text=plugin.text("agents.md", program))
        files.append(_own(place.inside(path), text, folder, os.path.dirname(folder)))
    return files


def _commit_hook(place: Installation) -> str:
    """Return the path of the hook that git runs before a commit."""
    if place.common is None:
        raise NotFound(
            f"{place.root} is not in a repository of git", hint="call it in a repository"
        )
    # Archives of a repository, unlike clones, may have links there, too.
    return written_path.inside(os.path.join(place.common, "hooks", "pre-commit"), place.common)


def _check_hooks_of_git(place: Installation) -> None:
    """Raise `Refused` where another hook of git than ours runs before a commit."""
    path = _commit_hook(place)
    configured = _git(place, "config", "--get", "core.hooksPath")
    add = f"{shlex.quote(place.program)} lease --check --staged"
    if configured:
        raise Refused(
            f"core.hooksPath is {configured}: its hooks are not ours",
            hint=f"add to its pre-commit: {add}",
        )
    existing = edit.read(path)
    if existing is not None and MARK.encode() not in existing:
        raise Refused(f"{path} exists, and is not of AgentBus", hint=f"add to it: {add}")


def _git(place: Installation, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", place.root, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise NotFound(
            f"git cannot be run ({error.strerror})", hint="install git, or put it on the PATH"
        ) from None
    return done.stdout.strip()
