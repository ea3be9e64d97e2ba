"""A real mode of torture, small: a client asks its server for numbers, and is killed while it does.

One of its controls counts for itself, and badly; the other one is none, so that it is missed.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Iterator

import redis

from agentbus.torture.history import OK, Entry, Scribe
from agentbus.torture.nemesis import KILL, SERVER_KILL, Client, Nemesis, possible
from agentbus.torture.order import Mode, Order
from agentbus.torture.parent import end_with_parent
from agentbus.torture.server import Server
from agentbus.torture.site import Site, through, upstream_of
from agentbus.torture.verdict import Verdict, found_by

_PATIENCE = 120.0


def torture(order: Order) -> Iterator[Verdict]:
    """Have a client count while it and its server are killed."""
    began = time.monotonic()
    server = None if order.url else Server(order.place / "server")
    with (
        server or contextlib.nullcontext(),
        Site(order.place, upstream_of(server, order.url)) as site,
    ):
        wanted = possible({KILL: 2, SERVER_KILL: 1}, server)

        def words(client: Client) -> list[str]:
            url = through(client.proxies[0], order.url)
            key = f"{order.project}:jot:numbers"
            return [__name__, str(site.histories / client.name), url, key, str(order.control)]

        one = site.hire("one", words)
        nemesis = Nemesis(wanted, 0.2, order.seed, site.clients, server)
        heard: list[int] = []
        pids: list[int] = []

        def hear(entry: Entry) -> None:
            heard.append(entry.of["n"])
            pids.append(entry.of["pid"])
            order.tell(f"{len(heard)} numbers")

        def over() -> bool:
            # Whoever came after the last death has counted, too.
            assert one.process is not None
            return len(heard) >= order.number(100) and pids[-1] == one.process.pid

        in_time = site.run(nemesis, over, _PATIENCE, hear)
        assert in_time, site.ended
        faults = dict(nemesis.counts)
        if order.minutes < 0.01:
            # So that a test may see what comes of too few.
            faults[KILL] -= 1
        yield Verdict(
            mode="talk",
            seed=order.seed,
            seconds=time.monotonic() - began,
            faults=faults,
            wanted=wanted,
            figures={"numbers": len(heard), "share": 0.5, "url": order.url is not None},
            violations=found_by(heard, [twice]),
            place=order.place,
            control=order.control,
        )


def twice(heard: list[int]) -> list[int]:
    """Return numbers that were had twice."""
    return sorted({n for n in heard if heard.count(n) > 1})


def count(path: str, url: str, key: str, control: str) -> None:
    """Have numbers, and write them down."""
    scribe = Scribe(pathlib.Path(path))
    own = 0
    while True:
        try:
            with redis.Redis.from_url(url, protocol=2, driver_info=None) as client:
                while True:
                    n = int(client.incr(key))
                    own += 1
                    number = own // 2 if control == "by_heart" else n
                    scribe.note("count", OK, n=number, pid=os.getpid())
                    time.sleep(0.001)
        except (redis.RedisError, OSError):
            time.sleep(0.01)


MODE = Mode(
    name="talk",
    summary="one client counts",
    controls={
        "by_heart": "a client that counts for itself, and badly",
        "well": "one that does nothing wrong",
    },
    torture=torture,
)

if __name__ == "__main__":
    end_with_parent()
    count(*sys.argv[1:])
