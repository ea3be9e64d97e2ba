"""Surveys of the queues that a view shows; of many queues, only those that changed are surveyed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.admin.survey import surveyed
from agentbus.queues.ids import STREAMS
from agentbus.workers.registry import in_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.admin.survey import Survey
    from agentbus.dashboard.ranking import QueueSummary
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Seconds for which a survey is used: a summary does not show when consumers were last heard.
_KEPT = 5.0


class Surveys:
    """The surveys of queues whose summaries are known."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        # By queue: its summary, how many of its held tasks wait for a retry, and its survey.
        self._known: dict[str, tuple[QueueSummary, list[object], Survey]] = {}

    def read(self, chosen: Sequence[QueueSummary], now: float, *, reuse: bool) -> Op[list[Survey]]:
        """Return the surveys at the server's time `now`, with `reuse` those that are known if they hold."""
        aside = (yield from self._aside(chosen)) if reuse else {}
        fit = {one.queue for one in chosen if reuse and self._holds(one, aside, now)}
        asked = [one.queue for one in chosen if one.queue not in fit]
        fresh = {one.queue: one for one in (yield from surveyed(self._scope, asked))}
        found = []
        for one in chosen:
            survey = fresh.get(one.queue)
            found.append(survey or self._known[one.queue][2].later(now))
            if survey is not None:
                self._known[one.queue] = one, aside.get(one.queue, []), survey
        # Of all lists that are looked at, each with its rows.
        self._known = {queue: one for queue, one in self._known.items() if now - one[2].now < _KEPT}
        return found

    def _aside(self, chosen: Sequence[QueueSummary]) -> Op[dict[str, list[object]]]:
        """Return how many tasks of each group and stream wait for a retry, of queues with held tasks.

        Of those, the summary does not change when a task that is held becomes one that is retried. To
        count them costs the server a tenth of a survey.
        """
        holding = {
            one.queue: [
                self._scope.keys.retries(one.queue, group.group, stream)
                for group in one.groups
                if group.held and group.group is not None
                for stream in STREAMS
            ]
            for one in chosen
        }
        keys = [key for each in holding.values() for key in each]
        counts = iter((yield from in_batches([("ZCARD", key) for key in keys])))
        return {queue: [next(counts) for _ in each] for queue, each in holding.items()}

    def _holds(self, one: QueueSummary, aside: dict[str, list[object]], now: float) -> bool:
        """Return whether a queue is as it was surveyed: the same summary, and as many tasks to retry."""
        summary, counts, survey = self._known.get(one.queue, (None, [], None))
        return (
            survey is not None
            and summary is one
            and now - survey.now < _KEPT
            and counts == aside[one.queue]
        )
