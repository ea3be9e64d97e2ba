"""Finds the repository of a linked work tree."""

from __future__ import annotations

import os


def repository_name(git: str) -> str:
    """Return the name of the repository that a `.git` file points to, the same in all worktrees."""
    base, last = os.path.split(_common_directory(git))
    return os.path.basename(base) if last == ".git" else last.removesuffix(".git")


def _common_directory(git: str) -> str:
    """Return the directory that all worktrees of a repository share."""
    if os.path.isfile(git):
        line = _first_line(git)
        if line.startswith("gitdir:"):
            git = os.path.normpath(os.path.join(os.path.dirname(git), line[7:].strip()))
    shared = os.path.join(git, "commondir")
    if os.path.isfile(shared):
        git = os.path.normpath(os.path.join(git, _first_line(shared)))
    return git


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.readline(4096).strip()
    except OSError:
        return ""
