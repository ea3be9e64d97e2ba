"""One queue's publisher and consumer, run in an environment of its own: NAME SOCKET COUNT.

Prints JSON: tasks published a second, and tasks consumed a second. Each queue is driven as its
documentation says, by the fastest way it has in one process, and is warm when the time is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import threading
import time
import types
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

PAYLOAD = {"i": "00000001", "agent": "build-agent-1", "text": "x" * 150}
CALLERS = 20
BATCH = 500


def warm(count: int) -> int:
    """Return how many tasks are published and consumed before the time is taken."""
    return count * 2 // 5


class Counter:
    """A handler that knows when it has been called often enough, the first tasks aside."""

    def __init__(self, count: int) -> None:
        self.left = count + warm(count)
        self.count = count
        self.first = self.last = 0.0
        self.timed = 0
        self.over = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, number: int = 1) -> None:
        """Count some tasks."""
        with self._lock:
            self.left -= number
            if self.left <= 0:
                self.last = time.monotonic()
                self.over.set()
            elif not self.timed and self.left <= self.count:
                self.first, self.timed = time.monotonic(), self.left

    async def rate(self) -> float:
        """Return the tasks a second once all were counted; `TimeoutError` after five minutes."""
        if not await asyncio.to_thread(self.over.wait, 300):
            raise TimeoutError(f"{self.left} tasks were not consumed")
        return self.timed / (self.last - self.first)


async def together(publish: Callable[[], Awaitable[Any]], count: int) -> float:
    """Publish from 20 callers at once; returns tasks a second."""

    async def callers(number: int) -> None:
        shares = [number // CALLERS + (at < number % CALLERS) for at in range(CALLERS)]

        async def caller(share: int) -> None:
            for _ in range(share):
                await publish()

        await asyncio.gather(*map(caller, shares))

    await callers(warm(count))
    began = time.monotonic()
    await callers(count)
    return count / (time.monotonic() - began)


async def agentbus(path: str, count: int, *, batch: bool = False) -> tuple[float, float]:
    """AgentBus: `publish`, and a handler call for each task; or `publish_many`, and batches."""
    import agentbus as library

    bus = library.connect(f"unix://{path}", project="peer", agent="peer")
    queue = bus.queue("peer", bound=100_000_000)
    counter = Counter(count)

    def publish(number: int) -> None:
        if batch:
            for start in range(0, number, BATCH):
                queue.publish_many([PAYLOAD] * min(BATCH, number - start))
        else:
            for _ in range(number):
                queue.publish(PAYLOAD)

    publish(warm(count))
    began = time.monotonic()
    publish(count)
    published = count / (time.monotonic() - began)

    def single(_delivery: Any) -> None:
        counter()

    def several(deliveries: list[Any]) -> None:
        counter(len(deliveries))

    bus.subscribe("peer", several if batch else single, batch=batch, drain=True).run()
    return published, await counter.rate()


async def agentbus_batches(path: str, count: int) -> tuple[float, float]:
    """AgentBus: `publish_many`, and a handler call for up to 500 tasks."""
    return await agentbus(path, count, batch=True)


async def omnidaemon(path: str, count: int) -> tuple[float, float]:
    """The pattern of OmniDaemon's bus: read ten, await the handler for each, acknowledge each."""
    import redis.asyncio

    server = redis.asyncio.Redis(unix_socket_path=path)
    await server.xgroup_create("omni", "g", "0", mkstream=True)
    published = await together(lambda: server.xadd("omni", {"data": json.dumps(PAYLOAD)}), count)
    counter = Counter(count)

    async def handler(_payload: Any) -> None:
        counter()

    while counter.left > 0:
        reply: Any = await server.xreadgroup("g", "c", {"omni": ">"}, count=10, block=1000)
        for _, entries in reply:
            for entry_id, fields in entries:
                await handler(json.loads(fields[b"data"]))
                await server.xack("omni", "g", entry_id)
    return published, await counter.rate()


