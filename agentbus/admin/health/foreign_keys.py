"""The health check of the project's own records: a key of another type was written by another program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.admin.health.findings import HealthFinding
from agentbus.core import names
from agentbus.core.stream import text
from agentbus.store.steps import Batch

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


def examine(scope: Scope) -> Op[list[HealthFinding]]:
    """Return a critical finding for each record that has another type than the bus gives it."""
    keys = scope.keys
    types = {
        keys.client_sessions: "hash",
        **dict.fromkeys(
            (keys.channel, keys.metrics, keys.lease_bell, keys.schedule_bell), "stream"
        ),
        **dict.fromkeys((keys.paused, keys.heard, keys.settled, keys.quarantined), "hash"),
        **dict.fromkeys((keys.beats, keys.queues, keys.agents, keys.topics, keys.jots), "zset"),
        **dict.fromkeys((keys.sessions, keys.waiting, keys.triggers, keys.schedules), "zset"),
        **dict.fromkeys((keys.leases, keys.leases_refused), "hash"),
        keys.lease_fence: "string",
    }
    replies = yield Batch([("TYPE", key) for key in types])
    findings = []
    for (key, wanted), reply in zip(types.items(), replies, strict=True):
        # A user whose rules do not allow TYPE gets the other checks.
        kind = wanted if isinstance(reply, Exception) else text(reply)
        if kind not in (wanted, "none"):
            findings.append(
                HealthFinding(
                    *("foreign_key", key, "critical", None, None),
                    f"the key {key!r} is a {kind}, and should be a {wanted}: another program wrote it",
                    f"find that program, then: redis-cli DEL {names.shell_word(key)}",
                )
            )
    return findings
