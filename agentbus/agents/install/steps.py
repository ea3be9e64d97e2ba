"""The steps of an installation: commands of clients, files of ours, and files that we merge into."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from agentbus.core.errors import AgentBusError

# Seconds for a command of a client: some ask the network first, and give up late.
_LONGEST = 180.0


@dataclass
class InstallStep:
    """A step as a line of the shell, or in words, and what performs it; None if there is nothing to do."""

    line: str
    perform: Callable[[], None] | None
    # The change of a file, as `diff -u` shows it.
    difference: str = ""


@dataclass
class ClientProgram:
    """A client on the PATH."""

    name: str
    path: str

    @classmethod
    def find(cls, name: str) -> ClientProgram | None:
        """Return the client of this name on the PATH."""
        path = shutil.which(name)
        return None if path is None else cls(name, path)

    def run(self, *words: str, within: str | None = None) -> str:
        """Run one of its commands, and return what it printed. Raises `AgentBusError`."""
        shown = shlex.join([self.name, *words])
        try:
            done = subprocess.run(
                [self.path, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LONGEST,
                cwd=within,
                check=False,
            )
        except OSError as error:
            raise AgentBusError(f"'{shown}' cannot be run ({error.strerror})") from None
        except subprocess.TimeoutExpired:
            raise AgentBusError(f"'{shown}' did not end within {_LONGEST:g} s") from None
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
            raise AgentBusError(
                f"'{shown}' failed with exit {done.returncode}: {' / '.join(said)[:600]}",
                hint="run it by hand; see what it needs, then repeat agentbus install",
            )
        # Gemini CLI prints its lists on stderr.
        return done.stdout or done.stderr

    def step(self, *words: str, within: str | None = None) -> InstallStep:
        """Return the step that runs one of its commands."""
        line = shlex.join([self.name, *words])
        return InstallStep(line, lambda: void(self.run(*words, within=within)))


def void(_: object) -> None:
    """Drop a result."""


def done(line: str) -> InstallStep:
    """Return a step with nothing left to do."""
    return InstallStep(line, None)


def shown(path: str) -> str:
    """Return a path as a person would write it, quoted for the shell where it needs that."""
    home = os.path.expanduser("~")
    for directory in (home, os.path.realpath(home)):
        if path.startswith(directory + os.sep) and directory != os.sep:
            return "~/" + shlex.quote(path[len(directory) + 1 :])
    return shlex.quote(path)
