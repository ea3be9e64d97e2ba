"""The beginning and the end of a client's session, and the end of each of its turns."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentbus.agents import prime, tasks
from agentbus.agents.bell import checked
from agentbus.coordination import leases, presence, sessions
from agentbus.coordination.lease_step import own_repository
from agentbus.coordination.leases import of_files
from agentbus.coordination.sessions import lives
from agentbus.core import client_session, repository
from agentbus.core.clock import of_day
from agentbus.core.names import is_plain, shell_word
from agentbus.core.settings import (
    VARIABLES,
    repository as repository_here,
    state_directory,
    variable,
)
from agentbus.store.steps import Both, ServerReply

if TYPE_CHECKING:
    from agentbus.agents.event import Event
    from agentbus.store.steps import Script

_GIT_SECONDS = 2.0
# Leases that the first line of a subagent lists.
_SHOWN = 4


def announce(event: Event) -> None:
    """Publish a new session's name by a file, and in Claude Code's shells by a variable."""
    if not event.session:
        return
    folder, agent = client_session.folder_in(state_directory()), event.settings.agent
    _write(folder, event, agent)
    path = variable("CLAUDE_ENV_FILE")
    if path is None or any(map(variable, VARIABLES["agent"])):
        return
    line = f"export AGENTBUS_AGENT={shell_word(agent)}\n".encode()
    try:
        with open(path, "ab+") as file:
            file.seek(0)
            before = file.read(1 << 20)
            if line not in before:
                file.write(line if before[-1:] in (b"", b"\n") else b"\n" + line)
    except OSError:
        return


def _write(folder: str, event: Event, agent: str) -> None:
    try:
        client_session.write(folder, event.client.name, event.session, agent)
        if event.given.get("source") == "clear" and "agent" not in event.settings.sources:
            client_session.keep_name(folder, event.client.name, event.session, agent)
    except OSError:
        # The folder is read-only: processes of the session get the name from a variable, or not at
        # all.
        return


def begin(event: Event) -> dict[str, object] | None:
    """Record the session and its presence, and return the first page for its agent."""
    scope = event.scope
    root, _ = repository_here()
    pid = client_session.client_process()
    branch = ("" if root is None else repository.branch(root)) or ""
    process = client_session.process_name(pid)
    place = ("branch", branch, "pid", "" if pid is None else str(pid), "process", process)
    known = event.execute(prime.recent(scope))
    # The page already counts the unread messages: mark them as notified.
    queues = prime.queues_of(known)
    steps = [
        event.read_notifications(place, every=0),
        prime.reading(scope, known),
        scope.attendance(pid),
        *([prime.summing(scope, queues)] if queues else []),
    ]
    if event.session:
        named = _first(sessions.register(scope, event.client.name, event.session, scope.agent))
        shared, _, reply, _, *backlogs = _together(event, [named, *steps])
    else:
        shared, (_, reply, _, *backlogs) = [b""], _together(event, steps)
    options = {
        "tools": event.tools,
        "sandbox": event.client.name == "codex",
        "shared": bool(shared[0]) and _is_other(pid, *shared[2:]),
    }
    reply = [*reply, prime.ready(queues, backlogs[0] if backlogs else [])]
    page = prime.page(scope, reply, quotes=False, brief=True, **options)
    return event.client.answer(event.event, page)


def _is_other(own: int | None, pid: bytes, process: bytes, host: bytes, silent: bytes) -> bool:
    """Tell whether another client's live session has the name."""
    here = host.decode("utf-8", "replace") == os.uname().nodename
    return not (here and pid == str(own).encode()) and lives(pid, process, host, silent)


def end(event: Event) -> None:
    """Record that the agent is gone, end its leases, and give back its tasks held by hand."""
    scope = event.scope
    here = _first(presence.here(scope, state="gone", place={}))
    _together(event, [here, _first(leases.drop(scope))])
    if os.path.isdir(os.path.join(state_directory(), "taken")):
        tasks.give_back(event)


