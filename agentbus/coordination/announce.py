"""Takes flags and ends holds; the module `flags` turns the results into values.

These operations return the server's replies, and import values and errors only when needed, because a hook
may announce at every turn.
"""

from __future__ import annotations

from agentbus.core import names
from agentbus.store.steps import Script, Wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.coordination.waiters import Waiting
    from agentbus.core.errors import AgentBusError
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Once, Op

COMPLETION_KEPT = 86_400.0
# Seconds between two checks: another program may end a hold without a message on the channel.
RECHECK = 2.0
_LONGEST_TTL = 10 * 365 * 86_400.0
_HIGHEST_TOKEN = 2**64 - 1


def take(
    scope: Scope,
    flag: str,
    *,
    ttl: float | None = None,
    force: bool = False,
    wait: float | None = None,
    token: int | None = None,
    renew: bool = True,
    note: str | None = None,
    once: Once | None = None,
) -> Op[tuple[str, str, int, float | None]]:
    """Take a flag, or renew a hold: this agent's, or with `token` the hold that has this token.

    Returns `taken` or `renewed`, the flag's value, the fencing token, and the seconds left (None: no TTL).
    `wait` is the number of seconds to wait for a hold to end. Without `renew`, every hold excludes the
    caller, even this agent's own. The channel's message has the `note`. `once` is the slot of the request,
    by which it can be undone. Raises `FlagHeld`, and `NotHolder` if the hold with the token has ended.
    """
    name = names.name("flag", flag)
    keys = scope.keys
    renews = "own" if renew else "none"
    if token is not None:
        renews = _token(token)
    remark = "" if note is None else names.body("note", note, scope.max_body)
    milliseconds = "" if ttl is None else str(milliseconds_of(ttl))
    until = None if not wait else scope.monotonic() + span("wait", wait)
    waiting: Waiting | None = None
    # Use one token for all attempts: the second copy of a request that was sent twice may arrive
    # late.
    once = once or scope.once()
    resent = False
    while True:
        step = Script(
            "announce",
            (
                *_keys_of(scope, name),
                *(keys.channel, keys.agents, keys.topics, once.key),
            ),
            (
                *(scope.agent, milliseconds, int(force), scope.channel_trim, once.token),
                *(name, f"announced {name}" + (f": {remark}" if remark else ""), renews, remark),
            ),
            writes=True,
        )
        reply = yield step
        resent = resent or step.sendings > 1
        what, value, number, left, tail = (part.decode("utf-8", "replace") for part in reply)
        remaining = 0.0 if until is None else until - scope.monotonic()
        if what != "held" or remaining <= 0:
            if not resent:
                scope.free_slot(once, step)
            if waiting is not None:
                yield from waiting.end()
        if what == "over":
            raise hold_ended(name, renews, value)
        if what != "held":
            return what, value, int(number), seconds_left(left)
        if remaining <= 0:
            raise _held(name, value, renew)
        if waiting is None:
            from agentbus.coordination.waiters import Waiting

            waiting = Waiting(scope, [name], "free")
        yield from waiting.renew()
        expires = seconds_left(left)
        recheck = RECHECK if expires is None else min(RECHECK, expires + 0.001)
        yield Wait(keys.channel, tail, min(recheck, remaining))


def end(
    scope: Scope,
    flag: str,
    how: str,
    *,
    force: bool = False,
    token: int | None = None,
    note: str | None = None,
    kept: float = COMPLETION_KEPT,
) -> Op[tuple[str, int]]:
    """End a hold as `satisfied` or `failed`, with a record kept for `kept` seconds, or as `released`.

    Returns the agent and the time in the format of a flag's value, and the fencing token. With `token`,
    only the hold with this token is ended. Raises `NotHolder`.
    """
    name = names.name("flag", flag)
    remark = "" if note is None else names.body("note", note, scope.max_body)
    keys, once = scope.keys, scope.once()
    step = Script(
        "end_hold",
        (
            *_keys_of(scope, name),
            *(keys.channel, keys.agents, keys.topics, once.key),
        ),
        (
            *(scope.agent, how, int(force), "" if token is None else _token(token), remark),
            *(max(1, round(span("kept", kept))), scope.channel_trim, once.token, name),
            f"{how} {name}" + (f": {remark}" if remark else ""),
            scope.peers,
        ),
        writes=True,
    )
    reply = yield step
    scope.free_slot(once, step)
    if reply[0] != b"ended":
        value = reply[1].decode("utf-8", "replace") if reply[0] == b"held" else ""
        raise _not_held(scope.agent, name, value, token)
    return reply[1].decode("utf-8", "replace"), int(reply[2])


