"""A program with mistakes: a comment on each wrong line names what mypy and pyright must report there."""

from __future__ import annotations

import agentbus
from agentbus import AsyncBus, Bus
from agentbus.tasks import Schedules


def blocking(bus: Bus) -> None:
    queue = bus.queue("mail")
    queue.publish(1, prioritty="high")  # mypy call-arg, pyright reportCallIssue
    queue.publish(1, priority=1)  # mypy arg-type, pyright reportArgumentType
    bus.subscribe("mail", print, concurency=4)  # mypy call-overload, pyright reportCallIssue
    bus.subscribe("mail", concurency=4)  # mypy call-overload, pyright reportCallIssue
    queue.publish(1).frobnicate()  # mypy attr-defined, pyright reportAttributeAccessIssue
    bus.announce("x").renew().frobnicate()  # mypy attr-defined, pyright reportAttributeAccessIssue
    bus.ask("mail", 1, timout=3)  # mypy call-arg, pyright reportCallIssue
    bus.speak("hi", topik="build")  # mypy call-arg, pyright reportCallIssue


async def awaited(bus: AsyncBus) -> None:
    queue = bus.queue("mail")
    await queue.publish(1, prioritty="high")  # mypy call-arg, pyright reportCallIssue
    bus.subscribe("mail", print, concurency=4)  # mypy call-overload, pyright reportCallIssue
    queue.publish(1)  # mypy unused-coroutine, pyright reportUnusedCoroutine
    bus.speak("hi")  # mypy unused-coroutine, pyright reportUnusedCoroutine
    text: str = queue.publish(1)  # mypy assignment, pyright reportAssignmentType
    (await queue.publish(1)).frobnicate()  # mypy attr-defined, pyright reportAttributeAccessIssue
    queue.peek().sort()  # mypy attr-defined, pyright reportAttributeAccessIssue
    hold = await bus.announce(text)
    hold.renew()  # mypy unused-coroutine, pyright reportUnusedCoroutine
    (await hold.renew()).frobnicate()  # mypy attr-defined, pyright reportAttributeAccessIssue
    with bus.lease("a"):  # mypy misc, pyright reportGeneralTypeIssues
        pass
    Schedules(bus).remove("poll")  # mypy unused-coroutine, pyright reportUnusedCoroutine
    await Schedules(bus).add("a", "b", evry=1)  # mypy call-arg, pyright reportCallIssue
    await send(queue)  # mypy arg-type, pyright reportArgumentType


async def send(queue: agentbus.Queue) -> None:
    queue.publish("a queue on a blocking bus")
