"""A correct program of typed tasks, in which mypy and pyright must find nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import agentbus
from agentbus import AsyncBus, Bus, Delivery
from agentbus.tasks import AsyncHandle, Handle

tasks = agentbus.Tasks()


@dataclass
class Mail:
    to: str


@dataclass
class Receipt:
    number: int


class Smtp:
    def send(self, mail: Mail) -> Receipt:
        return Receipt(len(mail.to))


def smtp() -> Iterator[Smtp]:
    yield Smtp()


tasks.provide(Smtp, smtp)
tasks.provide(int, 3, per="task")


@tasks.task(queue="mail", attempts=5, priority="high")
def send(mail: Mail) -> Receipt:
    return Receipt(len(mail.to))


@tasks.task(queue="fetch", given=AsyncBus)
async def fetch(bus: AsyncBus, url: str, depth: int = 1) -> list[str]:
    await bus.jot(url, str(depth))
    return [url]


@tasks.task(queue="mail", name="all", given=(Bus, Smtp, Delivery))
def send_all(bus: Bus, smtp: Smtp, delivery: Delivery, mails: list[Mail]) -> None:
    bus.speak(f"{len(mails)} mails, attempt {delivery.attempt}")
    for mail in mails:
        smtp.send(mail)


def blocking(bus: Bus) -> int:
    handle: Handle[Receipt] = send.publish(bus, Mail("a"))
    many = send.publish_many(bus, [send.item(Mail("b")), send.item(mail=Mail("c"))])
    send.options(delay=3, key="k").publish(bus, Mail("d")).cancel()
    send_all.publish(bus, [Mail("e")])
    pages: list[str] = fetch.publish(bus, "u", depth=2).result(wait=1)
    plain: Receipt = send(Mail("f"))
    worker = tasks.worker(bus, queues=["mail"], concurrency=4)
    done: int = worker.run()
    return handle.result().number + many[0].result().number + plain.number + len(pages) + done


async def awaited(bus: AsyncBus) -> int:
    handle: AsyncHandle[Receipt] = await send.publish(bus, Mail("a"))
    pages: list[str] = await fetch(bus, "u")
    await (await fetch.publish(bus, "u")).result(wait=1)
    state = await send.handle(bus, handle.id).state()
    await tasks.worker(bus, drain=True).run()
    return (await handle.result()).number + len(pages) + (state.attempts or 0)
