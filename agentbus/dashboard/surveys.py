"""Surveys of the queues that a view shows; of many queues, only those that changed are surveyed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.admin.survey import surveyed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.admin.survey import Survey
    from agentbus.dashboard.ranking import QueueSummary
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Seconds for which a survey is used: a summary does not show when consumers were last heard.
_KEPT = 3.0


class Surveys:
    """The surveys of queues whose summaries are known."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._known: dict[str, tuple[QueueSummary, Survey]] = {}

    def read(self, chosen: Sequence[QueueSummary], now: float, *, reuse: bool) -> Op[list[Survey]]:
        """Return the surveys at the server's time `now`, with `reuse` those that are known if they hold."""
        fit = {one.queue for one in chosen if reuse and self._holds(one, now)}
        asked = [one.queue for one in chosen if one.queue not in fit]
        fresh = {one.queue: one for one in (yield from surveyed(self._scope, asked))}
        found = []
        for one in chosen:
            survey = fresh.get(one.queue)
            found.append(survey or self._known[one.queue][1].later(now))
            if survey is not None:
                self._known[one.queue] = one, survey
        if len(self._known) > 2 * len(chosen):
            self._known = {one.queue: self._known[one.queue] for one in chosen}
        return found

    def _holds(self, one: QueueSummary, now: float) -> bool:
        """Return whether a queue is as it was surveyed: the same summary, and no task that is held.

        A task that is held may become one that is retried, without a change of the summary.
        """
        summary, survey = self._known.get(one.queue, (None, None))
        return (
            survey is not None
            and summary is one
            and now - survey.now < _KEPT
            and not any(group.held for group in one.groups)
        )
