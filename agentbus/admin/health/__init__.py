"""Health checks: compares queues, workers, events and the server with thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.admin import server_health
from agentbus.admin.health import (
    events,
    foreign_keys,
    holds,
    queues,
    schedules,
    stuck,
    thresholds,
    worker_list,
)
from agentbus.admin.health.findings import Health, HealthFinding
from agentbus.admin.health.thresholds import CRITICAL
from agentbus.queues import policy
from agentbus.store.failures import or_empty

if TYPE_CHECKING:
    from agentbus.admin.health.thresholds import Thresholds
    from agentbus.core.settings import Settings
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

__all__ = ["Health", "HealthFinding", "examine"]


def examine(scope: Scope, settings: Settings) -> Op[Health]:
    """Check the project and its server against the configured thresholds.

    It only reads, in a bounded number of requests. Raises `ConfigError`.
    """
    levels, policies = thresholds.read(settings), policy.read(settings)
    findings = yield from _server(scope, levels, embedded=settings.url is None)
    findings += yield from foreign_keys.examine(scope)
    workers = yield from worker_list.listed(scope)
    of_queues, number, consumers = yield from or_empty(
        queues.examine(scope, levels, policies, workers), ([], 0, 0)
    )
    of_events, streams = yield from or_empty(events.examine(scope, levels), ([], 0))
    findings += of_queues + of_events
    findings += yield from or_empty(stuck.examine(scope, levels, policies, workers), [])
    findings += yield from or_empty(holds.examine(scope, levels), [])
    findings += yield from or_empty(schedules.examine(scope, levels), [])
    # The sort is stable: findings about the server, which may cause the others, stay first.
    findings.sort(key=lambda one: one.severity != CRITICAL)
    return Health(tuple(findings), number, consumers, workers.number, streams)


def _server(scope: Scope, levels: Thresholds, *, embedded: bool) -> Op[list[HealthFinding]]:
    info = yield from server_health.ask()
    examined = server_health.examine(info, levels.levels("memory"), levels.levels("replication"))
    examined.append((yield from server_health.clock(scope, levels.levels("clock"))))
    if embedded:
        examined.append(server_health.disk(sync=False))
    findings = []
    for vital in examined:
        if vital.severity is None or vital.remedy is None:
            continue
        check = "persistence" if vital.check == "snapshot" else vital.check
        severity = levels.severity(check, vital.severity) if check in _STATES else vital.severity
        if severity is not None:
            findings.append(
                HealthFinding(
                    *(check, _SUBJECTS.get(vital.check, "server"), severity),
                    *(vital.figure, vital.threshold),
                    f"{_SENTENCES.get(vital.check, '')}{vital.found}",
                    vital.remedy,
                )
            )
    return findings


# Checks without a figure; the config sets their severity.
_STATES = ("eviction", "persistence", "role")
_SUBJECTS = {"snapshot": "snapshots"}
_SENTENCES = {
    "eviction": "the server's eviction policy is ",
    "memory": "the server's memory: ",
    "clock": "the server's clock is ",
    "role": "the server is ",
}
