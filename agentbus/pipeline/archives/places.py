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
from urllib.parse import urlsplit

from pyarrow import fs

from agentbus.core import settings
from agentbus.core.errors import AgentBusError, NotFound
from agentbus.pipeline.archives.directory import check_links, durable_size, told

# Maximum number of files that are synced concurrently.
_THREADS = 16
# The beginnings of the names that an archive has.
_OURS = ("_delta_log", "kind=")


@dataclass(frozen=True, slots=True)
class ArchiveTarget:
    """The place of data files, as a value without credentials that may be sent to executors."""

    scheme: str
    root: str

    def filesystem(self) -> tuple[Any, str]:
        """Return pyarrow's file system and the root in it, from this process's environment."""
        if self.scheme == "file":
            return fs.LocalFileSystem(), self.root
        # This option writes a file that fits into one part by one request instead of three.
        options = {**_s3_options(s3_settings()), "allow_delayed_open": True}
        return fs.S3FileSystem(**options), self.root

    def storage_options(self) -> dict[str, str]:
        """Return the options of the library that commits, which reads credentials by itself."""
        endpoint = s3_settings().get("endpoint") if self.scheme == "s3" else None
        if endpoint is None:
            return {}
        plain = endpoint.startswith("http://")
        return {"AWS_ENDPOINT_URL": endpoint} | ({"AWS_ALLOW_HTTP": "true"} if plain else {})

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
        """Return the URI of this file or directory for Spark, without percent-encoding."""
        scheme = "file" if self.target.scheme == "file" else "s3a"
        return f"{scheme}://{self._path(name)}"

    @functools.cached_property
    def _system(self) -> Any:
        return self.target.filesystem()[0]

    def write(self, name: str, data: bytes) -> None:
        """Write a file; `sizes` makes it durable."""
        path = self._path(name)
        with told("write", path):
            self.make_folder(name)
            with self._system.open_output_stream(path) as sink:
                sink.write(data)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
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
                name = info.path[len(self.target.root) :].lstrip("/")
                yield FileInfo(name, info.size, (info.mtime_ns or 0) / 1e9)

    def top(self) -> list[str]:
        """Return the names of the files and folders at the top, without hidden ones."""
        with told("list", str(self)):
            if self.target.scheme == "file":
                # pyarrow looks at each, which is not allowed everywhere.
                names = os.listdir(self.target.root) if os.path.exists(self.target.root) else []
            else:
                selector = fs.FileSelector(self.target.root, allow_not_found=True)
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
        with told("list", str(self)):
            if self.target.scheme == "file":
                check_links(self.target.root, _OURS)
            else:
                self._require_bucket()

    def _require_bucket(self) -> None:
        bucket = self.target.root.partition("/")[0]
        (found,) = self._system.get_file_info([bucket])
        if found.type == fs.FileType.NotFound:
            raise NotFound(f"cannot open {self}: the bucket does not exist", hint="create it first")

    def make(self) -> None:
        """Create the directory. Raises the error that tells why nothing can be written there."""
        with told("write", str(self)):
            self.make_folder("_delta_log/x")

    def make_folder(self, name: str) -> None:
        """Create the directories of a file, which a bucket does not need."""
        if self.target.scheme == "file":
            os.makedirs(os.path.dirname(self._path(name)), exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self.target.root}/{name}" if name else self.target.root


def s3_settings() -> dict[str, str]:
    """Return the settings for S3 that are present: `endpoint`, `region` and credentials."""
    wanted = {
        "access_key": ("AWS_ACCESS_KEY_ID",),
        "secret_key": ("AWS_SECRET_ACCESS_KEY",),
        "session_token": ("AWS_SESSION_TOKEN",),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    }
    found = {
        name: next(filter(None, map(settings.variable, v)), None) for name, v in wanted.items()
    }
    return {name: value for name, value in found.items() if value}


def _s3_options(found: dict[str, str]) -> dict[str, Any]:
    """Return the options of pyarrow's S3 file system; it finds missing ones as AWS's tools do."""
    options: dict[str, Any] = {
        "access_key": found.get("access_key"),
        "secret_key": found.get("secret_key"),
        "session_token": found.get("session_token"),
        "region": found.get("region"),
    }
    if endpoint := found.get("endpoint"):
        parts = urlsplit(endpoint)
        options["scheme"] = parts.scheme
        options["endpoint_override"] = parts.netloc
        options["region"] = found.get("region") or "us-east-1"
    return {name: value for name, value in options.items() if value is not None}
