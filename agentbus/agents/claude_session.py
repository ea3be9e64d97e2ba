"""Tell whether a session of Claude Code goes on while a hook waits beside it.

An asynchronous hook that may wake the agent runs beside it in a terminal. A session with --print waits for
it to end, up to an hour; so does a version that does not know such hooks.
"""

from __future__ import annotations

import os
import re
import subprocess

from agentbus.core.settings import variable

# The first version that is known to run such hooks.
_SINCE = (2, 1, 160)
_VERSION = re.compile(r"claude-code[_/](\d+)[-.](\d+)[-.](\d+)")
_PRINTS = re.compile(r"--print|-[a-z]*p[a-z]*")
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")


def goes_on(pid: int | None) -> bool:
    """Tell whether the session of this process goes on while a hook waits."""
    agent = variable("AI_AGENT") or ""
    version = _VERSION.match(agent)
    if not agent or (version and tuple(map(int, version.groups())) < _SINCE):
        return False
    # A session that another one has started has the entry point of that one, so it is not asked alone.
    if pid is None or (variable("CLAUDE_CODE_ENTRYPOINT") or "").startswith("sdk"):
        return False
    words = _words(pid)
    return bool(words) and not any(map(_PRINTS.fullmatch, words[1:])) and _has_terminal(pid)


def _words(pid: int) -> list[str]:
    """Return the command line of a process, [] if it is not known."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return _ps(pid, "args").split()


def _has_terminal(pid: int) -> bool:
    """Tell whether a process writes to a terminal; where that is not known, whether it has one."""
    try:
        return os.readlink(f"/proc/{pid}/fd/1").startswith(_TERMINALS)
    except OSError:
        return _ps(pid, "tty").strip() not in ("", "?", "??", "-")


def _ps(pid: int, field: str) -> str:
    command = ["ps", "-o", f"{field}=", "-p", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
