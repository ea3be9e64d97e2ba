"""Checks staged paths in git against other agents' leases, for a pre-commit hook."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from agentbus.coordination import leases
from agentbus.core.errors import AgentBusError, UsageError
from agentbus.core.names import shell_word

if TYPE_CHECKING:
    from agentbus.commands._declare import Call

# A server that is down must not prevent a commit, nor delay it for long.
_DEADLINE = 1.0
_NAMED = 20


def check(call: Call) -> None:
    """Raise `LeaseHeld` if another agent has leased a staged path; only warn without a server."""
    paths = staged()
    call.settings.deadline = min(call.settings.deadline, _DEADLINE)
    try:
        conflicts = call.run(leases.conflicts(call.enter(), paths)) if paths else []
    except AgentBusError as error:
        error.name_operation("lease")
        call.out.warn(f"the staged paths were not checked for leases: {error.message}")
        return
    if not conflicts:
        return
    agent = call.settings.agent
    refused = [leases.refusal(agent, path, lease) for path, lease in conflicts]
    for other in refused[1:_NAMED]:
        call.out.warn(other.message)
    first = leases.refusal(agent, *conflicts[0], len(conflicts) - 1)
    first.shell_hint = (
        f"leave it out ('git restore --staged {shell_word(f':/{first.path}')}'), or"
        f" {leases.advice(agent, first.agent)}"
    )
    raise first


def staged() -> list[str]:
    """Return the staged paths relative to the work tree's root; both names of a renamed file."""
    # Paths are relative to the root of the work tree. Use -z: without it, git quotes unusual paths.
    # The config of a bare repository, whose files may have come with others, may name a program to run.
    command = ["git", "-c", "safe.bareRepository=explicit", "diff", "--cached", "--name-only"]
    try:
        done = subprocess.run(
            [*command, "--no-renames", "--no-ext-diff", "-z"],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise UsageError(f"git cannot be run ({error.strerror})", hint="install git") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise UsageError(
            f"git cannot list the staged paths ({said[:200]})", hint="run it in a repository"
        )
    return [os.fsdecode(path) for path in done.stdout.split(b"\0") if path]
