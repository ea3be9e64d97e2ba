"""Changes files of others: keeps a copy, replaces them in one step, and gives back what was there.

Paths are those without links: the record knows files by them, and so do people who read the steps.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable
from typing import Any

from agentbus.agents.install.steps import InstallStep, done, shown
from agentbus.core.errors import AgentBusError, Refused
from agentbus.core.running import runs

# Between a file's name and the number of the process that is writing it.
_BESIDE = ".agentbus-"
Change = Callable[[bytes], bytes]
Merged = dict[str, dict[str, Any]]


def read(path: str) -> bytes | None:
    """Return what is in a file, None if there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AgentBusError(f"{path} cannot be read ({error.strerror})") from None


def merge(
    path: str, change: Change, drop: Change, merged: Merged, save: Callable[[], None] = lambda: None
) -> InstallStep:
    """Return the step that changes a file that others write, too; `change` returns what is to be in it.

    The first time, a copy is kept beside the file. `merged` records it, and what is written, and `save`
    keeps that record before the file is replaced: a process may be killed in between. `drop` returns what
    is in the file without our part.
    """
    before = read(path)
    after = change(before or b"")
    if before == after:
        return _nothing(path)

    def perform() -> None:
        if read(path) != before:
            raise AgentBusError(f"{path} was changed meanwhile", hint="run the command again")
        known = merged.get(path)
        folders = _folders(os.path.dirname(path))
        if known is None or not _is_known(known, before or b""):
            # Keep the user's edits; an older backup is also theirs.
            backup = None if before is None else _copy(path)
            if before is not None and drop(before) != before:
                # The file has our entries, so it is not the user's original.
                backup = None
            known = {"backup": backup, "existed": before is not None, "folders": folders}
        was = None if before is None else digest(before)
        merged[path] = known | {"digest": digest(after), "was": was}
        save()
        _replace(path, after)
        if read(path) != after:
            raise AgentBusError(f"{path} does not hold what was written to it")

    return InstallStep(f"edit {shown(path)}", perform, _difference(path, before, after))


def restore(path: str, change: Change, merged: Merged) -> InstallStep:
    """Return the step that gives back what was in a file, or takes our part alone out of it by `change`."""
    before, known = read(path), merged.get(path)
    if before is None:
        merged.pop(path, None)
        return _nothing(path)
    untouched = known is not None and _is_known(known, before)
    backup = known["backup"] if known is not None and untouched else None
    after: bytes | None = change(before)
    if backup is not None and (kept := read(backup)) is not None:
        after = kept
    elif known is not None and not known["existed"] and (untouched or not (after or b"").strip()):
        after = None
    if before == after and backup is None:
        merged.pop(path, None)
        return _nothing(path)

    def perform() -> None:
        _sweep(path)
        if after is None:
            with _writing(path):
                os.unlink(path)
            _remove_folders(known["folders"] if known is not None else [], path, merged)
        elif after != before:
            _replace(path, after)
        if backup is not None:
            put_back(backup, None)
        merged.pop(path, None)

    # A process that gave it back may have been killed before it removed the copy.
    verb, what = ("remove", path) if after is None else ("edit", path)
    if before == after and backup is not None:
        verb, what = "remove", backup
    return InstallStep(f"{verb} {shown(what)}", perform, _difference(path, before, after))


def _is_known(known: dict[str, Any], data: bytes) -> bool:
    """Tell whether a file is as it was written last, or was before that, and nobody else changed it."""
    return digest(data) in (known["digest"], known.get("was"))


def _remove_folders(folders: list[str], emptied: str, merged: Merged) -> None:
    """Remove directories that were made for a file; one that another file is in, with that file."""
    for folder in folders:
        try:
            os.rmdir(folder)
        except OSError:
            for path, known in merged.items():
                if path != emptied and path.startswith(folder + os.sep):
                    known["folders"].append(folder)
                    break


