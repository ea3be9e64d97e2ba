"""Controls the embedded server: status, start, stop, run in the foreground, repair."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from agentbus.core.errors import AgentBusError, BackendUnavailable, NotFound, Refused
from agentbus.core.settings import server_directory, socket_path
from agentbus.store.connection import Backend
from agentbus.store.embedded import binary, disk
from agentbus.store.embedded.launch import (
    Lock,
    alive_now,
    arguments,
    ensure,
    log_path,
    place_socket,
    prepare,
)
from agentbus.store.embedded.watch import Watch
from agentbus.store.scope import EMBEDDED, embedded
from agentbus.store.steps import Command, Denied, LinkDown, ServerReply

if TYPE_CHECKING:
    from agentbus.store.steps import Link

_STOPS_WITHIN = 30.0
_GLANCE = 0.01


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The embedded server's state; `version` and all later fields are None while it is not running."""

    running: bool
    directory: str
    socket: str
    log: str
    version: str | None = None
    pid: int | None = None
    uptime: float | None = None
    memory: int | None = None
    keys: int | None = None


def status() -> ServerStatus:
    """Return the server's state, without starting it."""
    down = ServerStatus(False, server_directory(), socket_path(), log_path())
    if not alive_now():
        return down
    try:
        named = _info(_link())
    except (LinkDown, ServerReply):
        return ServerStatus(True, server_directory(), socket_path(), log_path())
    keys = sum(
        int(value.split(",")[0].removeprefix("keys="))
        for name, value in named.items()
        if name.startswith("db") and value.startswith("keys=")
    )
    if "valkey_version" in named:
        version = f"Valkey {named['valkey_version']}"
    else:
        version = f"Redis {named.get('redis_version', '?')}"
    return ServerStatus(
        True,
        server_directory(),
        socket_path(),
        log_path(),
        version,
        int(named["process_id"]),
        float(named["uptime_in_seconds"]),
        int(named["used_memory"]),
        keys,
    )


def start(within: float) -> ServerStatus:
    """Start the server if it is not running, and return its state."""
    ensure(within)
    return status()


def stop() -> bool:
    """Stop the server, whose data is already on disk; return whether it was running."""
    if not alive_now():
        return False
    link = _link()
    stopping = _run_id(link)
    _shut_down(link)
    until = time.monotonic() + _STOPS_WITHIN
    while alive_now():
        link = _link()
        running = _run_id(link)
        if stopping is None and running is not None:
            # The server was still starting when the first SHUTDOWN failed; repeat it.
            _shut_down(link)
            stopping = running
        elif running not in (stopping, None):
            # The server has ended, and a waiting client has started another one.
            return True
        if time.monotonic() > until:
            raise BackendUnavailable(
                f"the embedded server still runs after {_STOPS_WITHIN:g} s",
                hint=f"see {log_path()}",
            )
        time.sleep(_GLANCE)
    return True


def _shut_down(link: Link) -> None:
    try:
        link.execute(Command("SHUTDOWN", "NOSAVE"))
    except Denied as denied:
        raise denied.error from None
    except LinkDown:
        return
    except ServerReply as refused:
        raise BackendUnavailable(f"the embedded server did not stop ({refused})") from None


def run() -> NoReturn:
    """Become the server, in the foreground, with its log on stdout."""
    place = prepare()
    program = binary.find()
    with Lock(os.path.join(place, "alive.lock")) as alive:
        if not alive.try_take():
            raise Refused(
                "the embedded server runs already", hint="stop it first: 'agentbus server stop'"
            )
        disk.check()
        place_socket(place)
        if os.path.lexists(socket_path()):
            os.unlink(socket_path())
        words = arguments(place)
        words[words.index("--logfile") + 1] = ""
        # Replace this process by the server, so that a process manager signals the server directly.
        os.set_inheritable(alive.descriptor, True)
        watch = Watch()
        watch.begin_with(os.getpid(), place)
        os.set_inheritable(watch.held, True)
        os.umask(0o077)
        os.chdir(place)
        os.execv(program, [program, *words])  # noqa: S606 (no shell)


def repair() -> str:
    """Repair a damaged append-only file, and return the path of a copy of the damaged file."""
    place = prepare()
    with Lock(os.path.join(place, "alive.lock")) as alive:
        if not alive.try_take():
            raise Refused(
                "the embedded server runs, so its file is sound",
                hint="if it misbehaves, stop it first: 'agentbus server stop'",
            )
        files = os.path.join(place, "appendonlydir")
        manifest = os.path.join(files, "appendonly.aof.manifest")
        if not os.path.exists(manifest):
            raise NotFound("there is no append-only file to repair", hint=f"looked in {files}")
        kept = f"{files}.{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.{os.getpid()}"
        shutil.copytree(files, kept)
        with tempfile.TemporaryDirectory() as folder:
            # valkey-server acts as valkey-check-aof when called by that name.
            program = binary.find()
            name = os.path.basename(program).replace("-server", "-check-aof")
            checker = os.path.join(folder, name)
            os.symlink(program, checker)
            done = subprocess.run(
                [checker, "--fix", manifest],
                input="y\n",
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        if done.returncode:
            raise AgentBusError(
                f"the append-only file could not be repaired ({_last_line(done.stdout)})",
                hint=f"a copy of it is in {kept}",
            )
        return kept


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1][:200]


def _link() -> Link:
    return Backend(EMBEDDED, embedded).link()


def _run_id(link: Link) -> str | None:
    """Return the id of this run of the server; None if it does not answer."""
    try:
        return _info(link).get("run_id")
    except (LinkDown, ServerReply):
        return None


def _info(link: Link) -> dict[str, str]:
    reply: bytes = link.execute(Command("INFO", "everything"))
    named = {}
    for line in reply.decode(errors="replace").splitlines():
        key, separator, value = line.partition(":")
        if separator:
            named[key] = value
    return named
