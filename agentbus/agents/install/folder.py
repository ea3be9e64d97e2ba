"""The place of an installation: the folder that clients read, the record, the directories of settings."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agentbus.agents import plugin
from agentbus.agents.clients import CLIENTS
from agentbus.core import written_path
from agentbus.core.errors import AgentBusError, NotFound
from agentbus.core.settings import home, repository, variable
from agentbus.core.settings_check import make_private
from agentbus.core.version import __version__

_RECORD = "installed.json"


def base() -> str:
    """Return the directory of all that clients read, which need not exist."""
    place = variable("XDG_DATA_HOME") or ""
    if not os.path.isabs(place):
        place = os.path.join(home(), ".local", "share")
    return os.path.join(place, "agentbus", "clients")


def is_used() -> bool:
    """Tell whether anything is installed, as far as one look at the disk tells."""
    return os.path.isfile(os.path.join(base(), _RECORD))


def program() -> str:
    """Return the absolute path of this `agentbus`, as it was called: a link is not followed."""
    called = os.path.abspath(sys.argv[0])
    if os.path.basename(called) in ("agentbus", "agentbus-toolkit") and _runs(called):
        return called
    beside = os.path.join(sysconfig.get_path("scripts"), "agentbus")
    if _runs(beside):
        return beside
    on_path = shutil.which("agentbus")
    if on_path is None:
        raise NotFound(
            "the command agentbus is not installed, only the package",
            hint="install it: pipx install agentbus-toolkit",
        )
    return os.path.abspath(on_path)


def _runs(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def folder() -> str:
    """Return the directory that the clients of this version read."""
    return os.path.join(base(), __version__)


def is_written(wanted: str) -> bool:
    """Tell whether the folder is what `wanted`, the path of a program, would have in it."""
    place, files = folder(), plugin.files(wanted)
    return plugin.present(place) == sorted(files) and not differing(place, files)


def differing(place: str, files: dict[str, str]) -> list[str]:
    """Return the files of a directory that are missing, or differ from these."""
    return [path for path, text in files.items() if _read(os.path.join(place, path)) != text]


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except OSError:
        return None


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other process of this user installs anything, and keep others waiting."""
    place = os.path.dirname(base())
    try:
        descriptor = _locked(place)
        while descriptor is None:
            descriptor = _locked(place)
    except OSError as error:
        raise AgentBusError(f"{place} cannot be written ({error.strerror})") from None
    try:
        yield
    finally:
        # It stays if anything is in it; another process that waits for it sees that it has gone.
        with contextlib.suppress(OSError):
            os.rmdir(place)
        os.close(descriptor)


def _locked(place: str) -> int | None:
    """Wait for the lock of a directory, and return its descriptor; None if it was removed meanwhile."""
    make_private(place)
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        if os.path.samestat(os.fstat(descriptor), os.stat(place)):
            return descriptor
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return None


class InstallRecord:
    """The record of installations: clients by `client scope directory`, and the files merged into."""

    def __init__(self) -> None:
        self._path = os.path.join(base(), _RECORD)
        try:
            record = json.loads(_read(self._path) or "{}")
        except ValueError:
            raise AgentBusError(
                f"{self._path} is not JSON",
                hint="remove it, then run 'agentbus install CLIENT' again for each client",
            ) from None
        record = record if isinstance(record, dict) else {}
        self.clients: dict[str, str] = record.get("clients") or {}
        self.merged: dict[str, dict[str, Any]] = record.get("merged") or {}

    def save(self) -> None:
        """Write it in one step. Raises `AgentBusError`."""
        beside = f"{self._path}.{os.getpid()}"
        try:
            make_private(os.path.dirname(self._path))
            with open(beside, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(plugin.as_json({"clients": self.clients, "merged": self.merged}))
            os.replace(beside, self._path)
        except OSError as error:
            raise AgentBusError(f"{self._path} cannot be written ({error.strerror})") from None

    def tidy(self) -> None:
        """Remove the folders of versions that no client reads, and all there is if nothing is installed."""
        if not self.clients and not self.merged:
            shutil.rmtree(base(), ignore_errors=True)
            return
        # Only the names of versions begin with a digit.
        kept = {__version__, *self.clients.values()}
        for name in os.listdir(base()) if os.path.isdir(base()) else ():
            if name[:1].isdigit() and name not in kept:
                shutil.rmtree(os.path.join(base(), name), ignore_errors=True)


def is_ours(path: str) -> bool:
    """Tell whether a path is within the directory of all that clients read."""
    return os.path.realpath(path).startswith(os.path.realpath(base()) + os.sep)


@dataclass
class Installation:
    """The place of an installation; `root` is that of the repository, or the current directory."""

    program: str
    scope: str = "user"
    record: InstallRecord = field(default_factory=InstallRecord)

    def __post_init__(self) -> None:
        self.folder = folder()
        root, self.common = repository()
        self.in_repository = root is not None
        self.root = root or os.getcwd()

    def entry(self, client: str) -> str:
        """Return the key of a client's installation in the record."""
        if self.scope == "project" or client in ("agents-md", "git"):
            return f"{client} project {self.root}"
        return f"{client} user"

    def directory(self, client: str) -> str:
        """Return the directory of a client's settings in this scope."""
        if self.scope == "project" and CLIENTS[client].project:
            return os.path.join(self.root, CLIENTS[client].project)
        return user_directory(client)

    def real(self, path: str) -> str:
        """Return the path without links of a file in a directory of settings of this scope."""
        return self.inside(path) if self.scope == "project" else os.path.realpath(path)

    def inside(self, path: str) -> str:
        """Return the path without links of a file of the repository. Raises `Refused` for one elsewhere."""
        return written_path.inside(path, self.root)


def user_directory(client: str) -> str:
    """Return the directory of the user's settings of a client."""
    name, default, below = CLIENTS[client].user
    place = variable(name) or ""
    place = place if os.path.isabs(place) else os.path.join(home(), default)
    return os.path.join(place, below) if below else place
