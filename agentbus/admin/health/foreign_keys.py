"""The health check of key types: a key of a wrong type was written by another program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentbus.admin.health.findings import HealthFinding
from agentbus.admin.project import MANY_KEYS
from agentbus.core.key_types import spoilt
from agentbus.core.shell_command import typed
from agentbus.core.stream import text
from agentbus.store.scan import key_bytes, scan
from agentbus.store.steps import Batch, Command

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_AT_ONCE = 500


def examine(scope: Scope) -> Op[list[HealthFinding]]:
    """Return a critical finding for each key whose type is not the one that the bus uses."""
    keys = scope.keys
    records = (
        *(keys.client_sessions, keys.channel, keys.metrics, keys.lease_bell, keys.schedule_bell),
        *(
            keys.paused,
            keys.heard,
            keys.settled,
            keys.quarantined,
            keys.beats,
            keys.queues,
            keys.agents,
        ),
        *(keys.topics, keys.jots, keys.sessions, keys.waiting, keys.triggers, keys.schedules),
        *(keys.leases, keys.leases_refused, keys.lease_fence),
        # This agent's own.
        *(keys.cursor(scope.agent), keys.inbox(scope.agent), keys.inbox_at(scope.agent)),
    )
    return (yield from _examine(records))


def examine_all(scope: Scope) -> Op[list[HealthFinding]]:
    """Return a finding for each key of the project that has another type.

    On a server with more than 100,000 keys, only the records that each project has are examined.
    """
    if int((yield Command("DBSIZE"))) > MANY_KEYS:
        return (yield from examine(scope))
    known = yield from scan(scope, None)
    own_keys = sorted(key for key in known if scope.keys.kind(key) is not None)
    findings: list[HealthFinding] = []
    for at in range(0, len(own_keys), _AT_ONCE):
        findings += yield from _examine(own_keys[at : at + _AT_ONCE])
    return findings


def _examine(keys: Sequence[str]) -> Op[list[HealthFinding]]:
    replies = yield Batch([("TYPE", key_bytes(key)) for key in keys])
    findings = []
    for key, reply in zip(keys, replies, strict=True):
        # Without permission to call TYPE, skip this check and run the others.
        if not isinstance(reply, Exception) and (said := spoilt(key, text(reply))):
            findings.append(
                HealthFinding(
                    *("foreign_key", key, "critical", None, None, said),
                    f"find that program, then: redis-cli DEL {typed(key)}",
                )
            )
    return findings