async def faststream(path: str, count: int, *, batch: bool = False) -> tuple[float, float]:
    """Faststream: a handler call for each message of a stream."""
    import redis.asyncio
    from faststream.redis import RedisBroker, StreamSub

    broker = RedisBroker(f"unix://{path}", logger=None)
    counter = Counter(count)
    stream = StreamSub("fast", group="g", consumer="c", max_records=BATCH, batch=batch)

    async def single(_message: dict[str, str]) -> None:
        counter()

    async def several(messages: list[dict[str, str]]) -> None:
        counter(len(messages))

    broker.subscriber(stream=stream)(several if batch else single)
    sender = RedisBroker(f"unix://{path}", logger=None)
    await sender.connect()
    plain = redis.asyncio.Redis(unix_socket_path=path)
    await plain.xgroup_create("fast", "g", "0", mkstream=True)

    async def publish(number: int) -> None:
        for start in range(0, number, BATCH):
            async with plain.pipeline(transaction=False) as pipe:
                for _ in range(start, min(number, start + BATCH)):
                    await sender.publish(PAYLOAD, stream="fast", pipeline=pipe)
                await pipe.execute()

    await publish(warm(count))
    began = time.monotonic()
    await publish(count)
    published = count / (time.monotonic() - began)
    await broker.start()
    consumed = await counter.rate()
    await broker.stop()
    return published, consumed


async def faststream_batches(path: str, count: int) -> tuple[float, float]:
    """Faststream: a handler call for up to 500 messages."""
    return await faststream(path, count, batch=True)


async def taskiq(path: str, count: int) -> tuple[float, float]:
    """Taskiq on streams."""
    from taskiq.api import run_receiver_task
    from taskiq_redis import RedisStreamBroker

    broker = RedisStreamBroker(f"unix://{path}", xread_count=BATCH)
    counter = Counter(count)

    @broker.task
    async def handler(_payload: dict[str, str]) -> None:
        counter()

    await broker.startup()
    published = await together(lambda: handler.kiq(PAYLOAD), count)
    receiving = asyncio.create_task(run_receiver_task(broker))
    consumed = await counter.rate()
    receiving.cancel()
    return published, consumed


async def dramatiq(path: str, count: int) -> tuple[float, float]:
    """Dramatiq, with a long prefetch and two threads, as many as there are cores."""
    os.environ["dramatiq_queue_prefetch"] = "100"  # noqa: SIM112 (its name)
    import dramatiq as library
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=f"unix://{path}")
    library.set_broker(broker)
    counter = Counter(count)

    @library.actor
    def handler(_payload: dict[str, str]) -> None:
        counter()

    for _ in range(warm(count)):
        handler.send(PAYLOAD)
    began = time.monotonic()
    for _ in range(count):
        handler.send(PAYLOAD)
    published = count / (time.monotonic() - began)
    worker = library.Worker(broker, worker_threads=2)
    worker.start()
    consumed = await counter.rate()
    worker.stop()
    return published, consumed


async def celery(path: str, count: int) -> tuple[float, float]:
    """Celery, without results and events, with a long prefetch and two threads."""
    import celery as library
    from celery.contrib.testing.worker import start_worker

    app = library.Celery("peer", broker=f"redis+socket://{path}")
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=64,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=False,
    )
    counter = Counter(count)

    @app.task(name="handler")
    def handler(_payload: dict[str, str]) -> None:
        counter()

    def publish(number: int) -> None:
        with app.producer_pool.acquire() as producer:
            for _ in range(number):
                handler.apply_async((PAYLOAD,), producer=producer)

    publish(warm(count))
    began = time.monotonic()
    publish(count)
    published = count / (time.monotonic() - began)
    options = {"pool": "threads", "concurrency": 2, "perform_ping_check": False}
    with start_worker(app, loglevel="CRITICAL", **options):
        return published, await counter.rate()


async def huey(path: str, count: int) -> tuple[float, float]:
    """Huey, without results, and two threads that wait for tasks on the server."""
    import redis
    from huey import RedisHuey

    logging.disable(logging.INFO)
    pool = redis.ConnectionPool(connection_class=redis.UnixDomainSocketConnection, path=path)
    queue = RedisHuey("peer", results=False, blocking=True, connection_pool=pool)
    counter = Counter(count)

    @queue.task()
    def handler(_payload: dict[str, str]) -> None:
        counter()

    for _ in range(warm(count)):
        handler(PAYLOAD)
    began = time.monotonic()
    for _ in range(count):
        handler(PAYLOAD)
    published = count / (time.monotonic() - began)
    consumer = queue.create_consumer(workers=2, periodic=False, check_worker_health=False)
    consumer.start()
    consumed = await counter.rate()
    consumer.stop()
    return published, consumed


