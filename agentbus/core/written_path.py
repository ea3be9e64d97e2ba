"""Keeps what is written into a repository there: links come with a clone, and may lead anywhere."""

from __future__ import annotations

import os

from agentbus.core.errors import Refused
from agentbus.core.settings import repository


def inside(path: str, root: str) -> str:
    """Return the path without links of a file in a repository.

    Raises `Refused` if links lead out of the repository, or to a file of git's own.
    """
    base, real = os.path.realpath(root), os.path.realpath(path)
    if real == os.path.join(base, os.path.relpath(path, root)):
        return real
    parts = os.path.relpath(real, base).split(os.sep)
    if ".." in parts or ".git" in parts:
        raise Refused(
            f"{path} is {real}, which is not a file of the repository {root}",
            hint="replace the link by a file or a directory, or name a path without links",
        )
    return real


def check(path: str) -> None:
    """Raise `Refused`, as `inside` does, for a file that is named in the repository around."""
    root, _ = repository()
    named = os.path.abspath(path)
    if root is not None and named.startswith(os.path.join(root, "")):
        inside(named, root)
