"""Reads a config file: plain YAML mappings; nothing in it is executed."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from agentbus.core import yaml_reader
from agentbus.core.errors import ConfigError
from agentbus.core.validate import Map, Problems, nearest, shown

# It takes seconds to parse a mebibyte of YAML, and every command would pay for it.
MAX_BYTES = 64 * 1024


def contents(
    path: str,
    kind: str = "config file",
    *,
    hint: str,
    most: int = MAX_BYTES,
    root: str | None = None,
) -> bytes:
    """Return the contents of a file of at most `most` bytes. Raises `ConfigError` if it cannot be read.

    With the `root` of its repository, another user's file is refused, a file in another user's directory,
    and a link to a file that does not belong to the repository.
    """
    if root is not None:
        _check_link(path, root)
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if root is not None:
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


def load(
    path: str, anywhere: Sequence[str], in_own: Sequence[str], *, root: str | None = None
) -> Map:
    """Return the settings in a config file; an empty file sets nothing.

    Any file may set what `anywhere` lists. A file that was found nearby, in the repository at `root`, may
    not set what `in_own` lists, and must belong to this user or to root, as must its directory.
    """
    nearby = root is not None
    problems = Problems(path)
    hint = "correct its permissions, or name another config file"
    data = contents(path, hint=hint, root=root)
    known = anywhere if nearby else (*anywhere, *in_own)
    top = yaml_reader.read(data, problems, typed=True)
    if top is not None:
        for key, _ in top.entries("'setting: value' lines"):
            if key.value in in_own and key.value not in known:
                key.add(
                    f"the key {shown(key.value)} is not allowed in a project's file",
                    "set it in the environment, or in your own config file",
                )
            elif key.value not in known:
                key.add(f"the key {shown(key.value)} is unknown", nearest(key.value, known))
    if (top is None or problems) and nearby and os.path.islink(path):
        # An error would quote the file, which may be one of secrets that the user keeps there.
        raise ConfigError(
            f"the config file {path!a} is a link to a file that is not a config file",
            hint="remove the link, or name the file in AGENTBUS_CONFIG to read what is wrong",
        )
    if top is None or problems:
        raise problems.error()
    return top.value if isinstance(top.value, Map) else Map()


def _check_link(path: str, root: str) -> None:
    # A clone may hold a link to any file of the user's.
    if not os.path.islink(path):
        return
    inside = os.path.relpath(os.path.realpath(path), os.path.realpath(root)).lower()
    if {"..", ".git"} & set(inside.split("/")):
        raise ConfigError(
            f"the config file {path!a} is a link to a file that does not belong to {root!a}",
            hint="remove the link, or name a config file in AGENTBUS_CONFIG",
        )


def _check_owners(path: str, descriptor: int) -> None:
    # Another user could otherwise plant a config file in /tmp or in another directory.
    owners = (os.fstat(descriptor), os.lstat(path), os.stat(os.path.dirname(path) or "/"))
    if not {each.st_uid for each in owners} <= {0, os.getuid()}:
        raise ConfigError(
            f"the config file {path!a}, or its directory, belongs to another user",
            hint="use a directory of your own, or name a config file in AGENTBUS_CONFIG",
        )