async def rq(path: str, count: int) -> tuple[float, float]:
    """RQ, without results and time limits, by the worker that starts no process for a task."""
    import redis
    import rq as library

    server = redis.Redis(unix_socket_path=path)
    queue = library.Queue("peer", connection=server)
    counter = Counter(count)
    # Its worker imports handlers by name, and takes none of the program's main module.
    handlers = types.ModuleType("peer_handlers")
    handlers.handler = lambda _payload: counter()  # type: ignore[attr-defined]
    sys.modules["peer_handlers"] = handlers
    task = library.Queue.prepare_data(
        "peer_handlers.handler", args=(PAYLOAD,), result_ttl=0, timeout=-1
    )

    def publish(number: int) -> None:
        for start in range(0, number, BATCH):
            queue.enqueue_many([task] * min(BATCH, number - start))

    publish(warm(count))
    began = time.monotonic()
    publish(count)
    published = count / (time.monotonic() - began)
    # At an error of its own it logs, quits, and leaves the rest in the queue: the count tells.
    library.SimpleWorker([queue], connection=server).work(burst=True, logging_level="ERROR")
    if counter.left > 0:
        raise RuntimeError(f"the worker quit, and left {counter.left} tasks")
    return published, await counter.rate()


async def streaq(path: str, count: int) -> tuple[float, float]:
    """Streaq: tasks in pipelines, and 100 coroutines with as many tasks fetched ahead."""
    import streaq as library

    # As a worker of its own its publisher has settings of its own, too.
    worker = library.Worker(redis_url=f"unix://{path}", concurrency=100, handle_signals=False)
    counter = Counter(count)

    @worker.task(ttl=0)
    async def handler(_payload: dict[str, str]) -> None:
        counter()

    async def publish(number: int) -> None:
        for start in range(0, number, BATCH):
            await worker.enqueue_many(
                [handler.enqueue(PAYLOAD) for _ in range(min(BATCH, number - start))]
            )

    async with worker:
        await publish(warm(count))
        began = time.monotonic()
        await publish(count)
        published = count / (time.monotonic() - began)
    running = asyncio.create_task(worker.run_async())
    consumed = await counter.rate()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return published, consumed


class Peer(NamedTuple):
    """How to measure a queue, and what it does in batches. `share` of the tasks suffices for it."""

    measure: Callable[[str, int], Awaitable[tuple[float, float]]]
    publishes_batches: bool = False
    handles_batches: bool = False
    uvloop: bool = False
    share: float = 1.0


# On uvloop are those whose own programs run on it where it is installed.
PEERS = {
    "AgentBus": Peer(agentbus),
    "AgentBus, batches": Peer(agentbus_batches, publishes_batches=True, handles_batches=True),
    "celery": Peer(celery),
    "dramatiq": Peer(dramatiq),
    "faststream": Peer(faststream, publishes_batches=True, uvloop=True),
    "faststream, batches": Peer(
        faststream_batches, publishes_batches=True, handles_batches=True, uvloop=True
    ),
    "huey": Peer(huey),
    "OmniDaemon's pattern": Peer(omnidaemon),
    # Each of its tasks takes some 25 round trips.
    "rq": Peer(rq, publishes_batches=True, share=0.1),
    "streaq": Peer(streaq, publishes_batches=True, uvloop=True),
    "taskiq": Peer(taskiq, uvloop=True),
}


async def main(peer: Peer) -> None:
    """Measure one peer, print, and leave: not every peer stops when it is told to."""
    published, consumed = await peer.measure(sys.argv[2], int(int(sys.argv[3]) * peer.share))
    sys.stdout.write(json.dumps({"publish": published, "consume": consumed}) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    chosen = PEERS[sys.argv[1]]
    if chosen.uvloop:
        import uvloop

        uvloop.run(main(chosen))
    else:
        asyncio.run(main(chosen))
