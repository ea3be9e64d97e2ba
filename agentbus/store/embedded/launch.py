"""Starts the embedded server, so that exactly one runs for all processes of a user.

Starting processes take turns by locking `start.lock`. The server itself holds `alive.lock`, through an
inherited descriptor, as long as it lives. Process ids would not serve, because they are reused, and zombies
keep theirs.
"""

from __future__ import annotations

import _socket
import fcntl
import logging
import os
import resource
import subprocess
import time

from agentbus.core import socket_place
from agentbus.core.errors import BackendUnavailable, ConfigError
from agentbus.core.settings import (
    LONGEST_SOCKET_PATH,
    home,
    server_directory,
    socket_path,
    variable,
)
from agentbus.core.settings_check import make_private, own_directory
from agentbus.store import sandbox
from agentbus.store.connection import check_peer
from agentbus.store.embedded import binary, disk
from agentbus.store.embedded.watch import Watch

_TRIES = 3
# Each client takes an open file, and the server some 32 for itself.
_FILES = 256
# Minimum bytes of memory that the limits of the first caller must allow.
_MEMORY = 2**30
_GLANCE, _LONGEST_GLANCE = 0.003, 0.05


def ensure(within: float) -> None:
    """Return once the server accepts connections, starting it if necessary; `within` is in seconds."""
    place = prepare()
    until = time.monotonic() + max(within, 1.0)
    with Lock(os.path.join(place, "start.lock")) as turn:
        turn.take(until)
        place_socket(place)
        for _ in range(_TRIES):
            if accepts():
                return
            if _started(place, until):
                return
    if alive_now():
        raise BackendUnavailable(
            f"the embedded server runs but accepts no connections within {within:g} s",
            hint=f"see {log_path()}, or 'agentbus server stop' and try again",
        )
    disk.check()
    raise BackendUnavailable(
        f"the embedded server died {_TRIES} times while it started ({_last_words()})",
        hint=f"see {log_path()}; 'agentbus server repair' repairs a damaged append-only file",
    )


def prepare() -> str:
    """Create the server's directory, private to this user, and return it."""
    place = server_directory()
    try:
        make_private(place)
        own_directory(place)
    except OSError as error:
        raise sandbox.read_only(error, place) or ConfigError(
            f"the embedded server's directory {place} cannot be created ({error.strerror})",
            hint=f"make {home()} writable, set XDG_STATE_HOME, or give the URL of a server",
        ) from None
    return place


def place_socket(place: str) -> None:
    """Create the socket's directory if it is separate; only one process at a time may call this."""
    if len(os.fsencode(f"{place}/redis.sock")) <= LONGEST_SOCKET_PATH:
        return
    runtime = variable("XDG_RUNTIME_DIR")
    try:
        directory = socket_place.make(place, runtime)
    except OSError as error:
        raise sandbox.read_only(error, place) or ConfigError(
            f"no directory for the embedded server's socket can be created ({error.strerror})",
            hint="set XDG_STATE_HOME to a shorter path, or give the URL of a server",
        ) from None
    for taken in socket_place.usual(place, runtime):
        if socket_place.is_taken(taken):
            logging.getLogger("agentbus").warning(
                "%s is not a directory of this user's: the embedded server's socket is in %s",
                *(ascii(taken), directory),
            )


def accepts(*, ready: bool = False) -> bool:
    """Report whether the server accepts connections; with `ready`, whether it has loaded its data."""
    sock = None
    try:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        sock.settimeout(1.0)
        sock.connect(socket_path())
        check_peer(sock, socket_path())
        if not ready:
            return True
        sock.sendall(b"PING\r\n")
        return sock.recv(64).startswith(b"+PONG")
    except OSError as error:
        if denied := sandbox.kept_off(error, socket_path()):
            raise denied from None
        return False
    finally:
        if sock is not None:
            sock.close()


def alive_now() -> bool:
    """Report whether a server process holds `alive.lock`."""
    path = os.path.join(server_directory(), "alive.lock")
    if not os.path.exists(path):
        return False
    with Lock(path) as lock:
        return not lock.try_take()


def log_path() -> str:
    """Return the path of the server's own log."""
    return os.path.join(server_directory(), "server.log")


