"""Homes with an embedded server of their own, and what a test asks of it from outside."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import tempfile
from collections.abc import Iterator

from tests.servers import Shell


@contextlib.contextmanager
def shell(environment: dict[str, str] | None = None) -> Iterator[Shell]:
    """Return a shell whose home's path is short, so that the socket lies in it."""
    home = pathlib.Path(tempfile.mkdtemp(prefix="ab-"))
    made = Shell(home, environment)
    try:
        yield made
    finally:
        made.run("server", "stop")
        shutil.rmtree(home)


def directory(shell: Shell) -> pathlib.Path:
    """Return where the embedded server of this shell's home keeps its files."""
    return shell.home / ".local" / "state" / "agentbus" / "server"


def status(shell: Shell) -> dict[str, object]:
    """Return what `server status` says."""
    done = shell.run("server", "status", "--json")
    found: dict[str, object] = json.loads(done.stdout)
    return found


def kill_server(shell: Shell) -> int:
    """Kill the embedded server with -9, and return once it is gone."""
    pid = int(str(status(shell)["pid"]))
    os.kill(pid, signal.SIGKILL)
    # The server holds this lock for as long as it lives.
    with (directory(shell) / "alive.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    return pid


def heard(shell: Shell, agent: str = "auditor") -> list[str]:
    """Return all that was said, as an agent without a cursor hears it."""
    said = shell.records("overhear", "--since", "0", "--max", "100000", "--agent", agent)
    return [message["message"] for message in said]


def servers_of(home: pathlib.Path) -> list[int]:
    """Return the live processes that run a server for this home."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes()
            here = os.readlink(entry / "cwd")
        except OSError:
            continue
        if b"-server" in words and here.startswith(str(home)):
            found.append(int(entry.name))
    return found
