"""Flags: an agent holds a flag while it works, and satisfies it when the work is done.

A hold ends as satisfied (leaving a completion), failed (leaving a failure), or released. Each hold has a
fencing token, and each change is announced on the channel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentbus.coordination import announce as holds
from agentbus.core import validate
from agentbus.core.errors import UsageError
from agentbus.core.stream import is_number, text
from agentbus.store.scan import key_bytes, scan
from agentbus.store.steps import Batch, Script
from agentbus.store.verb import BusT_co, OnBus, verb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Once, Op
    from agentbus.store.verb import Awaiting, PerBus

# Seconds after which the holder of a flag is marked as silent.
SILENT = 300.0
# The flags that one script reads: others wait for it.
_PAGE = 100


@dataclass(frozen=True, slots=True)
class Hold(OnBus[BusT_co]):
    """An agent's hold of a flag; `token` is a fencing token of up to 64 bits that only grows.

    `ttl` is in seconds, None for a hold that does not expire. `renewed` is true if this agent already held
    the flag. In annotations, `Hold` comes from a `Bus` and `Hold[AsyncBus]` from an `AsyncBus`.
    """

    flag: str
    agent_id: str
    timestamp: float | None
    ttl: float | None
    token: int
    renewed: bool = False
    _bus: Any = field(default=None, repr=False, compare=False)

    @verb
    def renew(self, ttl: float | None = None) -> Op[PerBus[Hold, Hold[Awaiting]]]:
        """Extend the hold to `ttl` seconds from now, by default its own TTL, and return the renewed hold.

        Raises `NotHolder` if the hold has ended, and `UsageError` if there is no TTL.
        """
        op: Op[Any] = renew(self._bus.scope, self, ttl)
        return op

    def _run(self, name: str, op: Op[Any]) -> Any:
        return self._bus._run(name, op)


@dataclass(frozen=True, slots=True)
class FlagState:
    """The state of a flag: held by `agent_id` since `timestamp`, satisfied, failed, or free."""

    flag: str
    state: str
    agent_id: str | None
    timestamp: float | None
    ttl: float | None
    token: int | None
    note: str | None = None


def announce(
    scope: Scope,
    flag: str,
    *,
    ttl: float | None = None,
    force: bool = False,
    wait: float | None = None,
    token: int | None = None,
    renew: bool = True,
    note: str | None = None,
    bus: object = None,
    once: Once | None = None,
) -> Op[Hold[Any]]:
    """Take a flag, or renew a hold; the hold renews itself through `bus`."""
    what, value, number, left = yield from holds.take(
        *(scope, flag),
        ttl=ttl,
        force=force,
        wait=wait,
        token=token,
        renew=renew,
        note=note,
        once=once,
    )
    agent, at = holds.split(value)
    return Hold(flag, agent, at, left, number, what == "renewed", bus)


def end(
    scope: Scope,
    flag: str,
    how: str,
    *,
    force: bool = False,
    note: str | None = None,
    token: int | None = None,
) -> Op[FlagState]:
    """End a hold as `satisfied`, `failed` or `released`; the notice is part of the same atomic step."""
    value, number = yield from holds.end(scope, flag, how, force=force, note=note, token=token)
    agent, at = holds.split(value)
    return FlagState(flag, how, agent, at, None, number, note)


def renew(scope: Scope, hold: Hold[Any], ttl: float | None = None) -> Op[Hold[Any]]:
    """Extend a hold to `ttl` seconds from now, by default its own TTL, if it is still in force."""
    span = ttl if ttl is not None else hold.ttl
    if span is None:
        raise UsageError(f"the hold of {hold.flag!r} has no TTL", hint="give it a ttl")
    keys = scope.keys
    reply = yield Script(
        "renew_hold",
        (keys.flag(hold.flag), keys.fence(hold.flag), keys.channel, keys.agents, keys.topics),
        (
            *(hold.agent_id, hold.token, holds.milliseconds_of(span)),
            *(scope.channel_trim, hold.flag),
        ),
        writes=True,
    )
    if reply[0] != b"renewed":
        raise holds.hold_ended(hold.flag, hold.token, text(reply[1]))
    return Hold(
        hold.flag, hold.agent_id, hold.timestamp, span, hold.token, renewed=True, _bus=hold._bus
    )


def states(scope: Scope, limit: int | None = None) -> Op[list[FlagState]]:
    """Return all flags that are held, satisfied or failed, ordered by name; at most the first `limit`.

    Each page of flags is read in one atomic step.
    """
    if limit is not None:
        validate.number_of("limit", limit, "flags")
    known = yield from named(scope, "flag", "done", "failed")
    states: list[FlagState] = []
    for at in range(0, len(known), _PAGE):
        _, page = yield from look(scope, known[at : at + _PAGE])
        states += [state for state in page if state.state != "free"]
        if limit is not None and len(states) >= limit:
            break
    return states[:limit]


def named(scope: Scope, *kinds: str) -> Op[list[str]]:
    """Return the names of all flags that have a hold, a completion or a failure, in order."""
    keys = yield from scan(scope, *kinds)
    prefix = len(f"{scope.keys.project}:")
    return sorted({text(key_bytes(key)[prefix:]).partition(":")[2] for key in keys})


def look(scope: Scope, flags: list[str]) -> Op[tuple[str, list[FlagState]]]:
    """Return the channel's last id and the flags' states, read in one atomic step."""
    reply: list[bytes | None] = yield Script("read_flags", holds.flag_keys(scope, flags))
    return text(reply[0] or b""), [_state(flag, reply, 1 + 5 * i) for i, flag in enumerate(flags)]


def holders_seen(scope: Scope, states: Iterable[FlagState]) -> Op[dict[str, float]]:
    """Return the seconds since the holder of each held flag was last seen, by agent, if it ever was."""
    agents = sorted({str(flag.agent_id) for flag in states if flag.state == "held"})
    seen: dict[str, float] = {}
    for at in range(0, len(agents), _PAGE):
        page = agents[at : at + _PAGE]
        now, *scores = yield Batch(
            [("TIME",), *(("ZSCORE", scope.keys.agents, agent) for agent in page)]
        )
        for agent, score in zip(page, scores, strict=True):
            if isinstance(score, bytes):
                seen[agent] = max(0.0, int(now[0]) + int(now[1]) / 1e6 - float(score))
    return seen


def _state(flag: str, reply: list[bytes | None], at: int) -> FlagState:
    # A value of another type, stored by another program, counts neither as a hold nor as a
    # completion.
    value, left, done, failed, token = (text(part or b"") for part in reply[at : at + 5])
    # A token has up to 64 bits, more than `is_number` accepts at once.
    number = int(token) if is_number(token[-15:]) and is_number(token[:-15] or "0") else None
    if value:
        agent, since = holds.split(value)
        if number is not None and (since is None or number // 1000 + 1 < since):
            # Another program announced the flag, and gives no token: the stored one is of a hold before.
            number = None
        return FlagState(flag, "held", agent, since, holds.seconds_left(left), number)
    if done or failed:
        agent, since, _event, note = holds.completion(done or failed)
        how = "satisfied" if done else "failed"
        return FlagState(flag, how, agent, since, None, number, note or None)
    return FlagState(flag, "free", None, None, None, number)
