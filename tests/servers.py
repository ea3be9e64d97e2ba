"""Real servers, and shells that run the real command."""

from __future__ import annotations

import json
import os
import pathlib
import select
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Any

import redis

import agentbus
from agentbus.core.names import SESSION_VARIABLES
from agentbus.store.steps import Command
from tests.torture.server import Server, free_port

__all__ = [
    "ROOT",
    "Server",
    "Shell",
    "all_exit",
    "ask",
    "client",
    "closed",
    "free_port",
    "program",
    "scrubbed",
]

ROOT = pathlib.Path(__file__).resolve().parent.parent


def client(url: str) -> redis.Redis:
    """Return a plain connection, which shares nothing with the library under test."""
    return redis.Redis.from_url(url, protocol=2, driver_info=None)


def ask(bus: agentbus.Bus, *words: str | bytes | int) -> Any:
    """Send one command as another program would, on any kind of server, and return the plain reply."""

    def op() -> Any:
        reply = yield Command(*words)
        return reply

    return bus._run("ask", op())


# What can be made again is made once, above all what Spark starts from: scripts/test.
CACHE = pathlib.Path(sys.prefix, "cache")


def scrubbed(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment without what AgentBus reads, but for the cache that all tests share."""
    ours = ("AGENT", "REDIS_URL", "PROJECT_PREFIX", "XDG_", "CODEX_", *SESSION_VARIABLES)
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(ours) or name in ("AGENTBUS_TEST_REDIS", "AGENTBUS_SPARK_PREPARE")
    }
    return {**kept, "XDG_CACHE_HOME": str(CACHE)}


def program() -> str:
    """Return the path of the installed `agentbus` command."""
    found = pathlib.Path(sys.executable).parent / "agentbus"
    assert found.exists(), "agentbus is not installed beside this Python: run scripts/setup"
    return str(found)


class Shell:
    """Runs the real `agentbus` with a home and an environment of its own."""

    def __init__(self, home: pathlib.Path, environment: dict[str, str] | None = None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.environment = {
            **scrubbed(dict(os.environ)),
            "HOME": str(home),
            **(environment or {}),
        }

    def run(
        self,
        *args: str,
        stdin: str | bytes | None = None,
        env: dict[str, str] | None = None,
        cwd: pathlib.Path | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run one command line to its end."""
        done = subprocess.run(
            [program(), *args],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env={**self.environment, **(env or {})},
            cwd=cwd or self.home,
            timeout=timeout,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args,
            done.returncode,
            done.stdout.decode("utf-8", "surrogateescape"),
            done.stderr.decode("utf-8", "surrogateescape"),
        )

    def python(
        self, *args: str, cwd: pathlib.Path, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a file of Python to its end, to which a warning is an error."""
        return subprocess.run(
            [sys.executable, "-W", "error", *args],
            env=self.environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def ok(self, *args: str, **options: Any) -> str:
        """Run one command line that must succeed, and return its output."""
        done = self.run(*args, **options)
        assert done.returncode == 0, (args, done.returncode, done.stderr)
        return done.stdout

    def records(self, *args: str, **options: Any) -> list[Any]:
        """Run one command line with `--json` and return its records."""
        return [json.loads(line) for line in self.ok(*args, "--json", **options).splitlines()]

    def start(
        self, *args: str, env: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start one command line and leave it running."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(
            [program(), *args],
            env={**self.environment, **(env or {})},
            **{"cwd": self.home, **pipes, **options},
        )


def until_a_client_waits(server: Server) -> None:
    """Return once a client of the server waits in a blocking read."""
    while b"cmd=xread" not in server.ask("CLIENT", "LIST"):
        pass


def closed(pipe: IO[str], within: float = 20) -> bool:
    """Report whether the last process closes its end of a pipe, without a word, within so many seconds."""
    return bool(select.select([pipe], [], [], within)[0]) and pipe.read() == ""


def all_exit(processes: Sequence[subprocess.Popen[str]], timeout: float = 60) -> list[str]:
    """Wait until all processes have ended, and return what each wrote to stdout."""
    return [process.communicate(timeout=timeout)[0] for process in processes]
