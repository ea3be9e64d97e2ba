"""An archive in a directory of a local or shared file system."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator

from agentbus.core.errors import AgentBusError, ConfigError, NotFound, Unhealthy, UsageError
from agentbus.pipeline.archives.places import ArchiveTarget, FileInfo, Place

_NOT_LINKABLE = (errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EXDEV, errno.EACCES)


class Directory(Place):
    """A directory: files are created by hard links, which never replace a file."""

    def __init__(self, path: str) -> None:
        self.root = os.path.abspath(path)
        self.target = ArchiveTarget("file", self.root)

    def uri(self, name: str) -> str:
        """Return a `file://` URI in Hadoop's form, without percent-encoding."""
        return f"file://{self._path(name)}"

    def create(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        with told("write", path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                # Unlike a rename, a link never replaces a file: of concurrent writers, only one
                # gets the name.
                with written_beside(path, data) as temporary:
                    os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NOT_LINKABLE and os.access(os.path.dirname(path), os.W_OK):
                    raise ConfigError(
                        f"{self} lies on a file system without hard links",
                        hint="keep the archive on another one, or on S3",
                    ) from error
                raise
            _sync_directory(os.path.dirname(path))
        return True

    def replace(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with told("write", path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with written_beside(path, data) as temporary:
                os.replace(temporary, path)

    def read(self, name: str) -> bytes | None:
        path = self._path(name)
        with told("read", path):
            try:
                with open(path, "rb", opener=_without_links) as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise _is_link(path) from None
                raise

    def listing(self, folder: str, after: str = "") -> Iterator[FileInfo]:
        with told("list", self._path(folder)):
            yield from self._walk(folder, after)

    def _walk(self, folder: str, after: str) -> Iterator[FileInfo]:
        inside, _, last = after.rpartition("/")
        if after and inside == folder:
            yield from self._later(folder, last)
            return
        try:
            found = os.scandir(self._path(folder))
        except FileNotFoundError:
            return
        inner = []
        with found:
            for entry in found:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    inner.append(name)
                    continue
                if name <= after:
                    continue
                # The file may be deleted while the directory is listed.
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat()
                    yield FileInfo(name, stat.st_size, stat.st_mtime)
        for name in inner:
            yield from self._walk(name, after)

    def _later(self, folder: str, last: str) -> Iterator[FileInfo]:
        """Yield the files of a folder without subfolders whose names follow a name."""
        # In a log nearly all names come before `last`: examining each entry would take twice as
        # long.
        names = []
        with contextlib.suppress(FileNotFoundError):
            names = [each for each in os.listdir(self._path(folder)) if each > last]
        for each in names:
            with contextlib.suppress(FileNotFoundError):
                stat = os.stat(self._path(f"{folder}/{each}"))
                yield FileInfo(f"{folder}/{each}", stat.st_size, stat.st_mtime)

    def delete(self, name: str) -> None:
        path = self._path(name)
        with told("delete", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def blank(self, name: str) -> None:
        path = self._path(name)
        temporary = _beside(path)
        # A crash of the machine does no harm here: the file is either unchanged or empty.
        with told("write", path), contextlib.suppress(FileNotFoundError):
            modified = os.stat(path).st_mtime
            with open(temporary, "xb"):
                os.utime(temporary, (modified, modified))
            os.replace(temporary, path)

    def remove_tree(self, folder: str) -> None:
        path = self._path(folder)
        with told("delete", path):
            shutil.rmtree(path, ignore_errors=True)

    def sync(self, name: str) -> int | None:
        path = self._path(name)
        with told("read", path):
            try:
                file = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            try:
                os.fsync(file)
                size = os.fstat(file).st_size
            finally:
                os.close(file)
            _sync_directory(os.path.dirname(path))
            return size

    def copy(self, source: str, name: str) -> None:
        origin, path = self._path(source), self._path(name)
        with told("write", path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _link(origin, path)

    def check(self) -> None:
        with told("list", self.root):
            # Files of logs may be many: `read` refuses those that are links.
            _check_links(self._path("_log"), below=False)
            _check_links(self._path("_delta_log"), below=False)
            _check_links(self._path("_data"))

    def tidy(self, before: float) -> None:
        for folder in ("_log", "_delta_log"):
            for name, modified in self._half_written(folder):
                if modified < before:
                    self.delete(name)

    def _half_written(self, folder: str) -> Iterator[tuple[str, float]]:
        path = self._path(folder)
        with told("list", path), contextlib.suppress(FileNotFoundError):
            for entry in list(os.scandir(path)):
                if entry.name.startswith(".") and entry.name.endswith(".tmp"):
                    with contextlib.suppress(FileNotFoundError):
                        yield f"{folder}/{entry.name}", entry.stat().st_mtime

    def _path(self, name: str) -> str:
        return os.path.join(self.root, name) if name else self.root


@contextlib.contextmanager
def told(doing: str, path: str) -> Iterator[None]:
    """Convert an error of the operating system, or of Arrow's file systems, to one sentence."""
    try:
        yield
    except OSError as error:
        raise trouble(doing, path, error) from error


def begin_flush(path: str) -> None:
    """Start writing a file to the disk, so that a later fsync is fast."""
    if not hasattr(os, "posix_fadvise"):
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def trouble(doing: str, path: str, error: OSError) -> AgentBusError:
    """Return an error with the operating system's reason, and a remedy."""
    # Arrow surrounds the operating system's message with long text; errors of S3 have no number.
    reason = os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]
    said = f"cannot {doing} {path}: {reason.lower()}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return AgentBusError(said, hint="free some space; what was archived is whole")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ConfigError(said, hint="choose a path that this user may use")
    # A write creates missing directories: if that fails, as in /proc, the path can never be
    # written.
    never = error.errno == errno.ENOENT and doing.startswith("write")
    if never or error.errno in (errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
        return UsageError(said, hint="choose another path")
    if error.errno == errno.ENOENT:
        return NotFound(said, hint="check the path")
    return AgentBusError(said)


@contextlib.contextmanager
def written_beside(path: str, data: bytes) -> Iterator[str]:
    """Write data durably into a file beside a path, to be linked or renamed to the path."""
    temporary = _beside(path)
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _check_links(folder: str, *, below: bool = True) -> None:
    """Raise `Unhealthy` if a folder of an archive, or anything below it, is a symbolic link."""
    if os.path.islink(folder):
        raise _is_link(folder)
    inner = []
    # Compaction may delete what is in it meanwhile.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries if below else ():
            if entry.is_symlink():
                raise _is_link(entry.path)
            if entry.is_dir():
                inner.append(entry.path)
    for each in inner:
        _check_links(each)


def _is_link(path: str) -> Unhealthy:
    return Unhealthy(
        f"{path} is a symbolic link, and the files of an archive lie in the archive",
        hint="put the file or directory itself there, or give the path of the whole archive elsewhere",
    )


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _link(origin: str, path: str) -> None:
    try:
        os.link(origin, path)
    except OSError as error:
        if error.errno not in _NOT_LINKABLE:
            raise
        beside = _beside(path)
        shutil.copyfile(origin, beside)
        os.replace(beside, path)


def _beside(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name[:64]}.{secrets.token_hex(6)}.tmp")


def _sync_directory(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
