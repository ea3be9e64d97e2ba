"""Files of a directory: their errors in one sentence, their durability, and links among them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator

from agentbus.core.errors import (
    AgentBusError,
    BackendUnavailable,
    ConfigError,
    NotFound,
    Unhealthy,
    UsageError,
)

# The words in which pyarrow's file system and deltalake report an error of a bucket's server.
_AWS = re.compile(r"AWS Error ([A-Z_]+)|<Code>(\w+)</Code>")
# Without credentials, deltalake asks the service that gives machines of Amazon theirs.
_METADATA = "169.254.169.254"
_FORBIDDEN = ("ACCESS_DENIED", "MISSING_AUTHENTICATION_TOKEN", "NOT_AUTHORIZED")
_UNKNOWN_KEY = (
    *("INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "UNRECOGNIZED_CLIENT"),
    *("INVALID_CLIENT_TOKEN_ID", "INVALID_SIGNATURE", "REQUEST_EXPIRED"),
)


@contextlib.contextmanager
def told(doing: str, path: str) -> Iterator[None]:
    """Convert an error of the operating system, or of Arrow's file systems, to one sentence."""
    try:
        yield
    except OSError as error:
        raise trouble(doing, path, error) from error


def bucket_trouble(doing: str, path: str, error: Exception) -> AgentBusError | None:
    """Return the error that a bucket's server gave, None if it gave none."""
    message = f"cannot {doing} {path}"
    if aws := _AWS.search(str(error)):
        code = aws[1] or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", aws[2]).upper()
        return _of_code(message, code)
    if _METADATA in str(error):
        return ConfigError(
            f"{message}: there are no credentials",
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    if "error sending request" in str(error):
        return _of_code(message, "NETWORK_CONNECTION")
    return None


def trouble(doing: str, path: str, error: OSError) -> AgentBusError:
    """Return an error with the operating system's reason, and a remedy."""
    if (told_by_server := bucket_trouble(doing, path, error)) is not None:
        return told_by_server
    # Arrow surrounds the operating system's message with long text; errors of S3 have no number.
    reason = os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]
    if isinstance(error, FileNotFoundError) and not error.errno:
        return NotFound(f"cannot {doing} {path}: it is not there", hint="check the path")
    message = f"cannot {doing} {path}: {reason.lower()}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return AgentBusError(message, hint="free some space; what was archived is whole")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ConfigError(message, hint="choose a path that this user may use")
    # A write creates missing directories: if that fails, as in /proc, the path can never be
    # written.
    never = error.errno == errno.ENOENT and doing.startswith("write")
    if never or error.errno in (errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
        return UsageError(message, hint="choose another path")
    if error.errno == errno.ENOENT:
        return NotFound(message, hint="check the path")
    return AgentBusError(message)


def _of_code(message: str, code: str) -> AgentBusError:
    """Return an error of a bucket's server; its message may contain the access key, its code does not."""
    if code == "NO_SUCH_BUCKET":
        return NotFound(f"{message}: the bucket does not exist", hint="create it first")
    if code in _FORBIDDEN:
        return ConfigError(f"{message}: permission denied", hint="allow it to these credentials")
    if code in _UNKNOWN_KEY:
        return ConfigError(
            f"{message}: the server refuses the credentials ({code})",
            hint="check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
        )
    if code == "NETWORK_CONNECTION":
        return BackendUnavailable(
            f"{message}: the server cannot be reached",
            hint="check the network and AWS_ENDPOINT_URL",
        )
    return AgentBusError(f"{message}: the server answered {code}")


def begin_flush(path: str) -> None:
    """Start writing a file to the disk, so that a later fsync is fast."""
    if not hasattr(os, "posix_fadvise"):
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def durable_size(path: str) -> int | None:
    """Sync a file and its directory to disk; return its size, None if it does not exist."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        os.fsync(file)
        size = os.fstat(file).st_size
    finally:
        os.close(file)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return size


@contextlib.contextmanager
def written_beside(path: str, data: bytes) -> Iterator[str]:
    """Write data durably into a file beside a path, to be linked or renamed to the path."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name[:64]}.{secrets.token_hex(6)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def check_links(folder: str, names: tuple[str, ...] = ("",)) -> None:
    """Raise `Unhealthy` if anything in a directory, with a name that begins so, is a symbolic link."""
    inner = []
    # Compaction may delete what is in it meanwhile.
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(names):
                continue
            if entry.is_symlink():
                raise Unhealthy(
                    f"{entry.path} is a symbolic link, and the files of an archive lie in the archive",
                    hint="put the file or directory itself there, or give the path of the whole archive"
                    " elsewhere",
                )
            if entry.is_dir():
                inner.append(entry.path)
    for each in inner:
        check_links(each)
