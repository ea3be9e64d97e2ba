"""Tokens of agents elsewhere, which use the tools over HTTP: each names its agent, a scope and an end.

The server keeps a digest of each. No secret is short enough to be guessed from it: `create` chooses them.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.agents.tools import SCOPES
from agentbus.core import names
from agentbus.core.errors import InvalidName, NotFound, Refused, UsageError
from agentbus.core.json_text import from_json, to_json
from agentbus.core.validate import is_seconds
from agentbus.store.failures import or_empty
from agentbus.store.scope import server_time
from agentbus.store.steps import Batch, Command, one_step

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Seconds for which a token is valid, by default and at most.
TTL, _LONGEST = 43_200.0, 366 * 86_400.0
# Programs that search texts for secrets know them by such a prefix.
_PREFIX = "agentbus_"


@dataclass(frozen=True, slots=True)
class AgentToken:
    """The rights of a token: the tools of `scope` as `agent`, from `since` to `until` (unix times)."""

    agent: str
    scope: str
    since: float
    until: float


def create(scope: Scope, agent: str, allowed: str, ttl: float = TTL) -> Op[tuple[str, AgentToken]]:
    """Create a token, and return it with what it allows. It is stored nowhere.

    Raises `Refused` if the agent has a token: two sessions of one name would take each other's messages.
    """
    _check(agent)
    if allowed not in SCOPES:
        raise UsageError(f"the scope is {allowed!a}", hint=f"use one of {', '.join(SCOPES)}")
    if not is_seconds(ttl) or not 1 <= ttl <= _LONGEST:
        raise UsageError(f"ttl is {ttl!r}", hint="give seconds from 1, at most a year")
    now = yield from server_time(scope)
    known = yield from _read(scope)
    over = [digest for digest, old in known.items() if old.until <= now]
    for digest, old in known.items():
        if old.agent == agent and digest not in over:
            raise Refused(
                f"{agent!a} has a token already",
                hint="choose another name for another session, or revoke that token first",
                shell_hint=f"choose another name for another session, or end that token:"
                f" agentbus token revoke {names.shell_word(agent)}",
            )
    secret = _PREFIX + secrets.token_urlsafe(32)
    token = AgentToken(agent, allowed, now, now + ttl)
    record = {"agent": agent, "scope": allowed, "since": now, "until": token.until}
    if over:
        yield Command("HDEL", scope.keys.tokens, *over)
    yield Command("HSET", scope.keys.tokens, _digest(secret), to_json(record))
    last = max(token.until, *(old.until for old in known.values()), now)
    yield Command("EXPIRE", scope.keys.tokens, math.ceil(last - now) + 1)
    return secret, token


def valid(scope: Scope) -> Op[list[AgentToken]]:
    """Return what the valid tokens allow, the newest first."""
    now = yield from server_time(scope)
    known = yield from _read(scope)
    return sorted(
        (token for token in known.values() if token.until > now), key=lambda token: -token.since
    )


def revoke(scope: Scope, agent: str) -> Op[None]:
    """End the token of an agent. Raises `NotFound` if it has none."""
    known = yield from _read(scope)
    own = [digest for digest, token in known.items() if token.agent == agent]
    if not own or not (yield Command("HDEL", scope.keys.tokens, *own)):
        raise NotFound(
            f"{agent!a} has no token",
            hint="name the agent as the list of tokens does",
            shell_hint="see 'agentbus token list'",
        )


def find(scope: Scope, secret: str) -> Op[AgentToken | None]:
    """Return what a token allows; None if it is not valid."""
    time, stored = yield Batch([("TIME",), ("HGET", scope.keys.tokens, _digest(secret))])
    token = _token(stored) if isinstance(stored, bytes) else None
    return token if token is not None and token.until > int(time[0]) + int(time[1]) / 1e6 else None


def _read(scope: Scope) -> Op[dict[str, AgentToken]]:
    """Return the tokens by digest; a record of another form is left out."""
    flat = yield from or_empty(one_step(Command("HGETALL", scope.keys.tokens)), [])
    tokens = {
        key.decode(): _token(stored) for key, stored in zip(flat[::2], flat[1::2], strict=True)
    }
    return {digest: token for digest, token in tokens.items() if token is not None}


def _token(stored: bytes) -> AgentToken | None:
    try:
        record = from_json(stored.decode())
        token = AgentToken(*(record[name] for name in AgentToken.__match_args__))
        _check(token.agent)
    except (ValueError, TypeError, KeyError, InvalidName):
        return None
    times = is_seconds(token.since) and is_seconds(token.until)
    return token if times and token.scope in SCOPES else None


def _check(agent: str) -> None:
    """Raise `InvalidName` for a name that no agent elsewhere may have."""
    name = names.name("agent", agent).lower()
    if name in names.RESERVED or name.startswith("human:"):
        raise InvalidName(
            f"the name {agent!a} is not for an agent", hint="choose another one, such as 'ci-cloud'"
        )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