def holder(value: str) -> str:
    """Return the agent in a flag's value, `agent @ RFC3339`."""
    return value.rpartition(" @ ")[0] or value


def since(value: str) -> str:
    """Return the time in a flag's value, as written; '' if it has none."""
    agent, _, at = value.rpartition(" @ ")
    return at if agent else ""


def seconds_left(milliseconds: str) -> float | None:
    """Return the seconds in a PTTL reply; None for a key without a TTL."""
    left = int(milliseconds)
    return None if left < 0 else left / 1000


def milliseconds_of(ttl: float) -> int:
    """Return a TTL in milliseconds. Raises `UsageError`."""
    return max(1, round(span("ttl", ttl) * 1000))


def span(what: str, seconds: float) -> float:
    """Raise `UsageError` unless a number of seconds is above 0 and at most ten years; return it."""
    sound = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not sound or not 0 < seconds <= _LONGEST_TTL:
        from agentbus.core.errors import UsageError

        raise UsageError(f"{what} is {seconds!r}", hint="give seconds above 0, at most ten years")
    return seconds


def whose(value: str) -> str:
    """Describe the holder of a flag with this value."""
    at = since(value)
    return f"held by {names.word(holder(value))}" + (f" since {at}" if at else "")


def flag_keys(scope: Scope, flags: list[str]) -> list[str]:
    """Return the keys that the script `read_flags` reads."""
    return [
        scope.keys.channel,
        *(key for flag in flags for key in _keys_of(scope, flag)),
    ]


def _keys_of(scope: Scope, flag: str) -> tuple[str, ...]:
    keys = scope.keys
    return keys.flag(flag), keys.done(flag), keys.failed(flag), keys.fence(flag)


def split(value: str) -> tuple[str, float | None]:
    """Return the agent and the unix time in a flag's value; None if the time cannot be parsed."""
    from agentbus.core.timespec import parse_rfc3339

    agent, separator, at = value.rpartition(" @ ")
    return (agent, parse_rfc3339(at)) if separator else (value, None)


def completion(value: str) -> tuple[str, float | None, str, str]:
    """Return the agent, unix time, event id and note of a completion or a failure."""
    first, _, rest = value.partition("\n")
    event, _, rest = rest.partition("\n")
    _token, _, note = rest.partition("\n")
    return *split(first), event, note


def _held(name: str, value: str, renew: bool) -> AgentBusError:
    from agentbus.core.errors import FlagHeld

    word = names.shell_word(name)
    # announce() would renew this agent's own hold instead of waiting.
    turn, shell_turn = "wait=60", "--wait 60"
    if renew:
        turn = f"bus.announce({name!r}, wait=60)"
        shell_turn = f"'agentbus announce {word} --wait 60'"
    # Not by force: models do what hints say.
    return FlagHeld(
        f"the flag {name!r} is {whose(value)}",
        hint=f"wait with bus.await_({name!r}), or for your turn with {turn}",
        shell_hint=f"wait with 'agentbus await {word}', or for your turn with {shell_turn}",
    )


def _token(token: int) -> str:
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= _HIGHEST_TOKEN:
        from agentbus.core.errors import UsageError

        raise UsageError(f"the token is {token!r}", hint="give the number that announce returned")
    return str(token)


def hold_ended(name: str, token: object, value: str) -> AgentBusError:
    """Return the error for a hold that has ended, given the flag's present value ('' if it is free)."""
    from agentbus.core.errors import NotHolder

    return NotHolder(
        f"the hold of {name!r} with the token {token} is over"
        + (f"; {whose(value)}" if value else ""),
        hint="announce it again",
        shell_hint="announce it again, without the token",
    )


def _not_held(agent: str, name: str, value: str, token: int | None) -> AgentBusError:
    from agentbus.core.errors import NotHolder

    if value:
        return NotHolder(
            f"the flag {name!r} is not {names.word(agent)}'s: {whose(value)}",
            # Not by force: models do what hints say.
            hint="leave it to its holder",
        )
    if token is not None:
        return hold_ended(name, token, "")
    return NotHolder(
        f"{names.word(agent)} does not hold {name!r}",
        hint="bus.flags() returns who holds what",
        shell_hint="see 'agentbus list --flags'",
    )
