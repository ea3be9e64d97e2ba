"""Presence: the agents that are present, where each runs, and what it does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentbus.coordination.lease_step import own_repository
from agentbus.coordination.leases import located
from agentbus.core import client_session as clients, names, repository
from agentbus.core.errors import InvalidPayload, UsageError
from agentbus.core.running import runs
from agentbus.core.settings import repository as repository_here, state_directory
from agentbus.core.stream import fields, is_number, score, text
from agentbus.store.failures import or_empty
from agentbus.store.scope import client_session
from agentbus.store.steps import Batch, Command, Script, one_step

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

STATES = names.STATES
# Seconds for which a presence is kept after the agent was last seen.
KEPT = 86_400.0
# Seconds for which an agent without a presence is listed after its last use of the channel.
RECENT = 3_600.0
LONGEST_DOING = 200
# Agents that one script reads; a larger number would block the server for too long.
AT_ONCE = 100
# Maximum length of a recorded place, branch or host.
_LONGEST = 500
_PLACE = ("client", "session", "host", "pid", "process", "cwd", "branch")
# The fields that tell whether hooks run: they record the session in the last one.
_GUARD = ("client", "session", "hooks")


@dataclass(frozen=True, slots=True)
class Presence:
    """The presence of an agent: its `state`, and the unix time when it was last `seen`.

    `state` is `active`, `idle`, `waiting` or `gone`, or None for an agent that only used the channel;
    `since` is the start of that state. `client`, `session`, `host`, `pid`, `cwd`, `branch` and `doing` are
    as recorded by the agent. `leases` are the patterns that it and its subagents have leased, and `subs`
    maps each of these subagents to its own; `unread` is the number of its unread messages. `unguarded` is
    true for a session of a client in which no hook has run: nothing refuses its edits of leased files.
    `topics` are those that it follows, or mutes, if it has chosen any.
    """

    agent: str
    state: str | None
    seen: float
    client: str | None
    host: str | None
    branch: str | None
    doing: str | None
    leases: tuple[str, ...]
    unread: int
    session: str | None = None
    pid: int | None = None
    cwd: str | None = None
    since: float | None = None
    subs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unguarded: bool = False
    topics: str | None = None


def here(
    scope: Scope,
    *,
    doing: str | None = None,
    state: str | None = None,
    topics: str | None = None,
    place: Mapping[str, str] | None = None,
) -> Op[None]:
    """Record this agent's presence for a day.

    `place` has the fields `client`, `session`, `host`, `pid`, `process`, `cwd` and `branch`, by default
    those of this process, if the agent runs here; an empty `doing` or `topics` removes the recorded one.
    """
    if state is not None and state not in STATES:
        raise _mistake(f"the state is {state!a}", hint=f"use one of {', '.join(STATES)}")
    known = {**(this_place(scope) if place is None else place)}
    if doing is not None:
        known["doing"] = _checked(doing)
    if topics is not None:
        known["topics"] = names.topics(topics)
    words = [word for name, value in known.items() for word in (name, value[:_LONGEST])]
    keys = scope.keys
    yield Script(
        "record_presence",
        (keys.who(scope.agent), keys.agents, keys.inbox_bell(scope.agent)),
        (scope.agent, round(KEPT * 1000), state or "", *words),
        writes=True,
    )


def present(scope: Scope, *, every: bool = False, limit: int | None = 30) -> Op[list[Presence]]:
    """Return the present agents, last seen first; with `every`, all known agents.

    An agent is present for a day after it was last seen, unless it is `gone`; an agent without a record is
    present for an hour after it used the channel. They are read in steps of 100 agents.
    """
    _, agents = yield from present_now(scope, every=every, limit=limit)
    return agents


def present_now(
    scope: Scope, *, every: bool = False, limit: int | None = 30
) -> Op[tuple[float, list[Presence]]]:
    """Return the server's time (0 if there are no agents), and the present agents."""
    whole = isinstance(limit, int) and not isinstance(limit, bool)
    if limit is not None and not (whole and limit >= 0):
        raise _mistake(f"the limit is {limit!a}", hint="give a number of agents")
    agents: list[Presence] = []
    at, now = 0, 0.0
    while limit is None or len(agents) < limit:
        page = yield from listed(scope, at)
        if not page:
            break
        at += AT_ONCE
        now, known = yield from read(scope, page)
        agents += [presence for presence in known if every or is_there(presence, now)]
        if len(page) < AT_ONCE or (not every and now - page[-1][1] > KEPT):
            break
    agents.sort(key=lambda presence: -presence.seen)
    return now, agents if limit is None else agents[:limit]


def is_unguarded(scope: Scope) -> Op[bool]:
    """Tell whether this agent is a session of a client in which no hook has run."""
    asked = Command("HMGET", scope.keys.who(scope.agent), *_GUARD)
    values = yield from or_empty(one_step(asked), [None] * len(_GUARD))
    named = {name: text(value) for name, value in zip(_GUARD, values, strict=True) if value}
    return _is_unguarded(scope.agent, named)


def _is_unguarded(agent: str, named: Mapping[str, str]) -> bool:
    client, session, hooks = map(named.get, _GUARD)
    if not (client or clients.client_of(agent)):
        return False
    return not hooks or (session is not None and hooks != session)


def of(scope: Scope, agents: Sequence[str]) -> Op[list[Presence | None]]:
    """Return the presence of each agent, whether present or not; None for an agent without a record.

    They are read in steps of 100 agents.
    """
    presences: list[Presence | None] = []
    for at in range(0, len(agents), AT_ONCE):
        _, known = yield from seen(scope, agents[at : at + AT_ONCE])
        presences += [
            presence if presence.seen or presence.state is not None else None for presence in known
        ]
    return presences


