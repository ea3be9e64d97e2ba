"""Makes of paths, as users and tools spell them, the patterns of leases: relative to the repository's root.

In a pattern `*` and `?` stand for characters within a segment, and `**` for any number of segments.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from unicodedata import normalize

from agentbus.core.errors import UsageError
from agentbus.core.settings import repository

MOST_PATTERNS = 64
_MOST_SEGMENTS = 16
_MOST_LETTERS = 255
_WILD = frozenset("*?")
# Control characters, and wildcards in the names of files, become a character that `*` and `?` match.
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], "\ufffd")
_SIGNS = dict.fromkeys(map(ord, _WILD), "\ufffd")


def patterns(
    paths: Iterable[str], *, by_worktree: bool = False, literal: bool = False
) -> list[str]:
    """Return the pattern of each path, each once; a path is relative to the current directory, or absolute.

    The root is that of the git repository around the current directory, or without one this directory.
    `by_worktree` begins each pattern with the name of the work tree; in a `literal` path, `*` and `?` are
    characters of a name, and `**` stands for what is below 16 segments. Raises `UsageError` for a path
    outside the root, and beyond 64 patterns, 16 segments, or 255 characters in one.
    """
    try:
        here = os.getcwd()
    except OSError as error:
        raise _mistake(
            f"the current directory is gone ({error.strerror})", hint="change to another one"
        ) from None
    root = repository()[0] or here
    first = worktree(root) if by_worktree else ""
    found = list(
        dict.fromkeys(
            written(within(path, here, root, literal=literal), first, literal=literal)
            for path in paths
        )
    )
    if len(found) > MOST_PATTERNS:
        raise _mistake(
            f"there are {len(found)} patterns", hint=f"give at most {MOST_PATTERNS} at a time"
        )
    return found


def of_files(paths: Iterable[str], *, by_worktree: bool = False) -> dict[str, str]:
    """Return the patterns of any number of files, and their paths, which are relative to the root."""
    first = worktree(repository()[0] or os.getcwd()) if by_worktree else ""
    return {written(path, first, literal=True): path for path in paths}


def within(path: str, here: str, root: str, *, literal: bool = False) -> str:
    """Return a path relative to the root; a directory's ends in `/`. Raises `UsageError` outside it."""
    if not isinstance(path, str) or not path:
        raise _mistake(f"{path!a} is not a path", hint="give a path or a pattern, as in 'src/**'")
    if "\0" in path:
        raise _mistake(f"the path {path!a} holds a NUL character", hint="leave it out")
    _bytes(path)
    parts = os.path.join(here, path).split("/")
    # Links are resolved up to the first wildcard, so that a link is not another path.
    wilds = () if literal else [at for at, part in enumerate(parts) if not _WILD.isdisjoint(part)]
    wild = next(iter(wilds), None)
    known = "/".join(parts[:wild]) or "/"
    if wild is not None:
        rest = parts[wild:]
    else:
        rest = [""] if parts[-1] in ("", ".", "..") or os.path.isdir(known) else []
    if ".." in rest:
        raise _mistake(
            f"the path {path!a} has '..' behind a wildcard", hint="write the path without '..'"
        )
    base = _below(os.path.realpath(known), root)
    # A link within the repository may lead out of it.
    if base is None and not rest:
        base = _below(os.path.join(os.path.realpath(os.path.dirname(known)), parts[-1]), root)
    if base is None:
        base = _below(os.path.normpath(known), root)
    if base is None:
        raise _mistake(
            f"the path {path!a} is outside {root!a}",
            hint="lease paths within the repository, or within the current directory outside of one",
        )
    return "/".join([base, *rest] if base else rest)


def _bytes(path: str) -> bytes:
    """Return a path in bytes. Raises `UsageError` for a lone surrogate, which only JSON can hold."""
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _mistake(
            f"the path {path!a} is not UTF-8", hint="give it as the file system has it"
        ) from None


def written(path: str, first: str = "", *, literal: bool = False) -> str:
    """Return the pattern of a path relative to the root, behind a first segment if one is given."""
    text = path.translate(_SIGNS) if literal else path
    if not text.isascii():
        # A name may be composed in two ways, and need not be UTF-8.
        text = normalize("NFC", _bytes(text).decode("utf-8", "replace"))
    if not text.isprintable():
        text = text.translate(_CONTROLS)
    segments: list[str] = []
    for segment in (f"{text}**" if text[-1:] in ("", "/") else text).split("/"):
        if "**" in segment:
            while "**" in segment:
                segment = segment.replace("**", "*")
            segment = "**" if segment == "*" else segment
        if segment in ("", ".") or (segment == "**" and segments[-1:] == ["**"]):
            continue
        if len(segment) > _MOST_LETTERS:
            raise _mistake(
                f"a segment of the path {path[:60]!a} has {len(segment)} characters",
                hint=f"use at most {_MOST_LETTERS}",
            )
        segments.append(segment)
    if literal and len(segments) > _MOST_SEGMENTS:
        # A file that exists cannot be refused: a lease that covers it must be found.
        segments[_MOST_SEGMENTS:] = ["**"]
    elif len(segments) > _MOST_SEGMENTS:
        raise _mistake(
            f"the path {path[:60]!a} has {len(segments)} segments",
            hint=f"use at most {_MOST_SEGMENTS}: '**' stands for any number",
        )
    if first:
        segments.insert(0, first)
    return "/".join(segments or ["**"])


def worktree(root: str) -> str:
    """Return the name of a work tree: git's own for a linked one, else that of its directory, and `~`."""
    try:
        with open(os.path.join(root, ".git"), "rb") as file:
            said = os.fsdecode(file.read(4096)).strip()
    except OSError:
        said = ""
    if "/worktrees/" in said:
        name, mark = said.rpartition("/worktrees/")[2], ""
    else:
        # Git gives no linked work tree a name with this sign.
        name, mark = os.path.basename(root), "~"
    return written(name.replace("/", "-") or "root", literal=True) + mark


def _below(path: str, root: str) -> str | None:
    """Return a path relative to the root, None outside it."""
    if path == root:
        return ""
    inside = root if root.endswith("/") else f"{root}/"
    return path[len(inside) :] if path.startswith(inside) else None


def _mistake(message: str, *, hint: str) -> UsageError:
    return UsageError(message, hint=hint)
