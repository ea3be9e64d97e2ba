"""The health check of running tasks: those that run for much longer than is usual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.admin import metrics_reader
from agentbus.admin.health.findings import HealthFinding, span, things
from agentbus.admin.health.thresholds import WARNING
from agentbus.core.shell_command import command, typed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.admin.health.thresholds import Thresholds
    from agentbus.admin.health.worker_list import WorkerList
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.registry import Registered

# Without `expect` in the policy, a task is stuck that runs for longer than a minute and ten times the
# 99th percentile, if there were at least 100 runs.
_LEAST, _TIMES, _RUNS = 60.0, 10, 100
# Maximum samples of the metrics stream to read, and how far back, in ms.
_SAMPLES, _BACK = 2000, 3_600_000


def examine(
    scope: Scope, thresholds: Thresholds, policies: Policies, workers: WorkerList
) -> Op[list[HealthFinding]]:
    """Return a finding for each queue and group with tasks that run for too long."""
    groups: dict[tuple[str, str], list[Registered]] = {}
    for worker in workers.workers:
        if worker.alive and worker.began:
            groups.setdefault((worker.queue, worker.group), []).append(worker)
    usual: dict[tuple[str, str], float] | None = None
    findings = []
    for (queue, group), running in sorted(groups.items()):
        severity = thresholds.severity("stuck", WARNING, queue)
        expected = policies.expected_of(queue)
        if severity is None:
            continue
        if expected is not None:
            limit, why = expected, f"the policy of the queue expects {span(expected)}"
        elif max(worker.running_for or 0.0 for worker in running) <= _LEAST:
            continue
        else:
            if usual is None:
                usual = yield from _usual(scope, max(worker.seen for worker in running))
            p99 = usual.get((queue, group))
            if p99 is None:
                continue
            limit, why = max(_LEAST, _TIMES * p99), f"99 % of its runs took less than {span(p99)}"
        findings += _finding(queue, group, running, limit, why, severity)
    return findings


def _usual(scope: Scope, now: float) -> Op[dict[tuple[str, str], float]]:
    """Return the 99th percentile of runs by queue and group, where there were enough runs."""
    start = f"{max(0, round(now * 1000) - _BACK)}-0"
    samples = yield from metrics_reader.recent(scope, start, most=_SAMPLES)
    return {
        (figures.queue, figures.group or ""): figures.running.p99
        for figures in metrics_reader.summed(samples, 1.0)
        if figures.running is not None and figures.running.count >= _RUNS
    }


def _finding(
    queue: str, group: str, running: Sequence[Registered], limit: float, why: str, severity: str
) -> list[HealthFinding]:
    stuck = sorted(
        (worker.seen - at, task, worker.worker)
        for worker in running
        for task, at in worker.began.items()
        if worker.seen - at > limit
    )
    if not stuck:
        return []
    seconds, task, worker_name = stuck[-1]
    more = "" if len(stuck) == 1 else f", and {things(len(stuck) - 1, 'other task')} for too long"
    whose = "" if group == "default" else f" --group {typed(group)}"
    cancel = command("agentbus task cancel", task)
    return [
        HealthFinding(
            *("stuck", f"{queue}/{group}", severity, round(seconds, 3), round(limit, 3)),
            f"the task {task!r} has run for {span(seconds)} with {worker_name!r}{more}; {why}",
            f"{command('agentbus task show', task, whose)}; then {cancel}, or set 'expect' in the queue's"
            " policy",
        )
    ]
