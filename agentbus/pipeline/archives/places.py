"""The place of an archive, a directory or a bucket, through pyarrow's file systems.

A name is relative to the place, with `/` between its parts. Executors get an `ArchiveTarget`, which
travels with a task and holds no secret.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from agentbus.core import settings
from agentbus.core.errors import AgentBusError, ConfigError
from agentbus.pipeline.archives.directory import check_links, durable_size, told

# Maximum number of files that are synced concurrently.
_THREADS = 16
# The beginnings of the names that an archive has.
_OURS = ("_delta_log", "kind=")


@dataclass(frozen=True, slots=True)
class ArchiveTarget:
    """The place of data files, as a value without credentials that may be sent to executors.

    `options` are those of deltalake's storage, without secrets.
    """

    scheme: str
    root: str
    options: tuple[tuple[str, str], ...] = ()

    def filesystem(self) -> tuple[Any, str]:
        """Return pyarrow's file system and the root in it, from this process's environment."""
        if self.scheme == "file":
            return fs.LocalFileSystem(), self.root
        bucket, _, prefix = self.root.partition("/")
        storage = DeltaStorageHandler(f"{self.scheme}://{bucket}", self.storage_options())
        return fs.PyFileSystem(storage), prefix

    def storage_options(self) -> dict[str, str]:
        """Return the options of the library's storage, which reads its usual variables by itself."""
        if self.scheme == "file":
            return {}
        options = dict(self.options)
        if self.scheme == "s3":
            endpoint = settings.variable("AWS_ENDPOINT_URL_S3")
            endpoint = endpoint or settings.variable("AWS_ENDPOINT_URL")
            if endpoint and "AWS_ENDPOINT_URL" not in options:
                options["AWS_ENDPOINT_URL"] = endpoint
            if options.get("AWS_ENDPOINT_URL", "").startswith("http://"):
                options["AWS_ALLOW_HTTP"] = "true"
        return options | storage_file()

    def uri(self) -> str:
        """Return the URI of the table."""
        return self.root if self.scheme == "file" else f"{self.scheme}://{self.root}"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file in a place: its name, its size in bytes, and when it was last written (unix time)."""

    name: str
    size: int
    modified: float


class Place:
    """A directory or a prefix of a bucket; names are relative, with `/` between parts."""

    def __init__(self, target: ArchiveTarget) -> None:
        self.target = target

    def __str__(self) -> str:
        return self.uri("").rstrip("/")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def uri(self, name: str) -> str:
        """Return the URI of this file or directory, without percent-encoding."""
        return f"{self.target.scheme}://{self.target.root}" + (f"/{name}" if name else "")

    @functools.cached_property
    def _opened(self) -> tuple[Any, str]:
        return self.target.filesystem()

    @property
    def _system(self) -> Any:
        return self._opened[0]

    @property
    def _root(self) -> str:
        return self._opened[1]

    def write(self, name: str, data: bytes) -> None:
        """Write a file; `sizes` makes it durable."""
        path = self._path(name)
        with told("write", path):
            self.make_folder(name)
            # The library's streams take bytes, which this buffer hands on, and no buffers of Arrow.
            with self._system.open_output_stream(path, buffer_size=len(data) + 1) as sink:
                sink.write(data)

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises `NotFound` without it."""
        path = self._path(name)
        with told("read", path), self._system.open_input_stream(path) as source:
            return bytes(source.read())

    def listing(self, folder: str) -> Iterator[FileInfo]:
        """Yield every file in a folder and below, except hidden files."""
        top = self._path(folder)
        with told("list", top):
            selector = fs.FileSelector(top, allow_not_found=True, recursive=True)
            found = self._system.get_file_info(selector)
        for info in found:
            if info.type == fs.FileType.File and not info.base_name.startswith("."):
                name = info.path[len(self._root) :].lstrip("/")
                yield FileInfo(name, info.size, (info.mtime_ns or 0) / 1e9)

    def top(self) -> list[str]:
        """Return the names of the files and folders at the top, without hidden ones."""
        with told("list", str(self)):
            if self.target.scheme == "file":
                # pyarrow looks at each, which is not allowed everywhere.
                names = os.listdir(self.target.root) if os.path.exists(self.target.root) else []
            else:
                selector = fs.FileSelector(self._root, allow_not_found=True)
                names = [info.base_name for info in self._system.get_file_info(selector)]
        return sorted(name for name in names if not name.startswith("."))

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        path = self._path(name)
        with told("delete", path), contextlib.suppress(FileNotFoundError):
            self._system.delete_file(path)

    def move(self, source: str, name: str) -> None:
        """Rename a file."""
        origin, path = self._path(source), self._path(name)
        with told("write", path):
            self.make_folder(name)
            self._system.move(origin, path)

    def discard(self, batch: str) -> None:
        """Delete the files of an attempt, as far as that is possible: others are swept later."""
        with contextlib.suppress(AgentBusError):
            for entry in list(self.listing("")):
                if f"/{batch}" in entry.name:
                    self.delete(entry.name)

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """Make files durable, and return the size of each, None if it does not exist."""
        paths = [self._path(name) for name in names]
        with told("read", str(self)):
            if self.target.scheme == "file":
                with ThreadPoolExecutor(_THREADS) as pool:
                    return [*pool.map(durable_size, paths)]
            return [
                info.size if info.type == fs.FileType.File else None
                for info in self._system.get_file_info(paths)
            ]

    def check(self) -> None:
        """Raise an error if this place cannot be read, or if names in it may lead elsewhere."""
        if self.target.scheme == "file":
            with told("list", str(self)):
                check_links(self.target.root, _OURS)
        else:
            self.top()

    def make(self) -> None:
        """Create the directory. Raises the error that tells why nothing can be written there."""
        with told("write", str(self)):
            self.make_folder("_delta_log/x")

    def make_folder(self, name: str) -> None:
        """Create the directories of a file, which a bucket does not need."""
        if self.target.scheme == "file":
            os.makedirs(os.path.dirname(self._path(name)), exist_ok=True)

    def _path(self, name: str) -> str:
        return "/".join(filter(None, (self._root, name)))


def storage_file() -> dict[str, str]:
    """Return the options in the file that `AGENTBUS_STORAGE_FILE` names, which only its user may read.

    Raises `ConfigError` if others may read it, or a line is not NAME=VALUE.
    """
    path = settings.variable("AGENTBUS_STORAGE_FILE")
    if not path:
        return {}
    with told("read", path), open(path, encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise ConfigError(
                f"other users may read {path}, which holds secrets", hint=f"chmod 600 {path}"
            )
        lines = [line.strip() for line in file]
    options = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if line and not line.startswith("#"):
            if not equals or not name.strip():
                raise ConfigError(
                    f"a line of {path} is not NAME=VALUE",
                    hint="write a storage option in each line, such as AWS_SECRET_ACCESS_KEY=…",
                )
            options[name.strip().upper()] = value.strip()
    return options
