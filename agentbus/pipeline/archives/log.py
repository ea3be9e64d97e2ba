"""The commit log of an archive: reads its state, adds a version to it, and tidies up after it.

A version is a file that is created exclusively, so of all who try to commit one, one does.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import secrets
import time
import uuid
from collections.abc import Iterable, Mapping

from agentbus.core.clock import rfc3339
from agentbus.core.errors import (
    AgentBusError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unhealthy,
    UsageError,
)
from agentbus.pipeline.archives.places import Place
from agentbus.pipeline.archives.versions import (
    CREATE,
    DATA,
    EMPTY,
    REMEMBERED_MS,
    Commit,
    CommitConflict,
    File,
    Position,
    State,
    as_json,
    fold,
    from_json,
)
from agentbus.pipeline.rows import schema

STATE_EVERY = 50
# Seconds for which files that a state replaces are kept, for slow readers and for reading old versions.
_KEPT = 86_400.0
# A commit on a state that was read longer ago is checked again afterwards. Half of the above, so that
# the files that it builds on cannot have been deleted meanwhile.
_TRUSTED = 43_200.0
GRACE = 3600.0
_SWEEP_EVERY = 600.0
_COMMIT = re.compile(r"_log/(\d{20})\.json")
_STATE = re.compile(r"_log/(\d{20})\.state\.json")


def new_batch() -> str:
    """Return a unique name for an attempt at a commit."""
    return secrets.token_hex(4)


class _MissingError(Exception):
    """Raised when a file that the listing showed, or that must lie between two, is not there."""


class Log:
    """The commit log of the archive at a place; one object serves one thread."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._known: State | None = None
        self._checked = False
        self._swept: float | None = None

    # -- reading --

    def open(self) -> State:
        """Return the newest state; `NotFound` without an archive, `UsageError` if other files are there."""
        if not self._checked:
            self.place.check()
            self._checked = True
        state = self._newest()
        if state is not None:
            return state
        if first := next(iter(self.place.listing("")), None):
            # It may be the first commit of a writer that has just created the archive.
            state = self._newest()
            if state is not None:
                return state
            raise UsageError(
                f"{self.place} is not an archive of AgentBus: it holds {first.name[:80]!a}"
                " and no commit log",
                hint="give the path of an archive, or of a new directory",
            )
        raise NotFound(f"there is no archive at {self.place}", hint="archive to that path first")

    def create(self, project: str) -> State:
        """Create an archive of a project unless it exists; `Refused` if it is of another project."""
        try:
            state = self.open()
        except NotFound:
            state = dataclasses.replace(EMPTY, archive=uuid.uuid4().hex, project=project)
            state = dataclasses.replace(state, read_at=_now())
            try:
                return self.commit(state, CREATE, new_batch())
            except CommitConflict:
                state = self.open()
        self.check_project(state, project)
        return state

    def check_project(self, state: State, project: str) -> None:
        """Raise `Refused` if this is the archive of another project."""
        if state.project != project:
            raise Refused(
                f"{self.place} is the archive of the project {state.project}, not of {project}",
                hint="give each project its own path",
            )

    def state(self, version: int | None = None) -> State:
        """Return the newest state, or that at a version; writers may be active."""
        state = self.open()
        if version is None or version == state.version:
            return state
        if not 1 <= version < state.version:
            raise NotFound(
                f"{self.place} has no version {version}",
                hint=f"its versions are 1 to {state.version}",
            )
        return self._listed(version) or state

    def read(self, version: int) -> Commit | None:
        """Return one commit, None if it is not there (yet, or any more)."""
        name = _commit_name(version)
        data = self.place.read(name)
        if data is None:
            return None
        commit = from_json(Commit, data, self.place.uri(name))
        if commit.version != version:
            raise Unhealthy(f"{self.place.uri(name)} says that it is version {commit.version}")
        return commit

    def _newest(self) -> State | None:
        known = self._known
        after: list[Commit] = []
        if known is not None and _now() - known.read_at <= _TRUSTED:
            after = self._after(known.version)
        if known is None or _now() - known.read_at > _TRUSTED or len(after) == STATE_EVERY:
            known = self._listed()
            if known is None:
                return None
            after = self._after(known.version)
        known = fold(known, after) if after else known
        self._known = dataclasses.replace(known, read_at=_now())
        return self._known

    def _after(self, version: int, most: int = STATE_EVERY) -> list[Commit]:
        """Return the commits that came since, by default at most as many as lie between two states."""
        after: list[Commit] = []
        while len(after) < most:
            commit = self.read(version + len(after) + 1)
            if commit is None:
                break
            after.append(commit)
        return after

    def _listed(self, version: int | None = None) -> State | None:
        """Return the state at a version, or at the newest one that the listing shows."""
        for last_try in (False, False, True):
            states, numbers = self._numbers()
            if not states and not numbers:
                return None
            end = max(states[-1:] + numbers[-1:]) if version is None else version
            try:
                start = max((v for v in states if v <= end), default=0)
                self._check_whole(start, end, set(numbers))
                return self._from(start, end)
            except _MissingError as error:
                # It may have been deleted since the listing: then there is a newer state.
                if last_try:
                    raise Unhealthy(
                        f"{self.place.uri(str(error))} is missing from the archive's log",
                        hint="restore it from a copy; a version is kept for a day at least",
                    ) from None
        return None

    def _check_whole(self, start: int, end: int, listed: set[int]) -> None:
        """Raise `_MissingError` for the first commit that is not there, before all are read.

        The name of a file that somebody planted may have any number.
        """
        for number in range(start + 1, end + 1):
            # A listing beside a writer may lack a commit, and have the next one.
            if number not in listed and self.place.read(_commit_name(number)) is None:
                raise _MissingError(_commit_name(number))

    def _from(self, start: int, end: int) -> State:
        """Return the state at a version from a written one, or from the beginning (0)."""
        state = EMPTY
        if start:
            name = _state_name(start)
            data = self.place.read(name)
            if data is None:
                raise _MissingError(name)
            state = from_json(State, data, self.place.uri(name))
        names = [_commit_name(number) for number in range(start + 1, end + 1)]
        commits = []
        for name, data in zip(names, self.place.read_all(names), strict=True):
            if data is None:
                raise _MissingError(name)
            commits.append(from_json(Commit, data, self.place.uri(name)))
        return fold(state, commits)

    def _numbers(self) -> tuple[list[int], list[int]]:
        names = [entry.name for entry in self.place.listing("_log")]
        states = sorted(int(m[1]) for name in names if (m := _STATE.fullmatch(name)))
        return states, sorted(int(m[1]) for name in names if (m := _COMMIT.fullmatch(name)))

    # -- writing --

    def commit(
        self,
        state: State,
        operation: str,
        batch: str,
        files: Iterable[File] = (),
        *,
        removed: Iterable[str] = (),
        positions: Mapping[str, Position] | None = None,
    ) -> State:
        """Add the version after `state`, whole or not at all, and return the state it makes.

        The data files must be there, as large as `files` says: they are made to survive a crash
        first. `CommitConflict` if another writer has that version: nothing changed then.
        """
        commit = Commit(
            version=state.version + 1,
            batch=batch,
            operation=operation,
            at=rfc3339(time.time(), milliseconds=True),
            by=f"{platform.node()}:{os.getpid()}",
            archive=state.archive,
            project=state.project,
            schema=schema.VERSION,
            files=tuple(files),
            removed=tuple(removed),
            positions=positions or {},
        )
        made = fold(state, [commit])
        name = _commit_name(commit.version)
        for file in commit.files:
            size = self.place.sync(self.place.data(file.path))
            if size is None and self.place.read(name) is not None:
                # The writer that has the version deleted the files of the others.
                raise self._taken(commit.version)
            if size != file.bytes:
                raise AgentBusError(
                    f"{self.place.uri(self.place.data(file.path))} is"
                    + (" not there" if size is None else f" {size} bytes long, not {file.bytes}"),
                    hint="nothing was committed; try again",
                )
        data = as_json(commit)
        # A put whose answer was lost may have been repeated below us, and found its own file.
        won = self.place.create(name, data) or self.place.read(name) == data
        if won and _now() - state.read_at > _TRUSTED and not self._stands(commit):
            self.place.delete(name)
            won = False
        if not won:
            raise self._taken(commit.version)
        self._known = made = dataclasses.replace(made, read_at=_now())
        if made.version % STATE_EVERY == 0:
            self.place.create(_state_name(made.version), as_json(made))
            self._tidy_log()
        return made

    def _taken(self, version: int) -> CommitConflict:
        return CommitConflict(f"version {version} of {self.place} is taken")

    def _stands(self, commit: Commit) -> bool:
        """Tell whether a commit that was made after a long pause is part of the log.

        Versions that this writer did not see may have been deleted meanwhile, and with them the one
        whose number it took.
        """
        states, _ = self._numbers()
        later = [version for version in states if version >= commit.version]
        if not later:
            return True
        name = _state_name(later[0])
        data = self.place.read(name)
        if data is not None:
            state = from_json(State, data, self.place.uri(name))
            if commit.version in state.recent:
                return state.recent[commit.version] == commit.batch
        raise OutcomeUnknown(
            f"whether version {commit.version} of {self.place} was committed is unknown after"
            " such a pause",
            hint="start again: what is in the archive is exact",
        )

    def _tidy_log(self) -> None:
        """Delete what the last two states replace, once it is a day old."""
        entries = list(self.place.listing("_log"))
        states = sorted(int(m[1]) for e in entries if (m := _STATE.fullmatch(e.name)))
        if len(states) < 2:
            return
        before = time.time() - _KEPT
        # Oldest first, so that a process that is killed here leaves no hole.
        for entry in sorted(entries, key=lambda entry: entry.name):
            found = _COMMIT.fullmatch(entry.name) or _STATE.fullmatch(entry.name)
            if found and int(found[1]) < states[-2] and entry.modified < before:
                self.place.delete(entry.name)

    # -- tidying up --

    def settle(self, state: State, *, grace: float = GRACE, sweep: bool | None = None) -> None:
        """Delete data files that are no longer needed, at most every ten minutes unless `sweep` is true.

        These are the files of failed attempts and, after `grace` seconds (at most a day), files that
        compaction removed. Idempotent, and safe in several processes.
        """
        if not 0 <= grace <= REMEMBERED_MS / 1000:
            raise UsageError(f"a grace of {grace:g} s is not between 0 and a day")
        if sweep is None:
            sweep = self._swept is None or _now() - self._swept >= _SWEEP_EVERY
        if sweep:
            self._sweep(state, grace)
            self._swept = _now()

    def _sweep(self, state: State, grace: float) -> None:
        self.place.tidy(time.time() - GRACE)
        before = (time.time() - grace) * 1000
        folders = [self.place.data(f"kind={kind}") for kind in schema.KINDS]
        for entry in (entry for folder in folders for entry in self.place.listing(folder)):
            path = entry.name.removeprefix("_data/")
            found = DATA.fullmatch(path)
            # A file of a version that is not committed yet may belong to the next commit.
            if not found or path in state.files or int(found["version"]) > state.version:
                continue
            # An attempt at a version that is taken can never win.
            if state.removed.get(path, 0) < before:
                self.place.delete(entry.name)


def _commit_name(version: int) -> str:
    return f"_log/{version:020d}.json"


def _state_name(version: int) -> str:
    return f"_log/{version:020d}.state.json"


def _now() -> float:
    """Return seconds of a clock that also counts while the machine sleeps, if there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
