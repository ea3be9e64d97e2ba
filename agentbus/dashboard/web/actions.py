"""Actions of the pages' forms, with --write: done as a person, and announced on the channel.

An action is a function of the person's bus and the form's fields that returns a sentence about the
result. The sentence is spoken on the channel and logged. An action's name is `<thing>.<deed>`, and
the template calls `ui.action(view, name, …)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.client.aio import AsyncBus
from agentbus.core.errors import AgentBusError
from agentbus.core.names import word
from agentbus.core.readable import count
from agentbus.dashboard import person
from agentbus.dashboard.web import letter_actions, work_actions
from agentbus.dashboard.web.agent_actions import AGENT_ACTIONS
from agentbus.dashboard.web.forms import field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.core.settings import Settings
    from agentbus.dashboard.web.forms import WebAction

# Seconds to wait for workers to confirm a pause.
_CONFIRM = 2.0
_WHY = "from web"


async def perform(settings: Settings, name: str, form: Mapping[str, str]) -> str:
    """Perform an action as the settings' person, announce and log it, and return the result."""
    async with AsyncBus(settings) as bus:
        try:
            done = await ACTIONS[name](bus, form)
        except AgentBusError as error:
            person.log(settings, "web", name, f"failed ({type(error).__name__})")
            raise
        person.log(settings, "web", name, done)
        if name not in _SPOKEN:
            try:
                await bus.speak(done, topic=person.TOPIC)
            except AgentBusError:
                # The action is done: a reader of an error would repeat it.
                return f"{done}; the channel does not say so, because the server is away"
    return done


async def _pause_queue(bus: AsyncBus, form: Mapping[str, str]) -> str:
    queue = field(form, "queue")
    order = await bus.pause(queue=queue, why=_WHY, wait=_CONFIRM)
    return f"queue {word(queue)} paused{_late(order.unconfirmed)}"


async def _resume_queue(bus: AsyncBus, form: Mapping[str, str]) -> str:
    queue = field(form, "queue")
    had = await bus.resume(queue=queue)
    return f"queue {word(queue)} {'resumed' if had else 'was not paused'}"


async def _halt(bus: AsyncBus, _form: Mapping[str, str]) -> str:
    order = await bus.halt(why=_WHY, wait=_CONFIRM)
    return f"project halted{_late(order.unconfirmed)}"


async def _resume(bus: AsyncBus, _form: Mapping[str, str]) -> str:
    return "project resumed" if await bus.resume() else "project was not halted"


def _late(workers: tuple[str, ...]) -> str:
    return f"; {count(len(workers), 'worker')} did not confirm yet" if workers else ""


ACTIONS: dict[str, WebAction] = {
    "queue.pause": _pause_queue,
    "queue.resume": _resume_queue,
    "project.halt": _halt,
    "project.resume": _resume,
    **letter_actions.ACTIONS,
    **work_actions.ACTIONS,
    **AGENT_ACTIONS,
}
# Actions that appear on the channel by themselves, so that no message announces them.
_SPOKEN = frozenset(("talk.speak",))
