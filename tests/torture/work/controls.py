"""Worker processes as many programs have them: what can go wrong between two commands goes wrong."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import redis

from agentbus.core.keys import Keys
from tests.torture.assignment import Allowance, Assignment
from tests.torture.plain import plain_client
from tests.torture.work.tasks import ATTEMPTS, GROUP, QUEUE
from tests.torture.work.worker import TaskHandler

_BATCH = 20


class NaiveWorker:
    """A worker; each kind is a method that does one round."""

    def __init__(self, assignment: Assignment) -> None:
        self.handler = TaskHandler(assignment)
        self.visibility: float = assignment.options["visibility"]
        self.raw = plain_client(assignment.url)
        self.me = f"naive-{os.getpid()}"
        self.keys = Keys(assignment.project)
        self.stream = self.keys.queue(QUEUE, "normal")
        self.letters = self.keys.dead_letters(QUEUE, GROUP)

    def run(self, kind: str) -> None:
        """Work until killed."""
        act = getattr(self, kind)
        while True:
            with contextlib.suppress(redis.RedisError):
                with contextlib.suppress(redis.ResponseError):
                    # It may exist already.
                    self.raw.xgroup_create(self.stream, GROUP, "0", mkstream=True)
                while True:
                    act()

    def new(self) -> list[Any]:
        """Take a batch of new tasks."""
        reply: Any = self.raw.xreadgroup(
            GROUP, self.me, {self.stream: ">"}, count=_BATCH, block=100
        )
        return reply[0][1] if reply else []

    def old(self) -> list[Any]:
        """Take over tasks that another worker has held for too long."""
        idle = round(self.visibility * 1000)
        found: Any = self.raw.xautoclaim(self.stream, GROUP, self.me, idle, "0-0", count=_BATCH)
        return list(found[1])

    def do(self, entry: Any, attempt: int, *, ack: bool = True) -> None:
        """Handle a task, and acknowledge it, even if another worker holds it by now."""
        entry_id, fields = entry
        payload, name = json.loads(fields[b"payload"]), entry_id.decode()
        self.handler(payload, attempt, name)
        if ack:
            with self.handler.settling(payload, attempt, name) as answered:
                answered(self.raw.xack(self.stream, GROUP, entry_id))

    def ack_first(self) -> None:
        """Acknowledge a batch, then handle it."""
        entries = self.new()
        if entries:
            self.raw.xack(self.stream, GROUP, *(entry_id for entry_id, _ in entries))
        for entry in entries:
            self.do(entry, 1, ack=False)

    def ack_after(self) -> None:
        """Acknowledge what was handled, and never ask who holds it by now."""
        for entry in self.old():
            self.do(entry, 2)
        for entry in self.new():
            self.do(entry, 1)

    # Here the publisher does wrong.
    maxlen = ack_after

    def set_nx(self) -> None:
        """Mark a task as seen, and do it only if it was not marked."""
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


def main(told: Assignment, _limit: Allowance) -> None:
    """Work until killed."""
    NaiveWorker(told).run(told.kind)
