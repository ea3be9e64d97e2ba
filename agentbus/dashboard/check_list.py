"""Lists every health check with its thresholds, its findings, or the worst value without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.admin import server_health, stats
from agentbus.admin.health import events, thresholds
from agentbus.admin.health.thresholds import CRITICAL, WARNING
from agentbus.core import names
from agentbus.dashboard import ranking

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentbus.admin.health import Health, HealthFinding
    from agentbus.admin.health.thresholds import Thresholds
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_OFF, _PASSED = "off", "ok"


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A health check: `state` is `ok`, `warning`, `critical`, or `off` if the config turned it off.

    A figure in `unit` above `warning` or `critical` is a finding; a limit may be None, and both are
    None for a check of a state. `value` describes the figure if nothing is wrong, '' if it is not
    measured. The config may set other thresholds for single queues.
    """

    check: str
    about: str
    unit: str
    warning: float | None
    critical: float | None
    state: str
    value: str
    findings: tuple[HealthFinding, ...]


@dataclass(frozen=True, slots=True)
class HealthChecks:
    """The checks, those with findings first, and the result of `health`."""

    checks: tuple[HealthCheck, ...]
    health: Health


# The subject of each check, and the unit of its figure.
ABOUT = {
    "stream_length": ("entries of a queue, the channel or the metrics", "times its bound"),
    "pending": ("tasks that one consumer holds", "tasks"),
    "idle": ("tasks that are held without a heartbeat", "seconds"),
    "lag": ("tasks of a group that wait to be delivered", "tasks"),
    "starving": ("the oldest task that nobody takes", "seconds"),
    "no_worker": ("tasks of a group without a live worker", "tasks"),
    "dead_letters": ("dead letters of a group", "dead letters"),
    "dead_worker": ("tasks that a dead worker holds", "tasks"),
    "lag_ms": ("the oldest event that is not handled", "ms"),
    "lag_events": ("events that are not handled", "events"),
    "unknown_events": ("events of a type without a schema, in 5 minutes", "events"),
    "silent": ("a relay or consumer that reports nothing and has events left", "seconds"),
    "memory": ("memory of the server", "of its limit"),
    "clock": ("the server's clock beside this host's", "seconds"),
    "replication": ("replicas behind the server", "seconds"),
    "overdue": ("a schedule that no scheduler publishes", "seconds"),
    "full": ("queues that have reached their bound", ""),
    "stuck": ("tasks that run for much longer than is usual", "seconds"),
    "holder_gone": ("flags without a TTL whose holder is gone", ""),
    "quarantined": ("consumers of events in quarantine", ""),
    "eviction": ("the server's eviction policy", ""),
    "persistence": ("what the server keeps on disk", ""),
    "role": ("whether the server accepts writes", ""),
    "disk": ("the disk of the embedded server", ""),
    "foreign_key": ("keys of another type, which another program wrote", ""),
    "left_out": ("queues beyond those that are examined", ""),
    "server": ("what the server says about itself", ""),
}


def checks(found: Health, levels: Thresholds, values: Mapping[str, str]) -> HealthChecks:
    """Return every check: those with findings first, then as the config lists them.

    `found` is the result of the checks, `values` that of `worst_values`.
    """
    named = dict.fromkeys((*thresholds.CHECKS, *(one.check for one in found.findings)))
    listed = [_check(check, found, levels, values.get(check, "")) for check in named]
    order = (CRITICAL, WARNING, _PASSED, _OFF)
    listed.sort(key=lambda one: order.index(one.state))
    return HealthChecks(tuple(listed), found)


def _check(check: str, found: Health, levels: Thresholds, value: str) -> HealthCheck:
    mine = tuple(one for one in found.findings if one.check == check)
    limits: tuple[float | None, float | None] = (None, None)
    if check in thresholds.FIGURES:
        of_check = levels.levels(check)
        limits = of_check.warning, of_check.critical
        off = not of_check.wanted
    else:
        off = levels.severity(check, WARNING) is None
    worst = CRITICAL if any(one.severity == CRITICAL for one in mine) else WARNING
    state = worst if mine else _OFF if off else _PASSED
    about, unit = ABOUT.get(check, ("", ""))
    return HealthCheck(check, about, unit, *limits, state, "" if mine else value, mine)


def worst_values(
    scope: Scope, levels: Thresholds, letters_of: Callable[[str], str]
) -> Op[dict[str, str]]:
    """Return the worst values of checks without findings, in words."""
    info = yield from server_health.ask()
    memory, replication = levels.levels("memory"), levels.levels("replication")
    examined = server_health.examine(info, memory, replication)
    examined.append((yield from server_health.clock(scope, levels.levels("clock"))))
    found = {one.check: one.found for one in examined if one.severity is None}
    _, reported = yield from events.reports(scope)
    late = max((one.lag_ms or 0 for one in reported), default=0)
    left = max((one.lag_events or 0 for one in reported), default=0)
    if reported:
        found |= {"lag_ms": f"at most {late:,} ms", "lag_events": f"at most {left:,} events"}
    queues, _ = yield from stats.known_queues(scope)
    _, summed = yield from ranking.summaries(scope, queues, letters_of)
    groups = [(group, one.queue) for one in summed for group in one.groups]
    for check, unit in (("lag", "backlog"), ("dead_letters", "dead")):
        most, queue = max(((getattr(one, unit), name) for one, name in groups), default=(0, ""))
        found[check] = f"at most {most:,}, in {names.word(queue)}" if most else "none"
    return found
