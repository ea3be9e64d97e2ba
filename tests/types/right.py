"""A program that uses both buses correctly: type checkers must accept every line and infer these types."""

from __future__ import annotations

import contextlib
import http.server
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, assert_type

import agentbus
import agentbus.aio
from agentbus import (
    AsyncBus,
    AsyncWorker,
    Bus,
    Entry,
    Group,
    HeldTask,
    Hold,
    Lease,
    Leasing,
    Letter,
    Message,
    Note,
    Order,
    Queue,
    SettledTask,
    TakenTask,
    Task,
    Worker,
    webhook,
)
from agentbus.store.steps import Command
from agentbus.store.verb import Awaiting, Blocking, verb
from agentbus.tasks import Scheduler, Schedules, ScheduleState, Tick

if TYPE_CHECKING:
    from agentbus.store.steps import Op


def talk() -> None:
    with agentbus.connect(agent="ada") as bus:
        assert_type(bus, Bus)
        assert_type(bus.speak("hi", topic="build"), Message)
        assert_type(bus.overhear(), Generator[Message, None, None])
        unread: Iterator[Message] = bus.overhear()
        assert_type(next(unread), Message)
        with contextlib.closing(bus.overhear("build")) as heard:
            assert_type(next(heard), Message)
        for message in bus.overhear(["build", "deploy"], follow=True, timeout=1):
            assert_type(message.text, str)
        assert_type(bus.jot("a", "b", tags=["c"]), Note)
        assert_type(bus.notes(all=True), list[Note])
        assert_type(bus.forget("a"), None)
        with bus.hold("deploy", ttl=30) as hold:
            assert_type(hold, Hold[Blocking])
            assert_type(hold.renew(60), Hold[Blocking])
        held: Hold = bus.announce("deploy", wait=3)
        assert_type(held.renew().token, int)
        with bus.lease("src/**", why="parser") as lease:
            assert_type(lease, Leasing[Blocking])
            assert_type(lease.renew(), None)
        assert_type(bus.lease("a").token, int)
        assert_type(bus.leases(), list[Lease])
        assert_type(bus.halt(why="upgrade"), Order)
        assert_type(bus.stats()[0].queue, str)


def work(bus: Bus) -> None:
    queue = bus.queue("mail")
    annotated: Queue = queue
    assert_type(annotated.publish({"to": "ada"}, priority="high", headers={"a": "b"}, delay=3), str)
    assert_type(queue.publish(Task(1, key="once"), after=["1-1@mail"]), str)
    assert_type(queue.publish_many([1, 2, 3], on_full="trim"), list[str])
    assert_type(queue.publish_stream([1, 2, 3]), Generator[str, None, None])
    assert_type(queue.peek(), list[tuple[str, Any]])
    assert_type(queue.replay_all(match="timed out"), list[str])
    assert_type(queue.purge("1-1", group="default"), int)
    taken = bus.take("mail", wait=5)
    assert_type(taken, TakenTask)
    assert_type(taken.token, int)
    assert_type(taken.ack({"sent": 1}), bool)
    assert_type(taken.renew(60), float)
    assert_type(bus.settle(taken.id, taken.token, "retry", after=3), SettledTask)
    assert_type(bus.renew(taken.id, taken.token), HeldTask)
    assert_type(queue.resume(), bool)
    assert_type(queue.dead_letters(match="timed out"), list[Letter])
    assert_type(queue.groups(), list[Group])
    assert_type(queue.inspect(last=3), list[Entry])
    assert_type(queue.replay_from("30m").tasks, int)
    assert_type(queue.result("1-1@mail", 3), Any)
    assert_type(bus.ask("mail", 1, topic="x"), Any)
    for delivery in queue.fetch(count=3):
        delivery.ack()

    @bus.subscribe("mail", concurrency=4, visibility=30.0)
    def send(delivery: agentbus.Delivery) -> str:
        return str(delivery.payload)

    # The decorator returns what it decorates.
    assert_type(send(queue.fetch()[0]), str)
    assert_type(bus.work(drain=True), int)
    with bus.subscribe("mail", send, batch=False, backoff=agentbus.Backoff(first=2)) as worker:
        assert_type(worker, Worker)
        assert_type(worker.run(), int)


