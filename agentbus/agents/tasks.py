"""The tasks that a session holds by hand: renewed while it runs, and given back at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.client import task_tokens
from agentbus.client.bus import Bus
from agentbus.core.errors import AgentBusError
from agentbus.queues.by_hand import VISIBILITY

if TYPE_CHECKING:
    from agentbus.agents.event import Event
    from agentbus.client.task_tokens import TaskToken


def renew(event: Event) -> float:
    """Renew the session's tasks, and return their shortest visibility in seconds."""
    kept = _kept(event)
    if not kept:
        return VISIBILITY
    with Bus(event.settings) as bus:
        for token in kept:
            try:
                bus.renew(token.task_id, token.token, token.visibility, group=token.group)
            except AgentBusError:
                # Another agent has the task, or it was cancelled; settling it will report that.
                continue
    return min(token.visibility for token in kept)


def give_back(event: Event) -> None:
    """Give back the tasks that the event's session holds."""
    kept = _kept(event)
    if not kept:
        return
    with Bus(event.settings) as bus:
        for token in kept:
            try:
                bus.settle(
                    *(token.task_id, token.token, "retry"),
                    error="the session that held it has ended",
                    after=0,
                    group=token.group,
                )
            except AgentBusError:
                # The task was settled before, or another agent has it.
                continue
            task_tokens.drop(token)


def _kept(event: Event) -> list[TaskToken]:
    event.settings.deadline = 2.0
    return task_tokens.all_kept(event.scope.keys.project, event.scope.agent)
