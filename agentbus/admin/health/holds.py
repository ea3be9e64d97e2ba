"""The health check of flags: holds without a TTL whose holder is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.admin.health.findings import HealthFinding, span
from agentbus.admin.health.thresholds import WARNING
from agentbus.coordination import flags
from agentbus.core.shell_command import command
from agentbus.core.stream import text
from agentbus.store import sessions
from agentbus.store.failures import or_empty
from agentbus.store.steps import Batch, Script, one_step

if TYPE_CHECKING:
    from agentbus.admin.health.thresholds import Thresholds
    from agentbus.coordination.flags import FlagState
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Seconds of silence after which an agent is taken for gone, unless a session that uses its name lives.
_SILENT = 3600.0
_PAGE = 100


@dataclass(frozen=True, slots=True)
class LeftHold:
    """A hold without a TTL whose holder is gone.

    `silent` is the seconds since the holder was last seen, None if it never was. `ended` is true if the
    holder was named after a session, and that is over.
    """

    flag: str
    agent_id: str
    silent: float | None
    ended: bool

    @property
    def found(self) -> str:
        """The finding as a sentence for people."""
        seen = "never seen" if self.silent is None else f"last seen {span(self.silent)} ago"
        return (
            f"the flag {self.flag!r} has no TTL, and its holder {self.agent_id!r} is gone ({seen})"
        )

    @property
    def remedy(self) -> str:
        """The remedy as a shell command."""
        release = command("agentbus release --force", self.flag)
        if not self.ended:
            release = f"make sure that the holder does not work any more, then: {release}"
        return f"{release}; next time use 'hold', or announce with --ttl"


def examine(scope: Scope, thresholds: Thresholds) -> Op[list[HealthFinding]]:
    """Return a finding for each hold whose holder is gone."""
    severity = thresholds.severity("holder_gone", WARNING)
    if severity is None:
        return []
    return [
        HealthFinding("holder_gone", one.flag, severity, None, None, one.found, one.remedy)
        for one in (yield from left(scope))
    ]


def left(scope: Scope) -> Op[list[LeftHold]]:
    """Return the holds without a TTL whose holder is gone, ordered by flag.

    A holder that was named after a session of this host is gone with it. Any other one is gone after an
    hour in which it was not seen, unless a session that uses its name lives.
    """
    endless = yield from _endless(scope)
    if not endless:
        return []
    names = sorted({str(hold.agent_id) for hold in endless})
    scores = yield Batch([("ZSCORE", scope.keys.agents, name) for name in names])
    seen = {
        name: float(text(score))
        for name, score in zip(names, scores, strict=True)
        if isinstance(score, bytes)
    }
    known: dict[str, list[tuple[str, int, float]]] = {}
    now, records = yield from sessions.records_now(scope)
    for agent, host, number, at in records:
        known.setdefault(agent, []).append((host, number, at))
    holds = list(_left(endless, seen, known, now))
    if all(hold.ended for hold in holds):
        return holds
    # The bus does not record a program that writes the channel itself.
    since = round(max(0.0, now - _SILENT) * 1000)
    reply = yield from or_empty(
        one_step(Script("read_speakers", (scope.keys.channel,), (since,))), []
    )
    speakers = {*map(text, reply)}
    return [hold for hold in holds if hold.ended or hold.agent_id not in speakers]


def _endless(scope: Scope) -> Op[list[FlagState]]:
    held = yield from flags.named(scope, "flag")
    endless: list[FlagState] = []
    for at in range(0, len(held), _PAGE):
        _, states = yield from flags.look(scope, held[at : at + _PAGE])
        endless += (one for one in states if one.state == "held" and one.ttl is None)
    return endless


def _left(
    endless: list[FlagState],
    seen: dict[str, float],
    known: dict[str, list[tuple[str, int, float]]],
    now: float,
) -> Iterator[LeftHold]:
    here = os.uname().nodename
    for hold in endless:
        agent = str(hold.agent_id)
        records = known.get(agent, [])
        last = max((hold.timestamp or 0.0, seen.get(agent, 0.0), *(at for _, _, at in records)))
        silent = max(0.0, now - last)
        lives = any(sessions.lives(host, number, now - at, _SILENT) for host, number, at in records)
        # Only such a name is that of one session; any other may be used by many, one after the other.
        own = any(agent.endswith(f"@{here}~{number}") for _, number, _ in records)
        if not lives and (own or silent >= _SILENT):
            yield LeftHold(hold.flag, agent, silent if last else None, own)