async def atalk() -> None:
    async with agentbus.aio.connect(agent="ada") as bus:
        assert_type(bus, AsyncBus)
        assert_type(await bus.speak("hi"), Message)
        assert_type(bus.overhear(), AsyncGenerator[Message, None])
        async with contextlib.aclosing(bus.overhear("build")) as heard:
            assert_type(await anext(heard), Message)
        async for message in bus.overhear("build", last=3):
            assert_type(message, Message)
        async with bus.hold("deploy") as hold:
            assert_type(hold, Hold[Awaiting])
            assert_type(await hold.renew(60), Hold[Awaiting])
        async with bus.lease("src/**") as lease:
            assert_type(lease, Leasing[Awaiting])
            assert_type(await lease.renew(), None)
        assert_type(await bus.lease("a"), Leasing[Awaiting])
        held = await bus.announce("deploy")
        await held.renew()
        await bus.await_("deploy", any=True)


async def awork(bus: AsyncBus) -> None:
    queue = bus.queue("mail")
    annotated: Queue[AsyncBus] = queue
    publishing: Coroutine[Any, Any, str] = annotated.publish(1, key="a")
    assert_type(await publishing, str)
    assert_type(await queue.publish(1), str)
    assert_type(await queue.publish_many(range(3)), list[str])
    async for task_id in queue.publish_stream(range(3)):
        assert_type(task_id, str)
    assert_type(await queue.pause("upgrade"), Order)
    assert_type(await queue.paused(), Order | None)
    assert_type(await bus.ask("mail", 1, timeout=3), Any)
    taken = await bus.take("mail", wait=5)
    assert_type(taken.until, float)
    assert_type(await taken.renew(60), float)
    assert_type(await taken.ack(), bool)
    assert_type(await bus.settle(taken.id, taken.token), SettledTask)

    @bus.subscribe("mail", concurrency=4)
    async def send(delivery: agentbus.Delivery) -> int:
        return delivery.attempt

    assert_type(await bus.work(), int)
    async with bus.subscribe("mail", send, count=3) as worker:
        assert_type(worker, AsyncWorker)
        assert_type(await worker.run_once(), int)


class TeamBus(Bus):
    """A bus with a verb of its own."""

    @verb
    def spoken(self) -> Op[int]:
        """Return the number of messages on the channel."""
        length: int = yield Command("XLEN", self.scope.keys.channel)
        return length


def team(bus: TeamBus) -> None:
    assert_type(bus.spoken(), int)
    assert_type(bus.speak("hi"), Message)
    assert_type(bus.queue("mail").publish(1), str)


def schedule(bus: Bus) -> None:
    assert_type(Schedules(bus).add("poll", "fetch", every=30, priority="high"), ScheduleState)
    assert_type(Schedules(bus).list(), list[ScheduleState])
    assert_type(Schedules(bus).trigger("poll"), str)
    with Scheduler(bus) as scheduler:
        assert_type(scheduler.run_once(), list[Tick])


async def schedule_async(bus: AsyncBus) -> None:
    assert_type(await Schedules(bus).add("poll", "fetch", cron="@daily"), ScheduleState)
    assert_type(await Schedules(bus).remove("poll"), None)


class Receiver(http.server.BaseHTTPRequestHandler):
    """Receives webhooks, with the headers of `http.server`."""

    def do_POST(self) -> None:
        """Check the signature."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert_type(webhook.verify("a secret", self.headers, body), bool)
        assert_type(webhook.verify("a secret", {webhook.SIGNATURE: "t=1,v1=2"}, body), bool)
