"""Reads a config file: plain YAML mappings; nothing in it is executed."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from agentbus.core import yaml_reader
from agentbus.core.errors import ConfigError
from agentbus.core.validate import Map, Problems, nearest, shown

# To read a mebibyte of YAML takes seconds, of each verb.
MAX_BYTES = 64 * 1024


def contents(
    path: str, kind: str = "config file", *, hint: str, most: int = MAX_BYTES, ours: bool = False
) -> bytes:
    """Return what is in a file of at most `most` bytes. Raises `ConfigError` where it cannot be read.

    With `ours`, another user's file is refused, and a file in another user's directory.
    """
    try:
        # A FIFO would keep us waiting for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if ours:
                _check_owners(path, descriptor)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(0, "it is not a file")
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not a path"
        raise ConfigError(f"the {kind} {path!a} cannot be read ({why})", hint=hint) from None
    if len(data) > most:
        raise ConfigError(f"the {kind} {path!a} is over {most} bytes", hint="shorten it")
    return data


def load(path: str, anywhere: Sequence[str], in_own: Sequence[str], *, nearby: bool = False) -> Map:
    """Return the settings in a config file; an empty file sets nothing.

    Any file may set what `anywhere` lists. A file that was found `nearby` may not set what `in_own` lists,
    and must belong to this user or to root, as must its directory.
    """
    problems = Problems(path)
    hint = "correct its permissions, or name another config file"
    data = contents(path, hint=hint, ours=nearby)
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


def _check_owners(path: str, descriptor: int) -> None:
    # Anybody else could have us obey a file of theirs, in /tmp or in a directory that is theirs.
    owners = (os.fstat(descriptor), os.lstat(path), os.stat(os.path.dirname(path) or "/"))
    if not {each.st_uid for each in owners} <= {0, os.getuid()}:
        raise ConfigError(
            f"the config file {path!a}, or its directory, belongs to another user",
            hint="use a directory of your own, or name a config file in AGENTBUS_CONFIG",
        )
