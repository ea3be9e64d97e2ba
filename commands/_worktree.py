"""A git worktree for each task of `work --worktree`."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentbus.core.errors import AgentBusError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.queues.delivery import Delivery

# The config of a bare repository, whose files may have come with others, may name a program to run;
# and `git worktree remove` would delete untracked files where the user's config does not show them.
_CONFIG = ("-c", "safe.bareRepository=explicit", "-c", "status.showUntrackedFiles=normal")
# Characters of a task id that a branch and a directory may have everywhere.
_UNSUITABLE = re.compile(r"[^A-Za-z0-9._@-]|\.\.|^[.-]|\.lock$|\.$|@$")
# Maximum characters of a branch's last part.
_LONGEST = 120
# Variables by which git finds another repository than that of the directory.
_GIT = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")
BRANCHES = "agentbus/"


class WorktreeInUse(AgentBusError):
    """Another process runs the task in its worktree."""


class GitFailed(AgentBusError):
    """A command of git failed."""


class Worktree:
    """The worktree of one task, and the branch on which it began. `reused` tells whether it existed."""

    def __init__(self, path: str, branch: str, cwd: str, lock: int, reused: bool) -> None:
        self.path = path
        self.branch = branch
        self.cwd = cwd
        self.lock = lock
        self.reused = reused


class Worktrees:
    """Makes a worktree for each task beside the repository, and removes it at the end if it is clean."""

    def __init__(self, environment: Mapping[str, str], *, keep: bool) -> None:
        self._environment = {**without_git(environment), "LC_ALL": "C"}
        self._keep = keep
        # Where the worker was started within its worktree: programs run in the same directory.
        self._prefix = self._git("rev-parse", "--show-prefix")
        self._git(
            "rev-parse", "--verify", "--quiet", "HEAD^{commit}", hint="commit something first"
        )
        # The first one is the repository's own.
        self._base = f"{next(iter(self._listed()))}-worktrees"

    @contextlib.contextmanager
    def of(self, delivery: Delivery) -> Iterator[Worktree]:
        """Make a task's worktree, or take up the one that an earlier attempt has left.

        Raises `WorktreeInUse`, `GitFailed`.
        """
        name = name_of(delivery)
        path, branch = os.path.join(self._base, name), BRANCHES + name
        lock = self._locked(path)
        try:
            reused = self._is_whole(path)
            if not reused:
                self._add(path, branch, lock)
            cwd = os.path.join(path, self._prefix)
            yield Worktree(path, branch, cwd if os.path.isdir(cwd) else path, lock, reused)
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(path), os.fstat(lock)):
                    os.rmdir(path)
            with contextlib.suppress(OSError):
                os.rmdir(self._base)
            # A process that the program left behind has the file open, too.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def settle(self, worktree: Worktree) -> tuple[str | None, str | None]:
        """Remove the worktree if it is clean; return the branch with its commits, and its path if it stays.

        It is clean if git finds no change in it, and its commits are on a branch or tag. The branch is
        deleted if all its commits are on another branch or tag.
        """
        try:
            on = self._git("-C", worktree.path, "rev-parse", "--abbrev-ref", "HEAD")
            kept = self._keep or not any(self._refs("-C", worktree.path, "HEAD"))
            if not kept:
                self._git("worktree", "remove", worktree.path)
            branches = dict.fromkeys([on, worktree.branch])
            left = [branch for branch in branches if self._has_commits(branch, kept=kept)]
        except GitFailed:
            # Among others: git refuses to remove a worktree with changes.
            kept = True
            left = [worktree.branch] if self._has_commits(worktree.branch, kept=True) else []
        return (left[0] if left else None), (worktree.path if kept else None)

    def _has_commits(self, branch: str, *, kept: bool) -> bool:
        """Return whether a branch has commits that no other has; delete one of a task without."""
        ref = f"refs/heads/{branch}"
        try:
            tip = self._git("rev-parse", "--verify", "--quiet", ref)
            if {*self._refs(ref)} - {ref}:
                if not kept and branch.startswith(BRANCHES):
                    # With its tip, so that a commit made just now is not lost.
                    self._git("update-ref", "-d", ref, tip)
                return False
        except GitFailed:
            return False
        return True

    def _refs(self, *where: str) -> list[str]:
        *place, commit = where
        wanted = "--count=2", "--format=%(refname)", "--contains", commit
        # Other references may belong to the worktree alone.
        kinds = "refs/heads", "refs/tags", "refs/remotes"
        return self._git(*place, "for-each-ref", *wanted, *kinds).split("\n")

    def _locked(self, path: str) -> int:
        """Make the directory, and lock it; the lock ends with the processes that hold it."""
        while True:
            try:
                os.makedirs(path, exist_ok=True)
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                # Another worker has just removed it.
                continue
            except OSError as error:
                raise GitFailed(f"the worktree {path} cannot be made ({error.strerror})") from None
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.stat(path), os.fstat(lock)):
                    return lock
            except FileNotFoundError:
                pass
            except OSError as error:
                os.close(lock)
                raise WorktreeInUse(
                    f"the worktree {path} is in use by another worker ({error.strerror})"
                ) from None
            os.close(lock)

    def _is_whole(self, path: str) -> bool:
        """Return whether a worktree is there; empty one that git has not finished, as it was killed."""
        state = self._listed().get(os.path.realpath(path))
        if state is None or not os.listdir(path):
            return False
        if "locked initializing" not in state:
            return True
        # No program has run in it.
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry)
            else:
                os.unlink(entry)
        return False

    def _add(self, path: str, branch: str, lock: int) -> None:
        exists = bool(self._git("for-each-ref", f"refs/heads/{branch}"))
        # Twice --force: also where git remembers a worktree whose directory is gone, or an unfinished one.
        where = [path, branch] if exists else ["-b", branch, path, "HEAD"]
        self._git("worktree", "add", "--quiet", "--force", "--force", *where, lock=lock)

    def _listed(self) -> dict[str, str]:
        """Return the repository's worktrees: the path of each, and what git says of it."""
        said = self._git("worktree", "list", "--porcelain")
        blocks = (block.partition("\n") for block in said.split("\n\n"))
        return {first.removeprefix("worktree "): rest for first, _, rest in blocks}

    def _git(
        self, *words: str, hint: str = "run it in a repository", lock: int | None = None
    ) -> str:
        try:
            done = subprocess.run(
                ["git", *_CONFIG, *words],
                capture_output=True,
                check=False,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                # A signal of the terminal is for the worker; and git holds the lock as long as it runs.
                start_new_session=True,
                pass_fds=() if lock is None else (lock,),
            )
        except OSError as error:
            raise GitFailed(f"git cannot be run ({error.strerror})", hint="install git") from None
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().replace("\n", "; ")
            what = " ".join(words[:2])
            raise GitFailed(f"'git {what}' failed: {said[:500] or done.returncode}", hint=hint)
        return os.fsdecode(done.stdout).strip("\n")


def opened(environment: Mapping[str, str], *, keep: bool) -> Worktrees:
    """Return the worktrees of the current directory's repository. Raises `UsageError` without one."""
    try:
        return Worktrees(environment, keep=keep)
    except GitFailed as error:
        raise UsageError(
            f"--worktree needs a repository with a commit: {error.message}", hint=error.hint
        ) from None


def without_git(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a program that finds its repository by its directory."""
    return {name: value for name, value in environment.items() if name not in _GIT}


def name_of(delivery: Delivery) -> str:
    """Return the name of a task's worktree, the same for each of its attempts."""
    parts = [delivery.id.replace(":", ".")]
    if not re.match(r"\d{13}", delivery.id):
        # The id was counted, and begins again when a project is cleared.
        parts.append(str(round(delivery.created_at * 1000)))
    parts += [delivery.group] if delivery.group != "default" else []
    name = ".".join(parts)
    plain = _UNSUITABLE.sub("-", name)[:_LONGEST]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
