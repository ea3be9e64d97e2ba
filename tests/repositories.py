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


def make_bare(place: pathlib.Path, config: str = "") -> pathlib.Path:
    """Make a directory a bare repository, by files that may be committed to another one; return it."""
    for part in ("objects", "refs"):
        (place / part).mkdir(parents=True)
    (place / "HEAD").write_text("ref: refs/heads/main\n")
    (place / "config").write_text(config)
    return place


def make_work_tree(root: pathlib.Path) -> None:
    """Make a directory a further work tree of a new clone, without a branch, as `git worktree` does."""
    git = make_repository(root.with_name(f"{root.name}-main"))
    (git / "config").write_text(
        '[core]\n\tbare = false\n[remote "origin"]\n\turl = git@example.org:shop.git\n'
    )
    own = git / "worktrees" / root.name
    own.mkdir(parents=True)
    (own / "HEAD").write_text("0123456789abcdef0123456789abcdef01234567\n")
    (own / "commondir").write_text("../..\n")
    root.mkdir()
    (root / ".git").write_text(f"gitdir: {own}\n")


def give_away(path: pathlib.Path) -> None:
    """Give a file or a directory to somebody else; needs root."""
    os.lchown(path, SOMEBODY, -1)
