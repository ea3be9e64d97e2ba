"""One peer's publisher and consumer, run in its own environment: NAME SOCKET COUNT.

Prints JSON: tasks published a second, and tasks consumed a second. Every peer is driven as its
documentation says, by the fastest way it has, and is warm when the time is taken.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

PAYLOAD = {"i": "00000001", "agent": "build-agent-1", "text": "x" * 150}
CALLERS = 20
BATCH = 500
# Tasks that are published and consumed before the time is taken.
WARM = 2000


class Counter:
    """A handler that knows when it has been called often enough, the first tasks aside."""

    def __init__(self, count: int) -> None:
        self.left = count + WARM
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
        async def caller() -> None:
            for _ in range(number // CALLERS):
                await publish()

        await asyncio.gather(*(caller() for _ in range(CALLERS)))

    await callers(WARM)
    began = time.monotonic()
    await callers(count)
    return count / (time.monotonic() - began)


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

    await publish(WARM)
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

    for _ in range(WARM):
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

    publish(WARM)
    began = time.monotonic()
    publish(count)
    published = count / (time.monotonic() - began)
    options = {"pool": "threads", "concurrency": 2, "perform_ping_check": False}
    with start_worker(app, loglevel="CRITICAL", **options):
        return published, await counter.rate()


async def huey(path: str, count: int) -> tuple[float, float]:
    """Huey, without results, and two threads that wait for tasks on the server."""
    import logging

    import redis
    from huey import RedisHuey

    logging.disable(logging.INFO)
    pool = redis.ConnectionPool(connection_class=redis.UnixDomainSocketConnection, path=path)
    queue = RedisHuey("peer", results=False, blocking=True, connection_pool=pool)
    counter = Counter(count)

    @queue.task()
    def handler(_payload: dict[str, str]) -> None:
        counter()

    for _ in range(WARM):
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


PEERS = {
    "OmniDaemon's pattern": omnidaemon,
    "faststream": faststream,
    "faststream, batches": faststream_batches,
    "taskiq": taskiq,
    "dramatiq": dramatiq,
    "celery": celery,
    "huey": huey,
}
# Those whose own programs run on uvloop where it is installed.
ON_UVLOOP = ("faststream", "faststream, batches", "taskiq")


async def main() -> None:
    """Measure one peer, print, and leave: not every peer stops when it is told to."""
    published, consumed = await PEERS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
    sys.stdout.write(json.dumps({"publish": published, "consume": consumed}) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] in ON_UVLOOP:
        import uvloop

        uvloop.run(main())
    else:
        asyncio.run(main())
