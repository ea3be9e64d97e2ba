"""The place of an archive: a directory or a bucket, and the small files that the driver keeps there.

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

# Files that are requested at a time.
THREADS = 16


@dataclass(frozen=True, slots=True)
class ArchiveTarget:
    """The place of data files, as a value that may be sent to executors: it holds no credentials."""

    scheme: str
    root: str

    def filesystem(self) -> tuple[Any, str]:
        """Return pyarrow's file system and the root in it, by the environment of this process."""
        if self.scheme == "file":
            return fs.LocalFileSystem(), self.root
        # A file that fits into one part is then one request, and not three.
        options = {**_s3_options(s3_settings()), "allow_delayed_open": True}
        return fs.S3FileSystem(**options), self.root

    def data(self, path: str) -> str:
        """Return the name under which the data file of this path in the log lies."""
        return f"_data/{path}" if self.scheme == "file" else path


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file in a place: its name, its size in bytes, and when it was last written (unix time)."""

    name: str
    size: int
    modified: float


class Place(ABC):
    """A directory or a part of a bucket; names in it are relative, with `/` between their parts."""

    target: ArchiveTarget

    def __str__(self) -> str:
        return self.uri("").rstrip("/")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    @abstractmethod
    def uri(self, name: str) -> str:
        """Return what Spark calls this file or directory."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write a file whole, so that it survives a crash; False, and no change, if it is there."""

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Write a file whole, in place of the one that may be there."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return what a file holds, None if it is not there."""

    @abstractmethod
    def listing(self, folder: str, after: str = "") -> Iterator[FileInfo]:
        """Yield every file in a folder and below; what is half written or hidden is left out.

        With `after`, only files whose names come after that name, in a folder without others in it.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file; it may be gone already."""

    @abstractmethod
    def blank(self, name: str) -> None:
        """Empty a file at once, which stays as old as it is, where that frees space."""

    @abstractmethod
    def sync(self, name: str) -> int | None:
        """Make sure that a file survives a crash and return its size, None if it is not there."""

    def sync_all(self, names: Sequence[str]) -> list[int | None]:
        """Do the same for several files at once, and return the size of each."""
        return self._together(self.sync, names)

    @abstractmethod
    def copy(self, source: str, name: str) -> None:
        """Let a file be at another, new name, too, whole at once."""

    def read_all(self, names: list[str]) -> list[bytes | None]:
        """Return what several files hold, None for each that is not there."""
        return [self.read(name) for name in names]

    def _together(self, call: Callable[[str], T], names: Sequence[str]) -> list[T]:
        """Call a function that waits for each name, for some at a time; return the results in order."""
        if len(names) < 2:
            return [*map(call, names)]
        with ThreadPoolExecutor(min(THREADS, len(names))) as pool:
            return [*pool.map(call, names)]

    def remove_tree(self, folder: str) -> None:
        """Delete every file in a folder and below."""
        for entry in list(self.listing(folder)):
            self.delete(entry.name)

    def data(self, path: str) -> str:
        """Return the name under which the data file of this path in the log lies."""
        return self.target.data(path)

    def check(self) -> None:
        """Raise `Unhealthy` if names here may lead to files elsewhere."""
        return

    @abstractmethod
    def tidy(self, before: float) -> None:
        """Delete what writers that were killed before this unix time left half written."""


def s3_settings() -> dict[str, str]:
    """Return the settings for S3 that are set: `endpoint`, `region` and credentials."""
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
    """Return what pyarrow's file system for S3 wants; what is unset, it finds as AWS's tools do."""
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
