"""What a busy project does beside a dashboard, in a process of its own: tasks and messages at a pace.

python -m scripts.benchmarks._dashboard_load work|publish|speak SOCKET PROJECT RATE
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator

import redis

import agentbus

# Messages that are spoken together.
_TOGETHER = 10
# Queues that tasks are published to, with a worker each.
_BUSY = 5


def moments(rate: float) -> Iterator[None]:
    """Yield at a pace per second, also after a delay."""
    begun, number = time.monotonic(), 0
    while True:
        time.sleep(max(0.0, begun + number / rate - time.monotonic()))
        number += 1
        yield


def main() -> None:
    """Do one kind of work until the process is killed."""
    kind, socket, project, rate = sys.argv[1:]
    url = f"unix://{socket}"
    if kind == "speak":
        # As programs do that use the channel without the library.
        client = redis.Redis(unix_socket_path=socket)
        for number, _ in enumerate(moments(float(rate) / _TOGETHER)):
            with client.pipeline(transaction=False) as pipe:
                for one in range(_TOGETHER):
                    said = {"agent_id": "load", "topic": "load", "message": f"{number} {one}"}
                    pipe.xadd(f"{project}:ch:main", said, maxlen=10_000, approximate=True)
                pipe.execute()
    with agentbus.connect(url, project=project, agent=kind) as bus:
        if kind == "work":
            workers = [bus.subscribe(f"busy.{n}", lambda _delivery: None) for n in range(_BUSY)]
            threads = [threading.Thread(target=one.run) for one in workers]
            for thread in threads:
                thread.start()
            threads[0].join()
        chance = random.Random(1)
        for _ in moments(float(rate)):
            bus.queue(f"busy.{chance.randrange(_BUSY)}").publish({"n": 1})


if __name__ == "__main__":
    main()
