"""What a program would write by hand with redis-py: the limit that queues are measured against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import redis

BATCH = 500
STREAM, GROUP = "raw:q", "g"


def payload(number: int) -> dict[str, Any]:
    """Return a payload of 200 bytes as JSON."""
    return {"i": f"{number:08}", "agent": "build-agent-1", "text": "x" * 150}


def client(path: str) -> redis.Redis:
    """Return a client on the server's socket, as fast as redis-py comes."""
    return redis.Redis(unix_socket_path=path, protocol=2)


def publish_pipelined(server: redis.Redis, count: int) -> None:
    """Append tasks in pipelines of 500."""
    for start in range(0, count, BATCH):
        pipe = server.pipeline(transaction=False)
        for number in range(start, min(start + BATCH, count)):
            pipe.xadd(STREAM, {"payload": orjson.dumps(payload(number))})
        pipe.execute()


def publish_singly(server: redis.Redis, count: int) -> None:
    """Append tasks one by one."""
    for number in range(count):
        server.xadd(STREAM, {"payload": orjson.dumps(payload(number))})


def publish_keyed(server: redis.Redis, count: int) -> None:
    """Append tasks one by one, each under a key that is taken only once."""
    for number in range(count):
        if server.set(f"raw:seen:key-{number}", 1, nx=True, ex=300):
            server.xadd(STREAM, {"payload": orjson.dumps(payload(number))})


def group(server: redis.Redis) -> None:
    """Make the group that consumes."""
    server.xgroup_create(STREAM, GROUP, "0", mkstream=True)


def consume(server: redis.Redis, handler: Callable[[Any], object], count: int) -> None:
    """Take tasks in batches, call the handler for each, acknowledge a batch at a time."""
    done = 0
    while done < count:
        reply = server.xreadgroup(GROUP, "c", {STREAM: ">"}, count=BATCH)
        entries: list[Any] = reply[0][1]  # type: ignore[index,assignment]
        for _, fields in entries:
            handler(orjson.loads(fields[b"payload"]))
        server.xack(STREAM, GROUP, *[entry_id for entry_id, _ in entries])
        done += len(entries)
