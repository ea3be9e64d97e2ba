"""Chooses the name of an agent without one: from its client's session, its CI job, or its POSIX session."""

from __future__ import annotations

import os

from agentbus.core.names import SESSION_VARIABLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# For each CI system: the variables that together identify a job, of which the first must be set,
# and the variables that can hold the job's name. Jobs of a GitHub matrix differ only in their
# runners.
_CI_SYSTEMS = (
    (("GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GITHUB_JOB", "RUNNER_NAME"), ("GITHUB_JOB",)),
    (("CI_JOB_ID",), ("CI_JOB_NAME",)),
    (("BUILDKITE_JOB_ID",), ("BUILDKITE_STEP_KEY", "BUILDKITE_LABEL")),
    (("BUILD_TAG", "NODE_NAME", "EXECUTOR_NUMBER"), ("JOB_BASE_NAME", "JOB_NAME")),
)
# Kinds of sources of an agent's name, in order of precedence.
IDENTITIES = ("given", "session", "ancestor", "ci", "posix")
_LONGEST_JOB = 24
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def default(environment: Mapping[str, str], state: str = "") -> tuple[str, str, str]:
    """Return a name, its source, and the prefix of its peers' names ('' if it has none).

    In a session of a coding agent's client, the name is `<client>-<word>-<3 letters>`, found by a variable
    that holds the session's id, or by the file of an ancestor process, below `state`. In a CI job, it is
    `ci-<job>-<6 letters>`, from variables, and the same in all processes of the job. Otherwise it is
    `user@host~SID`, one name per POSIX session: a terminal, a cron job, an ssh command. The peers of a
    session are those of the same user and host.
    """
    if any(map(environment.get, SESSION_VARIABLES)) or (state and _has_files(state)):
        from agentbus.core import client_session

        session = client_session.find(environment, client_session.folder_in(state))
        if session is not None:
            return session.agent, session.source, ""
    for identity, names in _CI_SYSTEMS:
        if environment.get(identity[0]):
            return _of_job(environment, identity, names), identity[0], ""
    user = environment.get("LOGNAME") or environment.get("USER")
    if not user:
        user = "root" if os.getuid() == 0 else _user_name(os.getuid())
    peers = f"{user}@{os.uname().nodename}~"
    return f"{peers}{os.getsid(0)}", "default", peers


def identity(source: str, peers: str) -> str:
    """Return the kind of a name's source, one of `IDENTITIES`."""
    if source == "ancestor":
        return source
    if any(source == known[0] for known, _ in _CI_SYSTEMS):
        return "ci"
    if source in SESSION_VARIABLES:
        return "session"
    return "posix" if peers else "given"


def _has_files(state: str) -> bool:
    try:
        return bool(os.listdir(f"{state}/sessions"))
    except OSError:
        return False


def _of_job(
    environment: Mapping[str, str], identity: tuple[str, ...], names: tuple[str, ...]
) -> str:
    import hashlib

    parts = [environment.get(variable, "") for variable in identity]
    number = int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:8], "big")
    letters = "".join(_LETTERS[number // 26**place % 26] for place in range(6))
    job = next(filter(None, map(environment.get, names)), "job")
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in job)
    return f"ci-{kept[:_LONGEST_JOB].strip('-') or 'job'}-{letters}"


def _user_name(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid-{number}"
