"""Surveys the queues of a view; if there are many, only those that changed."""

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

# Seconds for which a survey is reused: a summary does not show when consumers were last active.
_KEPT = 5.0


class Surveys:
    """The surveys of queues that have a summary."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        # By queue: its summary, the number of held tasks that wait for a retry, and its survey.
        self._known: dict[str, tuple[QueueSummary, list[object], Survey]] = {}

    def read(self, chosen: Sequence[QueueSummary], now: float, *, reuse: bool) -> Op[list[Survey]]:
        """Return the surveys at the server's time `now`; with `reuse`, keep surveys still valid."""
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
        # Keep the recent surveys of all lists, each of which shows other rows.
        self._known = {queue: one for queue, one in self._known.items() if now - one[2].now < _KEPT}
        return found

    def _aside(self, chosen: Sequence[QueueSummary]) -> Op[dict[str, list[object]]]:
        """Return the numbers of tasks that wait for a retry, by group and stream of the queues.

        The summary of a queue with held tasks does not change when a held task becomes a retry.
        Counting retries costs the server a tenth of a survey.
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
        """Return whether a survey is valid: the summary and the number of retries are the same."""
        summary, counts, survey = self._known.get(one.queue, (None, [], None))
        return (
            survey is not None
            and summary is one
            and now - survey.now < _KEPT
            and counts == aside[one.queue]
        )
