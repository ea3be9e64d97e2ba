"""Reads a config file: plain YAML mappings, with every mistake named and nothing executed."""

from __future__ import annotations

import difflib
import os
import stat
from typing import TYPE_CHECKING

import yaml

from agentbus.core.errors import ConfigError
from agentbus.core.settings_names import IN_FILES, IN_OWN_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_BYTES = 1024 * 1024


class _Loader(yaml.SafeLoader):
    """YAML without aliases, which can be made to grow without end, and without repeated keys."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.YAMLError(f"line {event.start_mark.line + 1}: aliases are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (str, int, float, bool)) or key is None:
                if key in seen:
                    line = key_node.start_mark.line + 1
                    raise yaml.YAMLError(f"line {line}: {key!r} is given twice")
                seen.add(key)
        return super().construct_mapping(node, deep)


def contents(path: str, kind: str = "config file", *, hint: str) -> bytes:
    """Return what is in a file of at most 1 MiB. Raises `ConfigError` where it cannot be read."""
    try:
        # A FIFO would keep us waiting for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(0, "it is no file")
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its path is none"
        raise ConfigError(f"the {kind} {path!a} cannot be read ({why})", hint=hint) from None
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"the {kind} {path!a} is over {_MAX_BYTES} bytes")
    return data


def load(path: str, known: Sequence[str] = IN_FILES, *, nearby: bool = False) -> dict[str, object]:
    """Return the settings in a config file, which may set what is `known`; an empty file sets nothing.

    One that was found `nearby` must not be another user's who put it where everybody may write.
    """
    if nearby:
        _not_planted(path)
    data = contents(path, hint="correct its permissions, or name another config file")
    try:
        loaded = yaml.load(data.decode(), Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(
            f"the config file {path!a} is no YAML ({_why(error)})",
            hint="correct it",
        ) from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(
            f"the config file {path!a} holds a {type(loaded).__name__}",
            hint="write 'setting: value' lines",
        )
    for key in loaded:
        if key in IN_OWN_FILE and key not in known:
            raise ConfigError(
                f"the config file {path!a} sets {key!a}, which a project's file may not",
                hint="set it in the environment, or in your own config file",
            )
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            raise ConfigError(
                f"the config file {path!a} sets the unknown {key!a}",
                hint=f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}",
            )
    return {str(key): value for key, value in loaded.items()}


def _not_planted(path: str) -> None:
    # In /tmp, anybody could have us speak to a server of theirs.
    try:
        owner, around = os.lstat(path).st_uid, os.stat(os.path.dirname(path) or "/").st_mode
    except OSError:
        # Gone, or out of reach: reading it tells.
        return
    if around & stat.S_IWOTH and owner not in (0, os.getuid()):
        raise ConfigError(
            f"the config file {path!a} is another user's, where everybody may write",
            hint="remove it, use another directory, or name the config file in AGENTBUS_CONFIG",
        )


def _why(error: Exception) -> str:
    # Not the whole of it: YAML's errors quote the line, which may hold a password.
    mark = getattr(error, "problem_mark", None)
    what = str(getattr(error, "problem", None) or error)
    where = f"line {mark.line + 1}: " if mark is not None else ""
    return where + " ".join(what.encode("ascii", "backslashreplace").decode().split())[:200]
