"""The commit log of an archive: reads its state, adds versions, and deletes old files.

A version is a file that is created exclusively, so only one of several concurrent writers commits
it.
"""

from __future__ import annotations

import dataclasses
import os
import platform
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
from agentbus.pipeline.archives.delta_log import DeltaLog
from agentbus.pipeline.archives.log_files import (
    COMMIT,
    LAST_STATE,
    LOG,
    STATE,
    commit_bytes,
    commit_name,
    interval,
    landmarks,
    missing,
    read_commit,
    read_state,
    state_bytes,
    state_name,
)
from agentbus.pipeline.archives.packs import PACK, Packs, pack
from agentbus.pipeline.archives.places import Place
from agentbus.pipeline.archives.retention import RETENTION, LogFiles, disposable, sweep_data
from agentbus.pipeline.archives.versions import (
    CREATE,
    EMPTY,
    FORMAT,
    Commit,
    CommitConflict,
    File,
    Position,
    State,
    fold,
)
from agentbus.pipeline.rows import schema, table

# Minimum seconds for which the log's files are kept. A commit on a state that was read more than
# half of this time ago is checked again afterwards: the files that it builds on may have been
# deleted.
_KEPT = 86_400.0
_TRUSTED = _KEPT / 2
_SWEEP_EVERY = 600.0
# Maximum number of other writers' commits to follow one by one before looking for the newest state.
_FOLLOWED = 100


def new_batch() -> str:
    """Return a unique name for an attempt at a commit."""
    return secrets.token_hex(4)


class _MissingError(Exception):
    """A file is missing that the listing showed, or that must exist between two others."""


