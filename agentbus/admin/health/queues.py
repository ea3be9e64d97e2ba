"""Finds what is not well with queues: what piles up, what is held too long, and what nobody works on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.admin import stats
from agentbus.admin.health.cases import Case, Questions, too_long
from agentbus.admin.project import MANY_KEYS
from agentbus.core.errors import ConfigError
from agentbus.core.names import unescape
from agentbus.core.stream import text
from agentbus.queues.ids import PRIORITIES, bound_of
from agentbus.queues.policy import Policy
from agentbus.store.scan import scan
from agentbus.store.steps import Batch
from agentbus.workers.metrics import BOUND as METRICS_BOUND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentbus.admin.health.crew import Crew
    from agentbus.admin.health.findings import HealthFinding
    from agentbus.admin.health.thresholds import Thresholds
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# So many queues are surveyed in one request, in one script: about 5 ms of the server's time.
_PAGE = 50
_SCANNED = 10_000


def examine(
    scope: Scope, thresholds: Thresholds, policies: Policies, crew: Crew
) -> Op[tuple[list[HealthFinding], int, int]]:
    """Return what is not well with the project's queues, how many there are, and their consumers."""
    names, letters = yield from _known(scope)
    questions, cases = Questions(), []
    seen: dict[str, set[str]] = {}
    for at in range(0, len(names), _PAGE):
        for survey in (yield from stats.surveyed(scope, names[at : at + _PAGE])):
            where = policies.letters_of(survey.queue)
            boxes = {*survey.groups, *letters.pop(where, ())}
            # Several queues may have their letters in one place.
            boxes -= seen.setdefault(where, set())
            seen[where] |= boxes
            case = Case(scope.keys, survey, _policy(policies, survey.queue), thresholds, crew)
            case.ask(questions, where, boxes)
            cases.append(case)
    yield from questions.run()
    found = [one for case in cases for one in case.findings()]
    # Letters of queues that are gone, or that lie under a name which no policy gives any more.
    found += yield from _strays(scope, thresholds, letters)
    found += yield from _logs(scope, thresholds)
    queues = sum(case.exists for case in cases)
    return found, queues, sum(case.consumers for case in cases)


def _policy(policies: Policies, queue: str) -> Policy:
    try:
        return policies.policy_of(queue)
    except ConfigError:
        # Another program has named it so that no worker of ours can take from it.
        return Policy(queue, bound=bound_of(queue), dead_letters=queue)


def _known(scope: Scope) -> Op[tuple[list[str], dict[str, set[str]]]]:
    """Return the queues, and the groups that have dead letters by the name that they lie under.

    What only other programs fill is among them, unless it takes too long to find.
    """
    keys = scope.keys
    listed, size = yield Batch([("ZRANGE", keys.queues, 0, -1), ("DBSIZE",)])
    queues = {text(name) for name in listed} if isinstance(listed, list) else set()
    letters: dict[str, set[str]] = {}
    if not isinstance(size, int) or size > MANY_KEYS:
        return sorted(queues), letters
    for key in (yield from scan(scope, None, of="stream", count=_SCANNED)):
        kind, _, rest = key[len(keys.project) + 1 :].partition(":")
        name, colon, last = rest.partition(":")
        # Keys that are no text are another program's; more parts are no stream of ours.
        if ":" in last or not stats.is_text(key):
            continue
        if kind == "q":
            queues.add(unescape(name))
        elif kind == "dlq" and colon:
            letters.setdefault(unescape(name), set()).add(unescape(last))
    return sorted(queues), letters


def _strays(
    scope: Scope, thresholds: Thresholds, letters: Mapping[str, Iterable[str]]
) -> Op[list[HealthFinding]]:
    questions = Questions()
    cases = []
    for where, groups in letters.items():
        nothing = stats.Survey(where, 0.0, [(-1, b"", [])] * len(PRIORITIES))
        case = Case(scope.keys, nothing, None, thresholds, None)
        case.ask(questions, where, groups)
        cases.append(case)
    yield from questions.run()
    return [found for case in cases for found in case.dead_letters()]


def _logs(scope: Scope, thresholds: Thresholds) -> Op[list[HealthFinding]]:
    """Look at the streams that are trimmed by whoever appends to them: programs of others may not."""
    keys = scope.keys
    bounds: list[tuple[str, str, int]] = [
        ("channel", keys.channel, scope.channel_bound),
        ("metrics", keys.metrics, METRICS_BOUND),
    ]
    lengths: list[Any] = yield Batch([("XLEN", key) for _, key, _ in bounds])
    levels = thresholds.levels("stream_length")
    found: list[HealthFinding] = []
    for (name, key, bound), length in zip(bounds, lengths, strict=True):
        if isinstance(length, int):
            remedy = f"a program appends without a bound: redis-cli XTRIM {key} MAXLEN '~' {bound}"
            found += too_long(name, f"the stream {key}", length, bound, levels, remedy)
    return found
