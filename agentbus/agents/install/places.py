"""Install files: OpenCode's plugin, Cursor's settings, AGENTS.md, and a hook of git."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

from agentbus.agents import plugin
from agentbus.agents.install import block, edit, settings_json
from agentbus.agents.install.place import Installation
from agentbus.agents.install.steps import InstallStep, shown
from agentbus.core.errors import NotFound, Refused
from agentbus.core.settings import home

CLIENTS = ("opencode", "cursor", "agents-md", "git")
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


def install(client: str, place: Installation) -> list[InstallStep]:
    """Return the steps; those that are done already among them. Raises `Refused` for what is not ours."""
    merged, save = place.record.merged, place.record.save
    if client == "opencode":
        text = plugin.text("opencode.js", place.program)
        return [edit.own(opencode(place), text, MARK)]
    if client == "git":
        return [edit.own(_commit_hook(place), commit_hook(place.program), MARK)]
    if client == "agents-md":
        path = agents_md(place)
        text = plugin.text("agents.md", place.program)
        return [edit.merge(path, block.put(path, text), block.drop(path), merged, save)]
    hooks, servers = cursor(place)
    wanted = plugin.hooks("cursor", place.program)
    adds, drops = settings_json.add_hooks(hooks, wanted), settings_json.drop_hooks(hooks)
    steps = [edit.merge(hooks, adds, drops, merged, save)]
    adds = settings_json.add_server(servers, _server(place))
    drops = settings_json.drop_server(servers)
    steps.append(edit.merge(servers, adds, drops, merged, save))
    if place.in_repository:
        text = _RULE.format(mark=MARK, text=plugin.text("agents.md", place.program))
        steps.append(edit.own(cursor_rule(place), text, MARK))
    return steps


def uninstall(client: str, place: Installation) -> list[InstallStep]:
    """Return the steps that take it out again."""
    merged = place.record.merged
    if client == "opencode":
        path = opencode(place)
        return [edit.remove_own(path, MARK, os.path.dirname(path))]
    if client == "git":
        return [edit.remove_own(_commit_hook(place, checks=False), MARK)]
    if client == "agents-md":
        path = agents_md(place)
        return [edit.restore(path, block.drop(path), merged)]
    hooks, servers = cursor(place)
    rule = cursor_rule(place)
    rules = os.path.dirname(rule)
    return [
        edit.restore(hooks, settings_json.drop_hooks(hooks), merged),
        edit.restore(servers, settings_json.drop_server(servers), merged),
        edit.remove_own(rule, MARK, rules, os.path.dirname(rules)),
    ]


def to_add(place: Installation) -> list[str]:
    """Return what a person adds to Cursor's two files, a line each."""
    hooks, servers = cursor(place)
    wanted = {
        hooks: plugin.hooks("cursor", place.program),
        servers: {"mcpServers": {plugin.NAME: _server(place)}},
    }
    return [f"add to {shown(path)}: {json.dumps(found)}" for path, found in wanted.items()]


def _server(place: Installation) -> settings_json.Entries:
    return {"command": place.program, "args": ["mcp"]}


def opencode(place: Installation) -> str:
    """Return the path of OpenCode's plugin."""
    if place.scope == "project":
        return os.path.join(place.root, ".opencode", "plugins", "agentbus.js")
    config = place.config("XDG_CONFIG_HOME", ".config")
    return os.path.join(config, "opencode", "plugins", "agentbus.js")


def cursor(place: Installation) -> tuple[str, str]:
    """Return the paths of Cursor's hooks and of its MCP servers."""
    base = place.root if place.scope == "project" else home()
    folder = os.path.join(base, ".cursor")
    return os.path.join(folder, "hooks.json"), os.path.join(folder, "mcp.json")


def cursor_rule(place: Installation) -> str:
    """Return the path of the rule that Cursor's model reads."""
    return os.path.join(place.root, ".cursor", "rules", "agentbus.mdc")


def agents_md(place: Installation) -> str:
    """Return the path of the repository's AGENTS.md."""
    return os.path.join(place.root, "AGENTS.md")


def commit_hook(program: str) -> str:
    """Return the text of the hook that git runs before a commit."""
    return _COMMIT.format(mark=MARK, program=shlex.quote(program))


def _commit_hook(place: Installation, *, checks: bool = True) -> str:
    """Return the path of the hook that git runs before a commit."""
    if not place.in_repository:
        raise NotFound(
            f"{place.root} is not in a repository of git", hint="call it in a repository"
        )
    configured = _git(place, "config", "--get", "core.hooksPath")
    path = os.path.join(place.root, _git(place, "rev-parse", "--git-path", "hooks"), "pre-commit")
    if configured and checks:
        raise Refused(
            f"core.hooksPath is {configured}: its hooks are not ours",
            hint=f"add to its pre-commit: {shlex.quote(place.program)} lease --check --staged",
        )
    existing = edit.read(path)
    if checks and existing is not None and MARK.encode() not in existing:
        raise Refused(
            f"{path} exists, and is not of AgentBus",
            hint=f"add to it: {shlex.quote(place.program)} lease --check --staged",
        )
    return path


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
