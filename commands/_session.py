"""Warns an agent whose name comes from its POSIX session, and ends with the session."""

from __future__ import annotations

import os
import time

from agentbus.core.settings import state_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.commands._declare import Call

# Seconds for which a warning counts: the session's number may be reused later by another session.
_KEPT = 7 * 86_400


def warn(call: Call) -> None:
    """Warn once per session without a terminal, where each command may run in a new session."""
    if not any(map(os.isatty, range(3))) and _is_first():
        call.out.warn(
            f"the name {call.settings.agent} ends with this session; set AGENTBUS_AGENT for a lasting one"
        )


def _is_first() -> bool:
    folder = os.path.join(state_directory(), "told")
    path = os.path.join(folder, str(os.getsid(0)))
    try:
        try:
            _create(path)
        except FileNotFoundError:
            from agentbus.core.settings_check import make_private

            make_private(folder)
            _create(path)
        _prune(folder)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def _create(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _prune(folder: str) -> None:
    with os.scandir(folder) as files:
        old = time.time() - _KEPT
        for file in files:
            if file.stat(follow_symlinks=False).st_mtime < old:
                os.unlink(file.path)
