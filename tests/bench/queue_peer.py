"""One peer's publisher and consumer, run in its own environment: NAME SOCKET COUNT.

Prints JSON: tasks published a second, and tasks consumed a second, each with a call of a handler
and an acknowledgement. Every peer is driven as its documentation says, by the fastest way it has.
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


class Counter:
    """A handler that knows when it has been called often enough."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.last = 0.0
        self.over = threading.Event()
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Count one call."""
        with self._lock:
            self.left -= 1
            if self.left == 0:
                self.last = time.monotonic()
                self.over.set()

    async def wait(self) -> None:
        """Return once all calls were made; raises `TimeoutError` after five minutes."""
        if not await asyncio.to_thread(self.over.wait, 300):
            raise TimeoutError(f"{self.left} tasks were not consumed")


async def together(publish: Callable[[], Awaitable[Any]], count: int) -> float:
    """Publish from 20 callers at once; returns tasks a second."""

    async def caller() -> None:
        for _ in range(count // CALLERS):
            await publish()

    began = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
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

    began = time.monotonic()
    while counter.left:
        reply: Any = await server.xreadgroup("g", "c", {"omni": ">"}, count=10, block=1000)
        for _, entries in reply:
            for entry_id, fields in entries:
                await handler(json.loads(fields[b"data"]))
                await server.xack("omni", "g", entry_id)
    return published, count / (time.monotonic() - began)


async def faststream(path: str, count: int) -> tuple[float, float]:
    """Faststream: a handler call for each message of a stream."""
    from faststream.redis import RedisBroker, StreamSub

    broker = RedisBroker(f"unix://{path}", logger=None)
    counter = Counter(count)

    @broker.subscriber(stream=StreamSub("fast", group="g", consumer="c", max_records=500))
    async def handler(_message: dict[str, str]) -> None:
        counter()

    sender = RedisBroker(f"unix://{path}", logger=None)
    await sender.connect()
    import redis.asyncio

    plain = redis.asyncio.Redis(unix_socket_path=path)
    await plain.xgroup_create("fast", "g", "0", mkstream=True)
    began = time.monotonic()
    for start in range(0, count, 500):
        async with plain.pipeline(transaction=False) as pipe:
            for _ in range(start, min(count, start + 500)):
                await sender.publish(PAYLOAD, stream="fast", pipeline=pipe)
            await pipe.execute()
    published = count / (time.monotonic() - began)
    began = time.monotonic()
    await broker.start()
    await counter.wait()
    consumed = count / (counter.last - began)
    await broker.stop()
    return published, consumed


async def taskiq(path: str, count: int) -> tuple[float, float]:
    """Taskiq on streams."""
    from taskiq.api import run_receiver_task
    from taskiq_redis import RedisStreamBroker

    broker = RedisStreamBroker(f"unix://{path}", xread_count=500)
    counter = Counter(count)

    @broker.task
    async def handler(_payload: dict[str, str]) -> None:
        counter()

    await broker.startup()
    published = await together(lambda: handler.kiq(PAYLOAD), count)
    began = time.monotonic()
    receiving = asyncio.create_task(run_receiver_task(broker))
    await counter.wait()
    receiving.cancel()
    return published, count / (counter.last - began)


async def dramatiq(path: str, count: int) -> tuple[float, float]:
    """Dramatiq, with a long prefetch."""
    os.environ["dramatiq_queue_prefetch"] = "100"  # noqa: SIM112 (its name)
    import dramatiq as library
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=f"unix://{path}")
    library.set_broker(broker)
    counter = Counter(count)

    @library.actor
    def handler(_payload: dict[str, str]) -> None:
        counter()

    began = time.monotonic()
    for _ in range(count):
        handler.send(PAYLOAD)
    published = count / (time.monotonic() - began)
    worker = library.Worker(broker, worker_threads=8)
    began = time.monotonic()
    worker.start()
    await counter.wait()
    worker.stop()
    return published, count / (counter.last - began)


PEERS = {
    "OmniDaemon's pattern": omnidaemon,
    "faststream": faststream,
    "taskiq": taskiq,
    "dramatiq": dramatiq,
}


async def main() -> None:
    """Measure one peer, print, and leave: not every peer stops when it is told to."""
    published, consumed = await PEERS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
    sys.stdout.write(json.dumps({"publish": published, "consume": consumed}) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
