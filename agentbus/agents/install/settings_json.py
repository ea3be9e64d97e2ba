"""Merges our entries into a client's settings of strict JSON, and takes them out; the rest stays."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from typing import Any

from agentbus.core.errors import Refused

Entries = dict[str, Any]
_INDENT = re.compile(r'\n([ \t]+)"')
_BOM = b"\xef\xbb\xbf"


def changed(path: str, change: Callable[[Entries], None]) -> Callable[[bytes], bytes]:
    """Return what changes the text of a file: its JSON is parsed, changed, and written in its own layout.

    Raises `Refused` for what is not strict JSON: comments, names that are there twice, no object.
    """

    def apply(data: bytes) -> bytes:
        mark = _BOM if data.startswith(_BOM) else b""
        text = _decoded(path, data.removeprefix(_BOM))
        before, settings = (_parsed(path, text if text.strip() else "{}") for _ in range(2))
        change(settings)
        return data if settings == before else mark + _written(settings, text)

    return apply


def _decoded(path: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _refused(path, "it is not UTF-8") from None


def _parsed(path: str, text: str) -> Entries:
    def unique(pairs: list[tuple[str, Any]]) -> Entries:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the name {name!a} is there twice")
        return dict(pairs)

    def number(digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            raise ValueError(f"the number {digits[:40]} is too large")
        return value

    def constant(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    try:
        settings = json.loads(
            text, object_pairs_hook=unique, parse_float=number, parse_constant=constant
        )
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"it is not strict JSON: {error}") from None
    if not isinstance(settings, dict):
        raise _refused(path, "it is not a JSON object")
    return settings


def _refused(path: str, why: str) -> Refused:
    return Refused(
        f"{path} cannot be merged into: {why}",
        hint="mend it, or add by hand what 'agentbus install cursor --print' shows",
    )


def _written(settings: Entries, text: str) -> bytes:
    """Return the JSON in the layout of the text that it came from: its indent, its line ends, its end."""
    lines = text.strip().count("\n")
    indents = _INDENT.findall(text)
    indent: str | int | None = (
        indents[0] if indents else (None if text.strip() and not lines else 2)
    )
    said = json.dumps(settings, indent=indent, ensure_ascii=text.isascii() and "\\u" in text)
    try:
        said.encode()
    except UnicodeEncodeError:
        said = json.dumps(settings, indent=indent)
    end = text[len(text.rstrip()) :] if text.strip() else "\n"
    if "\r\n" in text:
        said = said.replace("\n", "\r\n")
    return (said + end).encode()


# -- Cursor's two files --


def add_hooks(path: str, wanted: Entries) -> Callable[[bytes], bytes]:
    """Return what merges hooks into `hooks.json`, by event and command; the order of those there stays."""

    def change(settings: Entries) -> None:
        present = {
            event: ours
            for event, entries in _hooks(path, settings).items()
            if (ours := [entry for entry in entries if _is_our_hook(entry)])
        }
        if "version" in settings and present == wanted["hooks"]:
            return
        _drop_hooks(path, settings)
        settings.setdefault("version", wanted["version"])
        hooks = settings.setdefault("hooks", {})
        for event, entries in wanted["hooks"].items():
            hooks.setdefault(event, []).extend(entries)

    return changed(path, change)


def drop_hooks(path: str) -> Callable[[bytes], bytes]:
    """Return what takes our hooks out of `hooks.json`."""
    return changed(path, lambda settings: _drop_hooks(path, settings))


def _drop_hooks(path: str, settings: Entries) -> None:
    hooks = _hooks(path, settings)
    for event in [*hooks]:
        kept = [entry for entry in hooks[event] if not _is_our_hook(entry)]
        if len(kept) < len(hooks[event]):
            hooks[event] = kept
            if not kept:
                del hooks[event]


def _hooks(path: str, settings: Entries) -> dict[str, list[object]]:
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict) or not all(isinstance(each, list) for each in hooks.values()):
        raise _refused(path, "its hooks are not lists of an object")
    return hooks


def words(entry: object) -> list[str]:
    """Return the words of a hook's command, [] for what is not one, or none that can be read."""
    command = entry.get("command") if isinstance(entry, dict) else None
    try:
        return shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        return []


def _is_our_hook(entry: object) -> bool:
    command = words(entry)
    return command[1:3] == ["hook", "cursor"] and is_program(command[0])


def add_server(path: str, server: Entries) -> Callable[[bytes], bytes]:
    """Return what merges our MCP server into `mcp.json`."""

    def change(settings: Entries) -> None:
        servers = settings.setdefault("mcpServers", {})
        if not isinstance(servers, dict):
            raise _refused(path, "mcpServers is not an object")
        there = servers.get("agentbus")
        if there is not None and not _is_our_server(there):
            raise Refused(
                f"{path} has a server agentbus that is not ours",
                hint="rename or remove it, then run the command again",
            )
        if isinstance(there, dict):
            # Keep the user's additions, such as variables.
            there.update(server)
        else:
            servers["agentbus"] = server

    return changed(path, change)


def drop_server(path: str) -> Callable[[bytes], bytes]:
    """Return what takes our MCP server out of `mcp.json`."""

    def change(settings: Entries) -> None:
        servers = settings.get("mcpServers")
        if isinstance(servers, dict) and _is_our_server(servers.get("agentbus")):
            del servers["agentbus"]

    return changed(path, change)


def _is_our_server(there: object) -> bool:
    if not isinstance(there, dict) or there.get("args") != ["mcp"]:
        return False
    command = there.get("command")
    return isinstance(command, str) and is_program(command)


def is_program(path: str) -> bool:
    """Tell whether a path is that of an `agentbus`, by its name."""
    return path.rpartition("/")[2] in ("agentbus", "agentbus-toolkit")
