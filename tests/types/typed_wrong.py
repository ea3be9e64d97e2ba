"""Typed tasks with mistakes, marked as in `wrong.py`."""

from __future__ import annotations

from agentbus import AsyncBus, Bus
from tests.types.typed_tasks import Mail, Smtp, fetch, send, send_all, tasks


def blocking(bus: Bus) -> None:
    tasks.task(queue="mail", colour="red")  # mypy call-overload, pyright reportCallIssue
    send.publish(bus, "a")  # mypy call-overload, pyright reportCallIssue+reportArgumentType
    send.publish(bus)  # mypy call-overload, pyright reportCallIssue
    send.publish(bus, Mail("a"), copies=2)  # mypy call-overload, pyright reportCallIssue
    fetch.publish(bus, "u", "1")  # mypy call-overload, pyright reportCallIssue+reportArgumentType
    send_all.publish(bus, bus, Smtp(), [])  # mypy call-overload, pyright reportCallIssue
    handle = send.publish(bus, Mail("a"))
    text: str = handle.result()  # mypy assignment, pyright reportAssignmentType
    handle.result().frobnicate()  # mypy attr-defined, pyright reportAttributeAccessIssue
    send.options(dellay=3)  # mypy call-arg, pyright reportCallIssue
    many = [fetch.item(text)]
    send.publish_many(bus, many)  # mypy arg-type, pyright reportCallIssue+reportArgumentType
    send(Mail("a")).frobnicate()  # mypy attr-defined, pyright reportAttributeAccessIssue


async def awaited(bus: AsyncBus) -> None:
    send.publish(bus, Mail("a"))  # mypy unused-coroutine, pyright reportUnusedCoroutine
    handle = await send.publish(bus, Mail("a"))
    handle.result()  # mypy unused-coroutine, pyright reportUnusedCoroutine
    handle.cancel()  # mypy unused-coroutine, pyright reportUnusedCoroutine
    (await handle.result()).frobnicate()  # mypy attr-defined, pyright reportAttributeAccessIssue
    fetch(bus, "u")  # mypy unused-coroutine, pyright reportUnusedCoroutine