def seen(scope: Scope, agents: Sequence[str]) -> Op[tuple[float, list[Presence]]]:
    """Return the server's time, and the presence of up to 100 agents; `seen` is 0 for an unknown one."""
    scores = yield Batch([("ZSCORE", scope.keys.agents, agent) for agent in agents])
    used = [score(value) if isinstance(value, bytes) else 0.0 for value in scores]
    return (yield from read(scope, [*zip(agents, used, strict=True)]))


def listed(scope: Scope, at: int) -> Op[list[tuple[str, float]]]:
    """Return 100 agents from a rank on, last seen first, with the unix times when they were last seen."""
    asked = Command("ZREVRANGE", scope.keys.agents, at, at + AT_ONCE - 1, "WITHSCORES")
    flat = yield from or_empty(one_step(asked), [])
    return [(text(flat[i]), score(flat[i + 1])) for i in range(0, len(flat), 2)]


def this_place(scope: Scope) -> dict[str, str]:
    """Return where this process runs: client, session, host, process, directory, branch; '' if unknown.

    The process is one that lives as long as the agent: its client's process, or the first process of the
    POSIX session after which the agent is named.
    """
    if scope.remote:
        return dict.fromkeys(_PLACE, "")
    session = client_session()
    pid = os.getsid(0) if scope.peers else None if session is None else session.pid
    try:
        directory = os.fsencode(os.getcwd()).decode("utf-8", "backslashreplace")
    except OSError:
        directory = ""
    root, _ = repository_here()
    return {
        "client": "" if session is None else session.client,
        "session": "" if session is None else session.id,
        "host": os.uname().nodename,
        "pid": "" if pid is None else str(pid),
        "process": clients.process_name(pid),
        "cwd": directory,
        "branch": ("" if root is None else repository.branch(root)) or "",
    }


def read(scope: Scope, agents: Sequence[tuple[str, float]]) -> Op[tuple[float, list[Presence]]]:
    """Return the server's time, and the presence of up to 100 listed agents."""
    keys = scope.keys
    each = [(keys.who(agent), keys.inbox(agent), keys.inbox_at(agent)) for agent, _ in agents]
    now, *replies = yield Script(
        "read_presence",
        (keys.leases, *(key for three in each for key in three)),
        [agent for agent, _ in agents],
    )
    own = own_repository(scope) if any(leases for *_, leases in replies) else ""
    read = [
        _presence(agent, last, fields(flat), int(unread), sorted(map(text, leases)), own)
        for (agent, last), (flat, unread, leases) in zip(agents, replies, strict=True)
    ]
    return int(now) / 1000, read


def state_of(agent: str, last: float, named: Mapping[str, str]) -> str | None:
    """Return an agent's state from its record, and the unix time when it last used the channel."""
    state = named.get("state")
    if state not in STATES or (
        # The agent has used the channel after it was gone.
        state == "gone" and last > (_time(named.get("seen", "")) or 0.0) + 1
    ):
        return None
    return "gone" if _has_ended(agent, named) else state


def has_ended(host: str, pid: str, process: str) -> bool:
    """Tell whether an agent's process has certainly ended, by its record on this host."""
    if f" {pid} " in process:
        return clients.has_ended(process)
    # Another program has recorded the process, or its start could not be read.
    known = host == os.uname().nodename and is_number(pid) and int(pid) > 0
    return known and not runs(int(pid))


def _has_ended(agent: str, named: Mapping[str, str]) -> bool:
    """Tell whether an agent's process has certainly ended, and no other session here has its name."""
    sessions = clients.folder_in(state_directory())
    ended = has_ended(*(named.get(field, "") for field in ("host", "pid", "process")))
    return ended and all(other.agent != agent for other in clients.live(sessions))


def _presence(
    agent: str, last: float, named: dict[str, str], unread: int, leases: list[str], own: str
) -> Presence:
    """Return an agent's presence from the fields of its record, which any program may have written."""
    pid, doing = named.get("pid", ""), named.get("doing")
    seen, since = (_time(named.get(name, "")) for name in ("seen", "since"))
    held = [
        (located(pattern, "" if repository == own else repository), sub)
        for pattern, sub, process, repository in (lease.split("\n") for lease in leases)
        if not clients.has_ended(process)
    ]
    subs: dict[str, tuple[str, ...]] = {}
    for pattern, sub in held:
        if sub:
            subs[sub] = (*subs.get(sub, ()), pattern)
    return Presence(
        agent,
        state_of(agent, last, named),
        max(last, seen or 0.0),
        named.get("client"),
        named.get("host"),
        named.get("branch"),
        None if doing is None else doing[:LONGEST_DOING],
        tuple(dict.fromkeys(pattern for pattern, _ in held)),
        unread,
        named.get("session"),
        int(pid) if is_number(pid) else None,
        named.get("cwd"),
        since,
        subs,
        _is_unguarded(agent, named),
        named.get("topics"),
    )


def is_there(presence: Presence, now: float) -> bool:
    """Report whether an agent counts as present."""
    if presence.state is None:
        return now - presence.seen <= RECENT
    return presence.state != "gone"


def _time(value: str) -> float | None:
    return int(value) / 1000 if is_number(value) else None


def _checked(doing: str) -> str:
    if doing:
        names.body("description", doing)
        if len(doing) > LONGEST_DOING:
            raise InvalidPayload(
                f"the description has {len(doing)} characters; the limit is {LONGEST_DOING}",
                hint="say in one line what you do",
            )
    return doing


def _mistake(message: str, *, hint: str) -> UsageError:
    return UsageError(message, hint=hint)
