"""The health checks of all queues, their dead letters, the channel and the metrics stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentbus.admin import stats
from agentbus.admin.health.findings import HealthFinding, things
from agentbus.admin.health.queue_check import QueueCheck, too_long
from agentbus.admin.health.requests import Requests
from agentbus.admin.health.worker_list import WorkerList
from agentbus.admin.survey import Survey, surveyed
from agentbus.core.errors import ConfigError
from agentbus.queues.ids import STREAMS, bound_of
from agentbus.queues.policy import Policy
from agentbus.store.steps import Batch
from agentbus.workers.metrics import BOUND as METRICS_BOUND

if TYPE_CHECKING:
    from agentbus.admin.health.thresholds import Thresholds
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Maximum number of queues per check, which takes a second or less.
_MOST = 3_000


def examine(
    scope: Scope, thresholds: Thresholds, policies: Policies, workers: WorkerList
) -> Op[tuple[list[HealthFinding], int, int]]:
    """Return the findings of all queues, the number of queues, and the number of consumers."""
    names, letters = yield from stats.known_queues(scope)
    left_out = names[_MOST:]
    names = names[:_MOST]
    for queue in left_out:
        letters.pop(policies.letters_of(queue), None)
    requests, checks = Requests(), []
    seen: dict[str, set[str]] = {}
    for survey in (yield from surveyed(scope, names)):
        where = policies.letters_of(survey.queue)
        boxes = {*survey.groups, *letters.pop(where, ())}
        # Several queues may share dead letters; count them once.
        boxes -= seen.setdefault(where, set())
        seen[where] |= boxes
        policy = _policy(policies, survey.queue)
        check = QueueCheck(scope.keys, survey, policy, thresholds, workers)
        check.ask_letters(requests, where, boxes)
        check.ask()
        checks.append(check)
    yield from requests.run()
    findings = [one for check in checks for one in check.findings()]
    # Include dead letters of deleted queues, and those under a name that no policy sets any more.
    findings += yield from _strays(scope, thresholds, letters)
    findings += yield from _logs(scope, thresholds)
    if left_out:
        findings.append(_left_out(left_out, len(names)))
    queues = sum(check.exists for check in checks)
    return findings, queues, sum(check.consumers for check in checks)


def _left_out(names: Sequence[str], examined: int) -> HealthFinding:
    return HealthFinding(
        *("left_out", "queues", "warning", len(names), examined),
        f"only the first {examined:,} queues were examined; {things(len(names), 'queue')} from"
        f" {names[0]} on: left out",
        "see 'agentbus bus stats QUEUE' for one of them",
    )


def _policy(policies: Policies, queue: str) -> Policy:
    try:
        return policies.policy_of(queue)
    except ConfigError:
        # Another program created this queue, with a name that is invalid here.
        return Policy(queue, bound=bound_of(queue), dead_letters=queue)


def _strays(
    scope: Scope, thresholds: Thresholds, letters: Mapping[str, Iterable[str]]
) -> Op[list[HealthFinding]]:
    requests = Requests()
    checks = []
    for where, groups in letters.items():
        nothing = Survey(where, 0.0, [(-1, b"", [])] * len(STREAMS))
        check = QueueCheck(scope.keys, nothing, Policy(where), thresholds, WorkerList((), {}))
        check.ask_letters(requests, where, groups)
        checks.append(check)
    yield from requests.run()
    return [finding for check in checks for finding in check.dead_letters()]


def _logs(scope: Scope, thresholds: Thresholds) -> Op[list[HealthFinding]]:
    """Check streams that the bus trims at every append, as other programs may not."""
    keys = scope.keys
    bounds: list[tuple[str, str, int]] = [
        ("channel", keys.channel, scope.channel_bound),
        ("metrics", keys.metrics, METRICS_BOUND),
    ]
    lengths: list[Any] = yield Batch([("XLEN", key) for _, key, _ in bounds])
    levels = thresholds.levels("stream_length")
    findings: list[HealthFinding] = []
    for (name, key, bound), length in zip(bounds, lengths, strict=True):
        if isinstance(length, int):
            # Not by XTRIM: what is read by then is not known.
            remedy = f"a program appends without a bound: let its XADD have MAXLEN '~' {bound}"
            findings += too_long(name, f"the stream {key}", length, bound, levels, remedy)
    return findings