class Log:
    """The commit log of the archive at a place; one object serves one thread."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._delta = DeltaLog(place)
        self._packs = Packs(place)
        self._known: State | None = None
        self._checked = False
        self._swept: float | None = None

    # -- reading --

    def open(self) -> State:
        """Return the newest state. Raises `NotFound`, or `UsageError` if there are other files."""
        if not self._checked:
            self.place.check()
        state = self._newest()
        if state is not None:
            if not self._checked and self._delta.ahead(state.version):
                version, state = state.version, self._newest()
                if state is None or state.version == version:
                    raise missing(self.place.uri(commit_name(version + 1)), newest=True)
            self._checked = True
            return state
        if first := next(iter(self.place.listing("")), None):
            # The file may belong to the first commit of a writer that has just created the archive.
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
        """Create an archive of a project unless it exists; `Refused` if it is another project's."""
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
        """Return the newest state, or the state at a version, even while writers are active."""
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
        """Return one commit, None if it does not exist yet or no longer exists."""
        name = commit_name(version)
        data = self.place.read(name)
        if data is None:
            return None
        commit = self._commit(version, data)
        if commit.version != version:
            raise Unhealthy(f"{self.place.uri(name)} says that it is version {commit.version}")
        return commit

    def _newest(self) -> State | None:
        known = self._known
        after: list[Commit] = []
        if known is not None and _now() - known.read_at <= _TRUSTED:
            after = self._after(known.version)
        if known is None or _now() - known.read_at > _TRUSTED or len(after) == _FOLLOWED:
            known = self._listed()
            if known is None:
                return None
            after = self._after(known.version)
        known = fold(known, after) if after else known
        self._known = dataclasses.replace(known, read_at=_now())
        return self._known

    def _after(self, version: int) -> list[Commit]:
        """Return the commits after a version, at most `_FOLLOWED` of them."""
        after: list[Commit] = []
        while len(after) < _FOLLOWED:
            commit = self.read(version + len(after) + 1)
            if commit is None:
                break
            after.append(commit)
        return after

    def _listed(self, version: int | None = None) -> State | None:
        """Return the state at a version, or at the newest version that the listing shows."""
        for last_try in (False, False, True):
            # If another file names the newest state, the whole log need not be listed.
            hinted = self._hinted() if version is None and not last_try else None
            files = self._files(after=hinted or "")
            states = {v: entry.name for v, entry in files.states.items()}
            if hinted is not None and (found := STATE.fullmatch(hinted)):
                states[int(found[1])] = hinted
            if not states and not files.commits:
                return None
            end = max([*states, *files.commits]) if version is None else version
            try:
                start = max((v for v in states if v <= end), default=0)
                self._check_whole(start, end, set(files.commits))
                return self._from(states.get(start), start, end)
            except _MissingError as error:
                # The file may have been deleted since the listing, which means that there is a
                # newer state.
                if last_try:
                    raise missing(self.place.uri(str(error))) from None
        return None

    def _hinted(self) -> str | None:
        """Return the name of a recent state, if the log names one."""
        name = (self.place.read(LAST_STATE) or b"")[:60].decode("ascii", "replace").strip()
        return name if STATE.fullmatch(name) else None

    def _check_whole(self, start: int, end: int, listed: set[int]) -> None:
        """Raise `_MissingError` for the first missing commit, before all commits are read.

        A planted file may have any number in its name.
        """
        for number in range(start + 1, end + 1):
            # A listing during a commit may lack that commit, but contain the next one.
            if number not in listed and self.place.read(commit_name(number)) is None:
                raise _MissingError(commit_name(number))

    def _from(self, written: str | None, start: int, end: int) -> State:
        """Return the state at a version, starting from a written state or from the beginning."""
        state = EMPTY
        if written is not None:
            data = self.place.read(written)
            if data is None:
                raise _MissingError(written)
            state = read_state(data, self.place.uri(written))
        numbers = range(start + 1, end + 1)
        names = [commit_name(number) for number in numbers]
        commits = []
        for number, data in zip(numbers, self.place.read_all(names), strict=True):
            if data is None:
                raise _MissingError(commit_name(number))
            commits.append(self._commit(number, data))
        return fold(state, commits)

    def _commit(self, version: int, data: bytes) -> Commit:
        """Return the commit in a file, or in a pack if the file is empty."""
        return read_commit(data or self._packs.read(version), self.place.uri(commit_name(version)))

    def _files(self, after: str = "") -> LogFiles:
        found = LogFiles()
        for entry in self.place.listing(LOG, after):
            if match := COMMIT.fullmatch(entry.name):
                found.commits[int(match[1])] = entry
            elif match := STATE.fullmatch(entry.name):
                found.states[int(match[1])] = entry
            elif match := PACK.fullmatch(entry.name):
                found.packs[int(match[1])] = entry
        return found

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
        """Add the version after `state` atomically, and return the new state.

        The data files must exist, with the sizes in `files`; they are synced to disk first. Raises
        `CommitConflict`, without a change, if another writer has committed that version.
        """
        columns = {**state.columns, **table.columns()}
        commit = Commit(
            format=FORMAT,
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
            columns=columns if columns != state.columns else {},
        )
        made = fold(state, [commit])
        name = commit_name(commit.version)
        sizes = self.place.sync_all([self.place.data(file.path) for file in commit.files])
        for file, size in zip(commit.files, sizes, strict=True):
            if size is None and self.place.read(name) is not None:
                # The writer that won the version has deleted the other writers' files.
                raise self._taken(commit.version)
            if size != file.bytes:
                raise AgentBusError(
                    f"{self.place.uri(self.place.data(file.path))} is"
                    + (" not there" if size is None else f" {size} bytes long, not {file.bytes}"),
                    hint="nothing was committed; try again",
                )
        data = commit_bytes(commit)
        # The client may have repeated a put whose reply was lost, and found its own file.
        won = self.place.create(name, data) or self.place.read(name) == data
        if won and _now() - state.read_at > _TRUSTED and not self._stands(commit):
            self.place.delete(name)
            won = False
        if not won:
            raise self._taken(commit.version)
        self._known = made = dataclasses.replace(made, read_at=_now())
        self._delta.publish(commit, made, self.read)
        if made.version % interval(made) == 0:
            self._write(made)
        return made

    def _write(self, state: State) -> None:
        """Write a state, from which readers begin, and delete files that are now superfluous."""
        name = state_name(state)
        self.place.create(name, state_bytes(state))
        self.place.replace(LAST_STATE, name.encode())
        self._delta.checkpoint(state)
        self._delta.tidy(RETENTION, landmarks(state))
        files = self._files()
        for name in disposable(files, time.time() - _KEPT, landmarks(state), least=2):
            self.place.delete(name)
        if state.version % landmarks(state) == 0:
            pack(self.place, files)

    def _taken(self, version: int) -> CommitConflict:
        return CommitConflict(f"version {version} of {self.place} is taken")

    def _stands(self, commit: Commit) -> bool:
        """Tell whether a commit made after a long pause is part of the log.

        Versions that this writer did not see may have been deleted during the pause, including the
        one whose number it used.
        """
        states = self._files().states
        later = [version for version in sorted(states) if version >= commit.version]
        if not later:
            return True
        name = states[later[0]].name
        data = self.place.read(name)
        if data is not None:
            state = read_state(data, self.place.uri(name))
            if commit.version in state.recent:
                return state.recent[commit.version] == commit.batch
        raise OutcomeUnknown(
            f"whether version {commit.version} of {self.place} was committed is unknown after"
            " such a pause",
            hint="start again: what is in the archive is exact",
        )

    # -- tidying up --

    def settle(self, state: State, *, grace: float = RETENTION, sweep: bool | None = None) -> None:
        """Complete the Delta log, and delete data files that no readable version needs.

        These are the files of failed attempts and, after `grace` seconds (at most a day), files
        that compaction removed. Unless `sweep` is given, the files are searched at the first call,
        then every ten minutes. Idempotent, and safe in several processes.
        """
        if not 0 <= grace <= RETENTION:
            raise UsageError(f"a grace of {grace:g} s is not between 0 and a day")
        if self._delta.lacks(state.version):
            commit = self.read(state.version)
            if commit is not None:
                self._delta.publish(commit, state, self.read)
        if sweep is None:
            sweep = self._swept is None or _now() - self._swept >= _SWEEP_EVERY
        if sweep:
            if grace < RETENTION:
                # Do not offer other engines versions whose files are about to be deleted.
                self._delta.checkpoint(state)
                self._delta.tidy(grace, landmarks(state))
            sweep_data(self.place, state, grace)
            self._swept = _now()


def _now() -> float:
    """Return seconds of a clock that also counts while the machine sleeps, if available."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
