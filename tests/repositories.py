"""Repositories with the least that git asks of one."""

from __future__ import annotations

import os
import pathlib

# A user that is neither this one nor root.
SOMEBODY = 4242


def make_repository(root: pathlib.Path) -> pathlib.Path:
    """Make a directory a repository without a commit, and return its `.git`."""
    git = root / ".git"
    for part in ("objects", "refs"):
        (git / part).mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    return git


def give_away(path: pathlib.Path) -> None:
    """Give a file or a directory to somebody else; needs root."""
    os.lchown(path, SOMEBODY, -1)