def arguments(place: str) -> list[str]:
    """Return the server's options.

    Every write reaches the disk before its reply, nothing is evicted, and every version of Redis and Valkey
    can read the append-only file.
    """
    options = {
        "port": "0",
        "unixsocket": socket_path(),
        "unixsocketperm": "700",
        "dir": place,
        "appendonly": "yes",
        "appendfsync": "always",
        "aof-use-rdb-preamble": "no",
        "save": "",
        "maxmemory-policy": "noeviction",
        "timeout": "0",
        "logfile": log_path(),
    }
    return [word for key, value in options.items() for word in (f"--{key}", value)]


def _started(place: str, until: float) -> bool:
    """Start a server unless one is alive, and report whether it answers before `until`."""
    with Watch() as watch:
        with Lock(os.path.join(place, "alive.lock")) as alive:
            spawned = alive.try_take()
            if spawned:
                _check_limits()
                disk.check()
                _spawn(place, alive, watch.held)
        answers = _await_accepting(place, until)
        if answers and spawned:
            watch.begin(place)
        return answers


def _check_limits() -> None:
    """Raise `ConfigError` if limits of this process, which the server inherits, are too low for all."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    length = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    memory = [resource.getrlimit(each)[0] for each in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    least = min([each for each in memory if each != resource.RLIM_INFINITY], default=_MEMORY)
    if files != resource.RLIM_INFINITY and files < _FILES:
        limit, low = f"at most {files} open files (ulimit -n)", f"at least {_FILES}"
    elif length != resource.RLIM_INFINITY:
        limit, low = f"files of at most {length} bytes (ulimit -f)", "files of any length"
    elif least < _MEMORY:
        limit, low = f"{least} bytes of memory (ulimit -v, -d)", f"at least {_MEMORY}"
    else:
        return
    raise ConfigError(
        f"the embedded server was not started: this shell allows {limit}, and a server for all needs {low}",
        hint="start it from a shell without that limit: 'agentbus server start'",
    )


def _spawn(place: str, alive: Lock, held: int) -> None:
    program = binary.find()
    _unlink(socket_path())
    os.set_inheritable(alive.descriptor, True)
    process = subprocess.Popen(
        [program, *arguments(place), "--daemonize", "yes"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[alive.descriptor, held],
        start_new_session=True,
        umask=0o077,
        cwd=place,
    )
    _, said = process.communicate()
    if process.returncode:
        raise BackendUnavailable(
            f"the embedded server did not start ({said.decode(errors='replace').strip()[-200:]})",
            hint=f"see {log_path()}",
        )


def _await_accepting(place: str, until: float) -> bool:
    while time.monotonic() < until:
        # A server with a damaged file exits while loading: only an answer shows that it has
        # started.
        if accepts(ready=True):
            return True
        with Lock(os.path.join(place, "alive.lock")) as alive:
            if alive.try_take():
                return False
        time.sleep(_GLANCE)
    return False


def _last_words() -> str:
    try:
        with open(log_path(), "rb") as file:
            file.seek(max(0, os.path.getsize(log_path()) - 4096))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError as error:
        return f"no log: {error.strerror}"
    warnings = [line for line in lines if " # " in line] or lines
    return " ".join(warnings[-1:])[:200]


def _unlink(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)


class Lock:
    """A `flock` on a file, released when the `with` ends, or when all processes that inherit it end."""

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self.descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            if denied := sandbox.read_only(error, path):
                raise denied from None
            disk.check()
            raise BackendUnavailable(
                f"the file {path} cannot be opened ({error.strerror})",
                hint="correct its permissions, or remove it while the server does not run",
            ) from None

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self.descriptor)

    def try_take(self) -> bool:
        """Take the lock if it is free."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def take(self, until: float) -> None:
        """Take the lock, waiting until `until` by the monotonic clock."""
        pause = _GLANCE
        while not self.try_take():
            if time.monotonic() >= until:
                raise BackendUnavailable(
                    "another process is still starting the embedded server",
                    hint=f"see {log_path()}",
                )
            # Hundreds of processes may wait here, and must leave CPU time to the starting server.
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_GLANCE)
