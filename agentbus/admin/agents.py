"""The agents of a project, with their workers, flags, activity and lag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentbus.admin import project, stats
from agentbus.coordination.announce import split
from agentbus.core.stream import text
from agentbus.queues import by_hand
from agentbus.store.scan import scan
from agentbus.store.scope import server_time
from agentbus.store.steps import Command
from agentbus.workers import registry

if TYPE_CHECKING:
    from agentbus.admin.project import AgentActivity
    from agentbus.queues.by_hand import HeldTask
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.registry import Registered

# Seconds for which an agent without a worker is listed: the same as for a dead worker.
RECENT = float(registry.KEPT)
_AT_ONCE = 500
# The states of workers, in order of precedence: an agent has the first that any of its workers has.
_STATES = ("working", "paused", "stopping")


@dataclass(frozen=True, slots=True)
class Attendee:
    """An agent that has `workers`, has used the channel, or holds a flag or a task.

    `state` is `working`, `paused` or `stopping` if one of its workers is, `dead` if all of them are, None
    without workers. `seen` is the unix time of its last heartbeat or channel use, `age` the seconds since
    then by the server's clock, `since` the unix time at which its first live worker started. `lag` is the
    number of due tasks that its groups have not finished. `heard` and `unheard` are as in `AgentActivity`.
    `flags` are the flags that it holds, None if the server has too many keys to search; `tasks` are the
    tasks that it has taken by hand.
    """

    agent_id: str
    state: str | None
    seen: float | None
    age: float | None
    since: float | None
    running: int
    done: int
    failed: int
    lag: int | None
    heard: str | None
    unheard: int | None
    flags: tuple[str, ...] | None
    workers: tuple[Registered, ...]
    tasks: tuple[HeldTask, ...] = ()


def who(scope: Scope, *, every: bool = False) -> Op[list[Attendee]]:
    """Return the agents by name; with `every`, also those last seen more than an hour ago.

    Not atomic. It sends about ten requests for a few hundred agents and 25 queues, and another for each
    5,000 keys of the server, to find flags.
    """
    workers = yield from registry.workers(scope)
    spoke = {one.agent_id: one for one in (yield from project.agents(scope))}
    now = yield from server_time(scope)
    flags = yield from _flags(scope)
    lags = yield from stats.lags(scope, {(one.queue, one.group) for one in workers})
    by_agent: dict[str, list[Registered]] = {}
    for one in workers:
        worker = replace(one, lag=lags.get((one.queue, one.group)))
        by_agent.setdefault(one.agent_id, []).append(worker)
    held: dict[str, list[str]] = {}
    for flag, agent in (flags or {}).items():
        held.setdefault(agent, []).append(flag)
    tasks: dict[str, list[HeldTask]] = {}
    for task in (yield from by_hand.all_held(scope)):
        tasks.setdefault(task.agent_id, []).append(task)
    named = {*by_agent, *held, *tasks}
    named |= {agent for agent, one in spoke.items() if every or now - one.last_seen <= RECENT}
    return [
        _attendee(
            *(agent, now, by_agent.get(agent, []), spoke.get(agent)),
            None if flags is None else tuple(sorted(held.get(agent, ()))),
            tuple(tasks.get(agent, ())),
        )
        for agent in sorted(named)
    ]


def _attendee(
    agent: str,
    now: float,
    workers: Sequence[Registered],
    spoke: AgentActivity | None,
    flags: tuple[str, ...] | None,
    tasks: tuple[HeldTask, ...],
) -> Attendee:
    alive = [one for one in workers if one.alive]
    seen = [one.seen for one in workers] + ([spoke.last_seen] if spoke else [])
    groups = {(one.queue, one.group): one.lag for one in workers}
    return Attendee(
        agent,
        _state(workers, {one.state for one in alive}),
        max(seen, default=None),
        max(0.0, now - max(seen)) if seen else None,
        min((one.started for one in alive), default=None),
        sum(one.running for one in alive),
        sum(one.done for one in workers),
        sum(one.failed for one in workers),
        sum(lag or 0 for lag in groups.values()) if workers else None,
        spoke.heard if spoke else None,
        spoke.unheard if spoke else None,
        flags,
        tuple(workers),
        tasks,
    )


def joined(parts: Iterable[Iterable[Attendee]]) -> list[Attendee]:
    """Join the agents of several shards by name; the first that knows an agent has its messages."""
    by_name: dict[str, list[Attendee]] = {}
    for part in parts:
        for agent in part:
            by_name.setdefault(agent.agent_id, []).append(agent)
    return [_joined(by_name[name]) for name in sorted(by_name)]


def _joined(parts: Sequence[Attendee]) -> Attendee:
    workers = tuple(worker for part in parts for worker in part.workers)
    ages = [part.age for part in parts if part.age is not None]
    lags = [part.lag for part in parts if part.lag is not None]
    return replace(
        parts[0],
        state=_state(workers, {worker.state for worker in workers if worker.alive}),
        seen=max((part.seen for part in parts if part.seen is not None), default=None),
        age=min(ages, default=None),
        since=min((part.since for part in parts if part.since is not None), default=None),
        running=sum(part.running for part in parts),
        done=sum(part.done for part in parts),
        failed=sum(part.failed for part in parts),
        lag=sum(lags) if lags else None,
        workers=workers,
        tasks=tuple(task for part in parts for task in part.tasks),
    )


def _state(workers: Sequence[Registered], states: Iterable[str]) -> str | None:
    if not workers:
        return None
    return next((state for state in _STATES if state in states), "dead")


def _flags(scope: Scope) -> Op[Mapping[str, str] | None]:
    """Return the holder of each held flag, None if the server has too many keys to search."""
    size = yield Command("DBSIZE")
    if int(size) > project.MANY_KEYS:
        return None
    keys = yield from scan(scope, "flag")
    prefix = len(scope.keys.flag("").encode())
    # Another program may name its flags in any encoding.
    known = sorted(key.encode("utf-8", "surrogateescape") for key in keys)
    holders: dict[str, str] = {}
    for at in range(0, len(known), _AT_ONCE):
        page = known[at : at + _AT_ONCE]
        values = yield Command("MGET", *page)
        for key, value in zip(page, values, strict=True):
            if value is not None:
                holders[text(key[prefix:])] = split(text(value))[0]
    return holders
