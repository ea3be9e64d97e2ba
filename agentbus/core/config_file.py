"""Reads a config file: plain YAML mappings; nothing in it is executed."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from agentbus.core import yaml_reader
from agentbus.core.errors import ConfigError
from agentbus.core.validate import Map, Problems, nearest, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_BYTES = 1024 * 1024


def contents(path: str, kind: str = "config file", *, hint: str) -> bytes:
    """Return what is in a file of at most 1 MiB. Raises `ConfigError` where it cannot be read."""
    try:
        # A FIFO would keep us waiting for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(0, "it is not a file")
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not a path"
        raise ConfigError(f"the {kind} {path!a} cannot be read ({why})", hint=hint) from None
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"the {kind} {path!a} is over {_MAX_BYTES} bytes")
    return data


def load(path: str, anywhere: Sequence[str], in_own: Sequence[str], *, nearby: bool = False) -> Map:
    """Return the settings in a config file; an empty file sets nothing.

    Any file may set what `anywhere` lists. A file that was found `nearby` may not set what `in_own` lists,
    and must not be one that another user put where everybody may write.
    """
    if nearby:
        _not_planted(path)
    problems = Problems(path)
    data = contents(path, hint="correct its permissions, or name another config file")
    known = anywhere if nearby else (*anywhere, *in_own)
    root = yaml_reader.read(data, problems, typed=True)
    if root is not None:
        for key, _ in root.entries("'setting: value' lines"):
            if key.value in in_own and key.value not in known:
                key.add(
                    f"the key {shown(key.value)} is not allowed in a project's file",
                    "set it in the environment, or in your own config file",
                )
            elif key.value not in known:
                key.add(f"the key {shown(key.value)} is unknown", nearest(key.value, known))
    if root is None or problems:
        raise problems.error()
    return root.value if isinstance(root.value, Map) else Map()


def _not_planted(path: str) -> None:
    # In /tmp, anybody could have us speak to a server of theirs.
    try:
        owner, around = os.lstat(path).st_uid, os.stat(os.path.dirname(path) or "/").st_mode
    except OSError:
        # Gone, or out of reach: reading it reports that.
        return
    if around & stat.S_IWOTH and owner not in (0, os.getuid()):
        raise ConfigError(
            f"the config file {path!a} belongs to another user, in a directory that anyone can write to",
            hint="remove it, use another directory, or name the config file in AGENTBUS_CONFIG",
        )
