"""The place of an archive, a directory or a bucket, and the small files that the driver writes.

A name is relative to the place, with `/` between its parts. Data files are written and read by
executors: they get an `ArchiveTarget`, which travels with a task and holds no secret.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pyarrow import fs

from agentbus.core import settings

T = TypeVar("T")

# Maximum number of files that are requested concurrently.
THREADS = 16


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

    def data(self, path: str) -> str:
        """Return the name of the data file for a path in the log."""
        return f"_data/{path}" if self.scheme == "file" else path


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file in a place: its name, its size in bytes, and when it was last written (unix time)."""

    name: str
    size: int
    modified: float


class Place(ABC):
    """A directory or a prefix of a bucket; names are relative, with `/` between parts."""

    target: ArchiveTarget

    def __str__(self) -> str:
        return self.uri("").rstrip("/")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    @abstractmethod
    def uri(self, name: str) -> str:
        """Return the URI of this file or directory for Spark."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write a file atomically and durably; return False, without a change, if it exists."""

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Write a file atomically, replacing an existing one."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None if it does not exist."""

    @abstractmethod
    def listing(self, folder: str, after: str = "") -> Iterator[FileInfo]:
        """Yield every file in a folder and below, except incomplete and hidden files.

        With `after`, yield only files whose names follow it, in a folder without subfolders.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""

    @abstractmethod
    def blank(self, name: str) -> None:
        """Empty a file atomically, keeping its time, if that frees space."""

    @abstractmethod
    def sync(self, name: str) -> int | None:
        """Make a file durable and return its size, None if it does not exist."""

    def sync_all(self, names: Sequence[str]) -> list[int | None]:
        """Make several files durable, and return the size of each."""
        return self._together(self.sync, names)

    @abstractmethod
    def copy(self, source: str, name: str) -> None:
        """Give a file a second, new name, atomically."""

    def read_all(self, names: list[str]) -> list[bytes | None]:
        """Return the contents of several files, None for each that does not exist."""
        return [self.read(name) for name in names]

    def _together(self, call: Callable[[str], T], names: Sequence[str]) -> list[T]:
        """Call a function for each name, several concurrently; return the results in order."""
        if len(names) < 2:
            return [*map(call, names)]
        with ThreadPoolExecutor(min(THREADS, len(names))) as pool:
            return [*pool.map(call, names)]

    def remove_tree(self, folder: str) -> None:
        """Delete every file in a folder and below."""
        for entry in list(self.listing(folder)):
            self.delete(entry.name)

    def data(self, path: str) -> str:
        """Return the name of the data file for a path in the log."""
        return self.target.data(path)

    def check(self) -> None:
        """Raise `Unhealthy` if names in this place may lead to files elsewhere."""
        return

    @abstractmethod
    def tidy(self, before: float) -> None:
        """Delete incomplete files of writers that were killed before this unix time."""


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