def own(path: str, text: str, mark: str) -> InstallStep:
    """Return the step that writes a file of ours, with `mark` in it; `Refused` for another's."""
    before, after = read(path), text.encode("utf-8", "surrogateescape")
    if before == after:
        return done(f"write {shown(path)}")
    _check_own(path, before, mark)

    def perform() -> None:
        _folders(os.path.dirname(path))
        _replace(path, after, mode=0o755 if text.startswith("#!") else 0o644)

    return InstallStep(f"write {shown(path)}", perform, _difference(path, before, after))


def remove_own(path: str, mark: str, *folders: str) -> InstallStep:
    """Return the step that removes a file of ours, and those of these directories that are then empty."""
    before = read(path)
    if before is None or mark.encode() not in before:
        return done(f"remove {shown(path)}")

    def perform() -> None:
        with _writing(path):
            _sweep(path)
            os.unlink(path)
        for folder in folders:
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    return InstallStep(f"remove {shown(path)}", perform, _difference(path, before, None))


def _check_own(path: str, before: bytes | None, mark: str) -> None:
    if before is not None and mark.encode() not in before:
        raise Refused(
            f"{path} exists, and is not of AgentBus",
            hint="move it away, then run the command again",
        )


def put_back(path: str, data: bytes | None) -> None:
    """Write a file as it was; None removes it."""
    if data is not None:
        _replace(path, data)
        return
    with _writing(path), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _difference(path: str, before: bytes | None, after: bytes | None) -> str:
    old = (before or b"").decode("utf-8", "backslashreplace").splitlines(keepends=True)
    new = (after or b"").decode("utf-8", "backslashreplace").splitlines(keepends=True)
    lines = difflib.unified_diff(
        old,
        new,
        "/dev/null" if before is None else path,
        "/dev/null" if after is None else path,
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _copy(path: str) -> str:
    """Copy a file beside itself, with its mode, and return the copy's path."""
    stem = f"{path}.agentbus-backup-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    backup, number = stem, 1
    while os.path.lexists(backup):
        number += 1
        backup = f"{stem}-{number}"
    with _writing(backup):
        shutil.copy2(path, backup)
    return backup


def _replace(path: str, data: bytes, mode: int = 0o644) -> None:
    """Write a file in one step; one that exists keeps its mode."""
    beside = f"{path}{_BESIDE}{os.getpid()}"
    with _writing(path):
        _sweep(path)
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(os.stat(path).st_mode)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), mode)
            os.replace(beside, path)
        except BaseException:
            os.unlink(beside)
            raise


def _left(path: str) -> list[str]:
    """Return the files that processes which were killed while they wrote a file have left beside it."""
    folder, name = os.path.split(path)
    left = []
    for each in os.listdir(folder) if os.path.isdir(folder) else ():
        number = each.removeprefix(name + _BESIDE)
        if number == each or not (number.isascii() and number.isdigit() and len(number) < 10):
            continue
        # One with this process's number is of an earlier process.
        if int(number) == os.getpid() or not runs(int(number)):
            left.append(os.path.join(folder, each))
    return left


def _sweep(path: str) -> None:
    for left in _left(path):
        with contextlib.suppress(OSError):
            os.unlink(left)


def _nothing(path: str) -> InstallStep:
    """Return the step for a file that stays as it is: at most, what was left beside it goes."""
    if left := _left(path):
        return InstallStep(f"remove {shown(left[0])}", lambda: _sweep(path))
    return done(f"edit {shown(path)}")


def _folders(path: str) -> list[str]:
    """Make a directory, and return those that did not exist, the innermost first."""
    missing = []
    above = path
    while above and not os.path.isdir(above):
        missing.append(above)
        above = os.path.dirname(above)
    with _writing(path):
        for folder in reversed(missing):
            # No other user may replace what a client reads, whatever the umask is.
            os.makedirs(folder, 0o755, exist_ok=True)
    return missing


@contextlib.contextmanager
def _writing(path: str) -> Any:
    try:
        yield
    except OSError as error:
        raise AgentBusError(f"{path} cannot be written ({error.strerror})") from None


def digest(data: bytes) -> str:
    """Return what tells whether the text of a file is still the same."""
    return hashlib.sha256(data).hexdigest()
