"""A user's home and repository in which AgentBus is installed, with programs that stand in for clients."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from typing import Any

from tests import inprocess
from tests.clients import fake
from tests.inprocess import Done

# What the machine that runs the tests may have set.
ELSEWHERE = (
    *("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "CODEX_HOME"),
    *("CLAUDE_CONFIG_DIR", "COPILOT_HOME"),
)


class User:
    """Somebody with a home, a repository, and clients on the PATH."""

    def __init__(self, place: pathlib.Path, *clients: str) -> None:
        self.home, self.root, self.bin = place / "home", place / "shop", place / "bin"
        self.home.mkdir()
        self.root.mkdir()
        subprocess.run(["git", "init", "-q", "."], cwd=self.root, check=True)
        fake.put(self.bin, *clients)
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{self.bin}{os.pathsep}/usr/bin{os.pathsep}/bin",
        }

    def run(self, *words: str) -> Done:
        """Run a command line in the repository."""
        here = os.getcwd()
        with inprocess.environment(self.environment, ELSEWHERE):
            os.chdir(self.root)
            try:
                return inprocess.run(*words)
            finally:
                os.chdir(here)

    def install(self, *words: str) -> list[str]:
        """Install, and return the lines of the steps."""
        done = self.run("install", *words)
        assert done.code == 0, done.err
        return done.out.decode().splitlines()

    def uninstall(self, *words: str) -> list[str]:
        """Take it out again, and return the lines of the steps."""
        done = self.run("uninstall", *words)
        assert done.code == 0, done.err
        return done.out.decode().splitlines()

    def check(self, *words: str) -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
        """Check, and return the exit code and the findings by client and name."""
        done = self.run("install", "--check", "--json", *words)
        found = [json.loads(line) for line in done.out.splitlines()]
        return done.code, {(one["client"], one["check"]): one for one in found}

    def calls(self) -> list[str]:
        """Return the commands of clients that changed something, and forget them."""
        path = self.home / ".fake/calls"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def fake(self, name: str, text: str) -> None:
        """Write a file that the programs read: what fails, what is trusted."""
        (self.home / ".fake").mkdir(exist_ok=True)
        (self.home / ".fake" / name).write_text(text)

    def files(self) -> dict[str, bytes]:
        """Return what is in the home and in the repository, but for the log, git and the programs."""
        found = {}
        for top in (self.home, self.root):
            for path in top.rglob("*"):
                name = str(path.relative_to(top.parent))
                if path.is_file() and not any(
                    part in name for part in (".fake", "shop/.git/", ".local/state")
                ):
                    found[name] = path.read_bytes()
        return found
