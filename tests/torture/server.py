"""A private server, to be killed, frozen, starved and wiped; its clock can be shifted."""

from __future__ import annotations

import errno
import importlib.util
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from typing import Any, Self

import redis

from agentbus.core.errors import BackendUnavailable
from agentbus.core.process_guard import ProcessGuard
from agentbus.store.embedded import binary as programs
from tests.torture.plain import plain_client

_STARTS_WITHIN, _ANSWERS_WITHIN = 120.0, 10.0
_GLANCE = 0.01
# A connection may take a port of the system's range before the server does; Linux begins at 32,768.
_LOWEST, _HIGHEST = 10_000, 32_768
# A unix socket's path must fit into 108 bytes on Linux and 104 on macOS.
_LONGEST_SOCKET_PATH = 100
_PRELOADED = "vendor/libfaketime/src/libfaketime.so.1"


def free_port() -> int:
    """Return a TCP port that is free now, below those that the system gives to connections."""
    while True:
        port = _LOWEST + secrets.randbelow(_HIGHEST - _LOWEST)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port


def clockwork() -> pathlib.Path | None:
    """Return the library that shifts a process's clock, if it is installed (extra `torture`) and fits."""
    spec = importlib.util.find_spec("libfaketime")
    for root in (spec.submodule_search_locations or []) if spec else []:
        found = pathlib.Path(root) / _PRELOADED
        # It is built for one kind of machine, and only complains on another.
        if found.exists() and os.uname().sysname == "Linux" and os.uname().machine == "x86_64":
            return found
    return None


class DisposableServer:
    """A real Valkey (or Redis) with its files in its own directory."""

    def __init__(
        self,
        place: pathlib.Path,
        *options: str,
        binary: str | None = None,
        port: int | None = None,
        clock: bool = False,
    ) -> None:
        """`options` are the server's own; `clock` lets its clock be shifted, where that is possible."""
        self.place = place
        self.options = options
        self._any_port = port is None
        self.port = port or free_port()
        self.binary = binary or programs.find()
        self._socket_place: str | None = None
        self.socket = str(place.absolute() / "socket")
        if len(os.fsencode(self.socket)) > _LONGEST_SOCKET_PATH or not self.socket.isascii():
            self._socket_place = tempfile.mkdtemp(prefix="agentbus-", dir="/tmp")
            self.socket = f"{self._socket_place}/socket"
        self.url = f"unix://{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None
        self._guard = ProcessGuard()
        self._clockwork = clockwork() if clock else None

    def __enter__(self) -> Self:
        try:
            while True:
                try:
                    self.start()
                    return self
                except BackendUnavailable:
                    taken = f":{self.port}: bind: Address already in use"
                    if not self._any_port or taken not in self.log():
                        raise
                    # Another program has taken the port meanwhile.
                    self.port = free_port()
                    self._log_path.unlink()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_exc: object) -> None:
        self.kill()
        self._guard.close()
        pathlib.Path(self.socket).unlink(missing_ok=True)
        if self._socket_place is not None:
            shutil.rmtree(self._socket_place, ignore_errors=True)

    @property
    def tcp_url(self) -> str:
        """The URL of its TCP port."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and return once it takes connections."""
        self.place.mkdir(parents=True, exist_ok=True)
        words = [
            *("--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.socket),
            *("--dir", str(self.place), "--appendonly", "yes", "--appendfsync", "always"),
            *("--save", "", "--logfile", str(self._log_path)),
            *("--aof-use-rdb-preamble", "no", "--maxmemory-policy", "noeviction"),
            # Its environment, by which it can be found, lies where the title would be written.
            *("--set-proc-title", "no"),
        ]
        self.process = subprocess.Popen(
            [*self._clocked(), self.binary, *words, *self.options],
            stdin=subprocess.DEVNULL,
            # Our stdout is data; the server has its own log.
            stdout=subprocess.DEVNULL,
            # A Ctrl-C is for us, and we may still need the server before we end.
            process_group=0,
        )
        self._guard.guard(self.process.pid)
        deadline = time.monotonic() + _STARTS_WITHIN
        while True:
            try:
                if self.ask("PING") == b"PONG":
                    return
            except redis.RedisError:
                # Not listening, or loading its data.
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise BackendUnavailable(
                        f"the server in {self.place} does not start: {self.log()[-1000:]}"
                    ) from None
            time.sleep(_GLANCE)

    def kill(self) -> None:
        """Kill the server with -9, if it runs."""
        if self.process is not None:
            self.process.kill()
            self._guard.release(self.process.pid)
            self.process.wait()

    def stop(self) -> None:
        """Freeze the server: it keeps its connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a frozen server run on."""
        self._signal(signal.SIGCONT)

    def starve(self) -> None:
        """Take away its memory: it refuses what needs more, and keeps its data."""
        self.ask("CONFIG", "SET", "maxmemory", "1")

    def feed(self) -> None:
        """Give it all memory again."""
        self.ask("CONFIG", "SET", "maxmemory", "0")

    def wipe(self, *, restart: bool) -> None:
        """Delete all its data, by a command or, with `restart`, on its disk."""
        if not restart:
            self.ask("FLUSHALL")
            return
        self.kill()
        shutil.rmtree(self.place / "appendonlydir", ignore_errors=True)
        self.start()

    @property
    def written(self) -> int:
        """How many bytes its newest log has."""
        log = self._newest_log
        return 0 if log is None else log.stat().st_size

    def lose_tail(self, size: int) -> bool:
        """Cut `size` bytes off the log of a killed server; False if the log is empty."""
        log = self._newest_log
        if log is None or not (there := log.stat().st_size):
            return False
        with log.open("r+b") as file:
            file.truncate(max(0, there - size))
        return True

    @property
    def _newest_log(self) -> pathlib.Path | None:
        logs = sorted((self.place / "appendonlydir").glob("*.incr.aof"))
        return logs[-1] if logs else None

    @property
    def has_clockwork(self) -> bool:
        """Whether its clock can be shifted."""
        return self._clockwork is not None

    def shift(self, seconds: float) -> None:
        """Set its clock `seconds` ahead of the machine's (or, below 0, behind it)."""
        # Written beside and renamed: the server reads it at any moment.
        fresh = self._offset.with_suffix(".new")
        fresh.write_text(f"{seconds:+.3f}s")
        fresh.replace(self._offset)

    @property
    def _offset(self) -> pathlib.Path:
        return self.place / "clock"

    def _clocked(self) -> list[str]:
        if self._clockwork is None:
            return []
        if not self._offset.exists():
            self.shift(0)
        # Only the time of day goes wrong; a monotonic clock never does.
        return [
            *("env", f"LD_PRELOAD={self._clockwork}", f"FAKETIME_TIMESTAMP_FILE={self._offset}"),
            *("FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1"),
        ]

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def log(self) -> str:
        """Return the server's log."""
        return self._log_path.read_text() if self._log_path.exists() else ""

    @property
    def _log_path(self) -> pathlib.Path:
        return self.place / "server.log"

    def ask(self, *args: str | bytes | int) -> Any:
        """Send one command over a new connection, and return the plain reply."""
        with plain_client(self.url, _ANSWERS_WITHIN, retry=None) as client:
            client.response_callbacks.clear()
            return client.execute_command(*args)


# The name in the reference.
Server = DisposableServer