def begin_subagent(event: Event) -> dict[str, object] | None:
    """Return the line that a subagent reads first: whose name it has, and what the session has leased."""
    if not event.sub:
        return None
    scope = event.scope
    held = [
        lease
        for lease in map(leases.lease, event.execute(_first(leases.leases(scope)))[2::2])
        if lease.agent == scope.agent
    ]
    listed = [
        f"{prime.plain_path(lease.path)}"
        f"{f' (subagent {lease.sub})' if lease.sub and is_plain(lease.sub) else ''}"
        f" until {of_day(lease.until)}"
        for lease in held[:_SHOWN]
    ]
    if len(held) > _SHOWN:
        listed.append(f"{len(held) - _SHOWN} more")
    line = (
        f"AgentBus: you are a subagent ({event.sub}) of {checked(scope.agent)}."
        f" Leased by this session: {' · '.join(listed) or 'none'}."
    )
    return event.client.answer(event.event, line)


def end_subagent(event: Event, sub: str) -> None:
    """End all leases of a subagent, also those that it took by a command: nobody else can drop them."""
    if sub:
        event.execute(_first(leases.end_of(event.scope, event.scope.agent, sub=sub)))


def forget(event: Event) -> None:
    """Remove the file of a session that ends."""
    if event.session:
        client_session.remove(client_session.folder_in(state_directory()), event.session)


def tidy(event: Event, words: Sequence[bytes]) -> None:
    """Release leases that hooks took on files of this repository without changes in git.

    `words` has the pattern, the token and the repository of each.
    """
    own = own_repository(event.scope)
    held = {
        pattern.decode(): token.decode()
        for pattern, token, repository in zip(words[::3], words[1::3], words[2::3], strict=True)
        if repository.decode() in ("", own)
    }
    root, _ = repository_here()
    changed = None if root is None else _changed(root)
    if changed is None:
        return
    still = of_files(changed, by_worktree=event.scope.leases_by_worktree)
    over = [(pattern, token) for pattern, token in held.items() if not _among(pattern, still)]
    if over:
        ended = [leases.Lease(pattern, "", None, 0.0, 0.0, int(token)) for pattern, token in over]
        event.execute(_first(leases.end(event.scope, ended)))


def _among(pattern: str, changed: dict[str, str]) -> bool:
    """Tell whether a file, or a repository that contains it, has changed."""
    segments = pattern.split("/")
    above = ["/".join(segments[:number]) for number in range(1, len(segments))]
    return not changed.keys().isdisjoint([pattern, *above, *(f"{path}/**" for path in above)])


def _changed(root: str) -> list[str] | None:
    """Return the files that git reports as changed, renamed ones by both names; None if git fails.

    For a submodule, or another repository within this one, git reports only the directory.
    """
    # The config of a bare repository, whose files may have come with others, may name a program to run.
    command = ["git", "-C", root, "-c", "safe.bareRepository=explicit", "--no-optional-locks"]
    try:
        done = subprocess.run(
            [*command, "status", "--porcelain", "-z", "-uall", "--no-renames"],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode:
        return None
    return [os.fsdecode(line[3:]) for line in done.stdout.split(b"\0") if len(line) > 3]


def _together(event: Event, steps: Sequence[Script]) -> list[Any]:
    """Return the replies to scripts that are sent together."""
    joined: Script | Both = steps[0]
    for step in steps[1:]:
        joined = Both(joined, step)
    replies: list[Any] = event.execute(joined)
    again = False
    for at, reply in enumerate(replies):
        if isinstance(reply, ServerReply):
            if reply.code == "WRONGTYPE":
                # Another program's key costs this step alone.
                continue
            if reply.code != "NOSCRIPT":
                raise reply
            again = True
        if again:
            # Send the script again with its text. Later scripts may have run too early; they are
            # idempotent, so run them again.
            replies[at] = event.execute(steps[at])
    return replies


def _first(op: Any) -> Script:
    """Return the only step of an operation."""
    step: Script = next(op)
    op.close()
    return step
