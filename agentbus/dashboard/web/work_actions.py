"""Actions of the pages about schedules, flows and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core.names import word
from agentbus.dashboard.web.forms import field
from agentbus.tasks.flows import Flows
from agentbus.tasks.limits import Limits
from agentbus.tasks.schedules import Schedules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.client.aio import AsyncBus
    from agentbus.dashboard.web.forms import WebAction


async def _pause(bus: AsyncBus, form: Mapping[str, str]) -> str:
    state = await Schedules(bus).pause(field(form, "schedule"))
    return f"schedule {word(state.name)} paused"


async def _resume(bus: AsyncBus, form: Mapping[str, str]) -> str:
    state = await Schedules(bus).resume(field(form, "schedule"))
    return f"schedule {word(state.name)} resumed"


async def _trigger(bus: AsyncBus, form: Mapping[str, str]) -> str:
    name = field(form, "schedule")
    task = await Schedules(bus).trigger(name)
    return f"schedule {word(name)} triggered: task {task} published"


async def _cancel_flow(bus: AsyncBus, form: Mapping[str, str]) -> str:
    flow = await Flows(bus).cancel(field(form, "flow"))
    return f"flow {word(flow.id)} {flow.state.replace('_', ' ')}: open tasks cancelled"


async def _replay_flow(bus: AsyncBus, form: Mapping[str, str]) -> str:
    flow = await Flows(bus).replay(field(form, "flow"))
    return f"flow {word(flow.id)} replayed, run {flow.run}"


async def _remove_limit(bus: AsyncBus, form: Mapping[str, str]) -> str:
    queue = field(form, "queue")
    had = await Limits(bus).remove(queue)
    return f"limits of queue {word(queue)} {'removed' if had else 'were gone'}"


ACTIONS: dict[str, WebAction] = {
    "schedule.pause": _pause,
    "schedule.resume": _resume,
    "schedule.trigger": _trigger,
    "flow.cancel": _cancel_flow,
    "flow.replay": _replay_flow,
    "limit.remove": _remove_limit,
}
