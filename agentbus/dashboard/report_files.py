"""The pages that `agentbus report --html` wrote into a directory; no other file is read."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from agentbus.core.errors import AgentBusError, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIX = ".html"
# Maximum number of files in the list, and maximum bytes of a file that is shown; `report` writes at
# most 300 kB.
_MOST, LARGEST = 1_000, 2_000_000


@dataclass(frozen=True, slots=True)
class ReportFile:
    """A page in the directory of reports: its name, its size in bytes, and when it was written."""

    name: str
    size: int
    written: float


def listed(directory: str) -> list[ReportFile]:
    """Return the pages in a directory, newest first, at most 1,000; links are left out.

    Raises `AgentBusError` if the directory cannot be read.
    """
    try:
        with os.scandir(directory) as entries:
            found = sorted(_pages(entries), key=lambda one: (-one.written, one.name))
    except OSError as error:
        raise _unreadable(directory, error) from error
    return found[:_MOST]


def read(directory: str, name: str) -> bytes:
    """Return a page of the directory by its name.

    Raises `NotFound` unless it is a regular file that the directory lists.
    """
    missing = NotFound(
        f"there is no report {name!a:.80}", hint="the page of the archive lists them"
    )
    # Accept a name, not a path: no file above or below the directory.
    if not name.endswith(SUFFIX) or "/" in name or "\0" in name:
        raise missing
    try:
        above = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(directory, error) from error
    try:
        # The flags prevent waiting for a pipe, and following a link, which might lead out of the
        # directory.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=above)
    except OSError:
        raise missing from None
    finally:
        os.close(above)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise missing
    with open(file, "rb") as opened:
        found = opened.read(LARGEST + 1)
    if len(found) > LARGEST:
        raise AgentBusError(
            f"the report {name!a:.80} has more than {LARGEST:,} bytes",
            hint="a report has at most 300 kB; open the file itself",
        )
    return found


def policy() -> str:
    """Return the content security policy of a report: a sandbox that allows only its own script."""
    script = resources.files("agentbus").joinpath("pipeline", "reports", "page.js").read_bytes()
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    return (
        "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline';"
        f" script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _pages(entries: Iterator[os.DirEntry[str]]) -> Iterator[ReportFile]:
    for entry in entries:
        try:
            if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                about = entry.stat(follow_symlinks=False)
                yield ReportFile(entry.name, about.st_size, about.st_mtime)
        except FileNotFoundError:
            # The file was deleted after the directory was read.
            continue


def _unreadable(directory: str, error: OSError) -> AgentBusError:
    return AgentBusError(
        f"the directory of reports {directory!a:.200} cannot be read ({error.strerror or error})",
        hint="make it, or name another one",
    )
