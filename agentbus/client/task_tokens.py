"""Keeps the tokens of tasks that agents hold by hand in files in the user's state directory."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from agentbus.core import renewal
from agentbus.core.errors import UsageError
from agentbus.core.settings import state_directory
from agentbus.core.settings_check import make_private
from agentbus.queues import by_hand

_LARGEST = 8_192
# Seconds to keep a file: a visibility is at most seven days, so an older file belongs to a lost
# task.
_KEPT = 8 * 86_400


@dataclass(frozen=True, slots=True)
class TaskToken:
    """The token of a task that an agent has taken by hand."""

    project: str
    agent_id: str
    task_id: str
    group: str
    token: str
    visibility: float = by_hand.VISIBILITY


_TEXTS = TaskToken.__match_args__[:-1]


def keep(token: TaskToken) -> None:
    """Write the file of a token, for this user alone; hooks then renew the task. Raises `OSError`."""
    folder = _folder(token.project, token.agent_id)
    make_private(folder)
    _prune(folder)
    path = os.path.join(folder, f".{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(orjson.dumps({name: getattr(token, name) for name in token.__match_args__}))
        os.replace(path, os.path.join(folder, _name(token.task_id, token.group)))
    except OSError:
        os.unlink(path)
        raise
    renewal.forget(state_directory(), token.agent_id)


def kept(project: str, agent: str, task_id: str, group: str | None = None) -> list[TaskToken]:
    """Return the kept tokens of a task, for one group or all groups."""
    tokens = all_kept(project, agent)
    return [token for token in tokens if token.task_id == task_id and group in (None, token.group)]


def all_kept(project: str, agent: str) -> list[TaskToken]:
    """Return all tokens kept for an agent."""
    tokens = map(_read, _files(_folder(project, agent)))
    return [
        token
        for token in tokens
        if token is not None and (token.project, token.agent_id) == (project, agent)
    ]


def drop(token: TaskToken) -> None:
    """Remove the file of a token, unless another token has replaced it."""
    path = os.path.join(_folder(token.project, token.agent_id), _name(token.task_id, token.group))
    stored = _read(path)
    if stored is not None and stored.token == token.token:
        try:
            os.unlink(path)
        except OSError:
            # If the file cannot be removed, its token is refused when it is used.
            return


def _folder(project: str, agent: str) -> str:
    return os.path.join(state_directory(), "taken", _digest(f"{project}\n{agent}"))


def _name(task_id: str, group: str) -> str:
    return _digest(f"{task_id}\n{group}")


def _digest(text: str) -> str:
    # Hash the name: it may be too long for a file name, or contain a slash.
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _files(folder: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from sorted(file.path for file in entries if not file.name.startswith("."))
    except OSError:
        return


def _read(path: str) -> TaskToken | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid():
                return None
            fields: Any = orjson.loads(file.read(_LARGEST))
        visibility = by_hand.seconds(fields["visibility"])
        values = [*(fields[name] for name in _TEXTS), visibility]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError):
        return None
    sound = all(isinstance(value, str) for value in values[:-1])
    return TaskToken(*values) if sound else None


def _prune(folder: str) -> None:
    old = time.time() - _KEPT
    for path in _files(folder):
        try:
            if os.lstat(path).st_mtime < old:
                os.unlink(path)
        except OSError:
            continue
