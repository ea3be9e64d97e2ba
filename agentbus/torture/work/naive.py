"""Workers as many programs have them: whatever can go wrong between two commands goes wrong.

They show that the checks find what they are to find. Run as a module, as `hands`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import sys
from typing import Any

import redis

from agentbus.core.keys import Keys
from agentbus.torture.parent import end_with_parent
from agentbus.torture.work.tasks import ATTEMPTS, GROUP, QUEUE
from agentbus.torture.work.toil import Toil

_BATCH = 20


def client(url: str, within: float = 2.0) -> redis.Redis:
    """Return a plain connection, which shares nothing with the library."""
    return redis.Redis.from_url(
        url, protocol=2, driver_info=None, socket_timeout=within, health_check_interval=0
    )


class Naive:
    """A worker; each kind is a method that makes one round."""

    def __init__(self, url: str, project: str, toil: Toil, visibility: float) -> None:
        self.toil = toil
        self.visibility = visibility
        self.raw = client(url)
        self.me = f"naive-{os.getpid()}"
        self.keys = Keys(project)
        self.stream = self.keys.queue(QUEUE, "normal")
        self.letters = self.keys.dead_letters(QUEUE, GROUP)

    def run(self, kind: str) -> None:
        """Work for ever."""
        act = getattr(self, kind)
        while True:
            with contextlib.suppress(redis.RedisError):
                with contextlib.suppress(redis.ResponseError):
                    # Another worker has made it.
                    self.raw.xgroup_create(self.stream, GROUP, "0", mkstream=True)
                while True:
                    act()

    def new(self) -> list[Any]:
        """Take a batch of tasks that nobody had."""
        reply: Any = self.raw.xreadgroup(
            GROUP, self.me, {self.stream: ">"}, count=_BATCH, block=100
        )
        return reply[0][1] if reply else []

    def old(self) -> list[Any]:
        """Take over tasks that another worker has had for too long."""
        idle = round(self.visibility * 1000)
        found: Any = self.raw.xautoclaim(self.stream, GROUP, self.me, idle, "0-0", count=_BATCH)
        return list(found[1])

    def do(self, entry: Any, attempt: int, *, ack: bool = True) -> None:
        """Handle one task, and acknowledge it, whoever holds it."""
        entry_id, fields = entry
        payload, name = json.loads(fields[b"payload"]), entry_id.decode()
        self.toil(payload, attempt, name)
        if ack:
            self.toil.settle(
                payload, attempt, name, lambda: self.raw.xack(self.stream, GROUP, entry_id)
            )

    def ack_first(self) -> None:
        """Acknowledge a batch, then handle it."""
        entries = self.new()
        if entries:
            self.raw.xack(self.stream, GROUP, *(entry_id for entry_id, _ in entries))
        for entry in entries:
            self.do(entry, 1, ack=False)

    def ack_after(self) -> None:
        """Acknowledge what was handled, and never ask whose it is now."""
        for entry in self.old():
            self.do(entry, 2)
        for entry in self.new():
            self.do(entry, 1)

    # Its workers do nothing worse than those: it is its publisher that does wrong.
    maxlen = ack_after

    def set_nx(self) -> None:
        """Mark each task as seen, and do it only if it was not."""
        for attempt, entries in ((2, self.old()), (1, self.new())):
            for entry in entries:
                if self.raw.set(self.keys.seen(QUEUE, entry[0].decode()), self.me, nx=True):
                    self.do(entry, attempt)
                else:
                    self.raw.xack(self.stream, GROUP, entry[0])

    def count_deliveries(self) -> None:
        """Take the delivery count for the number of attempts."""
        old = self.old()
        pending: Any = self.raw.xpending_range(
            self.stream, GROUP, "-", "+", 1000, consumername=self.me
        )
        counts = {entry["message_id"]: entry["times_delivered"] for entry in pending}
        for entry_id, fields in old:
            if counts.get(entry_id, 0) > ATTEMPTS:
                self.raw.xadd(self.letters, fields)
                self.raw.xack(self.stream, GROUP, entry_id)
            else:
                self.do((entry_id, fields), 2)
        for entry in self.new():
            self.do(entry, 1)


def main(kind: str, url: str, project: str, place: str, name: str, toil: str, seen: str) -> None:
    """Work until killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    work = Toil(pathlib.Path(place), name, float(toil))
    Naive(url, project, work, float(seen)).run(kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
