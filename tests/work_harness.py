"""Worker processes that are killed while they work, and what became of every task."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from typing import Any, Self

import redis

import agentbus
from agentbus.keys import Keys
from agentbus.retry import Backoff
from agentbus.store import Command

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUEUE = "work"
VISIBILITY = 1.0
ATTEMPTS = 4
# What one task costs, so that a kill meets workers that are busy.
_TOIL = 0.002


def client(url: str) -> redis.Redis:
    """Return a plain connection, which shares nothing with the library under test."""
    return redis.Redis.from_url(url, protocol=2, driver_info=None)


def ask(bus: agentbus.Bus, *words: str | bytes | int) -> Any:
    """Send one command as another program would, on any kind of server, and return the plain reply."""

    def op() -> Any:
        reply = yield Command(*words)
        return reply

    return bus._run("ask", op())


class Site:
    """A queue full of tasks, some of them poison, and worker processes that are killed at random."""

    def __init__(self, url: str, project: str, kind: str, seed: int = 7) -> None:
        self.url, self.project, self.kind = url, project, kind
        self.raw = client(url)
        self.stream = Keys(project).queue(QUEUE, "normal")
        self.letters = Keys(project).dead_letters(QUEUE, "default")
        self.chance = random.Random(seed)
        self.poison: set[int] = set()
        self.workers: list[subprocess.Popen[bytes]] = []
        self.runs: dict[int, int] = {}
        self.kills = self.deaths = 0
        self._tail: bytes | str = "0"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.raw.close()

    def publish(self, tasks: int, poison: int) -> None:
        """Publish all tasks before the first worker exists."""
        self.tasks = tasks
        self.poison = set(self.chance.sample(range(tasks), poison))
        with agentbus.connect(self.url, project=self.project, agent="ada") as bus:
            queue = bus.queue(QUEUE, bound=tasks)
            queue.publish_many({"i": i, "poison": i in self.poison} for i in range(tasks))

    def suffer(self, *, workers: int, kills: int, seconds: float) -> None:
        """Run workers, kill some each time that work has gone on, until all is settled or time is up."""
        deadline = time.monotonic() + seconds
        self.workers = [self._start() for _ in range(workers)]
        share = (self.tasks - len(self.poison)) // (kills + 1)
        while time.monotonic() < deadline:
            news = self.raw.xread({self._progress: self._tail}, block=50, count=100)
            for _, entries in news or ():
                for self._tail, fields in entries:
                    self.runs[int(fields[b"i"])] = self.runs.get(int(fields[b"i"]), 0) + 1
            if self.kills < kills and len(self.runs) >= share * (self.kills + 1):
                self.chance.choice(self.workers).kill()
                self.kills += 1
            for place, worker in enumerate(self.workers):
                if worker.poll() is not None:
                    self.deaths += 1
                    self.workers[place] = self._start()
            if not news and self._settled():
                return

    @property
    def buried(self) -> list[int]:
        """The numbers of the tasks among the dead letters; one without its task is -1."""
        found = self.raw.xrange(self.letters)
        return sorted(json.loads(entry.get(b"payload", b'{"i":-1}'))["i"] for _, entry in found)

    @property
    def lost(self) -> set[int]:
        """Tasks that were neither done nor buried."""
        return set(range(self.tasks)) - set(self.runs) - set(self.buried)

    @property
    def innocents_buried(self) -> set[int]:
        """Tasks among the dead letters that were no poison."""
        return set(self.buried) - self.poison

    def figures(self) -> str:
        """Say in a line what happened."""
        again = sum(runs - 1 for runs in self.runs.values())
        return (
            f"{self.kind}: {self.tasks} tasks, {len(self.poison)} of them poison, {self.kills} kills, "
            f"{self.deaths} deaths: {len(self.runs)} done, {again} runs more than once, "
            f"{len(self.lost)} lost, {len(self.buried)} buried, "
            f"{len(self.innocents_buried)} innocents buried"
        )

    @property
    def _progress(self) -> str:
        return f"{self.project}:progress"

    def _start(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "tests.work_harness", self.kind, self.url, self.project]
        return subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})

    def _settled(self) -> bool:
        try:
            (group,) = self.raw.xinfo_groups(self.stream)
        except (redis.ResponseError, ValueError):
            # No worker has come as far as making the group.
            return False
        last = self.raw.xinfo_stream(self.stream)["last-generated-id"]
        return group["pending"] == 0 and group["last-delivered-id"] == last


class Toil:
    """What a task does: a little work, and a note that it was done. Poison ends the process."""

    def __init__(self, url: str, project: str) -> None:
        self.raw = client(url)
        self.progress = f"{project}:progress"

    def __call__(self, payload: Any) -> None:
        if payload["poison"]:
            os._exit(9)
        time.sleep(_TOIL)
        self.raw.xadd(self.progress, {"i": payload["i"]})


def agentbus_worker(url: str, project: str) -> None:
    """Work as the library does."""
    toil = Toil(url, project)
    with agentbus.connect(url, project=project, agent="worker") as bus:
        worker = bus.subscribe(
            QUEUE,
            lambda delivery: toil(delivery.payload),
            visibility=VISIBILITY,
            attempts=ATTEMPTS,
            backoff=Backoff(first=0.05),
        )
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        worker.run()


class Naive:
    """Works as many programs do: batches, and whatever goes wrong between two commands goes wrong."""

    def __init__(self, url: str, project: str) -> None:
        self.toil = Toil(url, project)
        self.raw = self.toil.raw
        self.me = f"naive-{os.getpid()}"
        self.stream = Keys(project).queue(QUEUE, "normal")
        self.letters = Keys(project).dead_letters(QUEUE, "default")
        with contextlib.suppress(redis.ResponseError):
            # Another worker has made it.
            self.raw.xgroup_create(self.stream, "default", "0", mkstream=True)

    def new(self) -> list[Any]:
        """Take a batch of tasks that nobody had."""
        streams = {self.stream: ">"}
        reply = self.raw.xreadgroup("default", self.me, streams, count=50, block=100)
        return reply[0][1] if reply else []

    def do(self, fields: dict[bytes, bytes]) -> None:
        """Handle one task."""
        self.toil(json.loads(fields[b"payload"]))

    def ack(self, *ids: bytes) -> None:
        """Acknowledge tasks, whoever holds them."""
        self.raw.xack(self.stream, "default", *ids)

    def ack_first(self) -> None:
        """Acknowledge a batch, then handle it."""
        while True:
            entries = self.new()
            if entries:
                self.ack(*(entry_id for entry_id, _ in entries))
            for _, fields in entries:
                self.do(fields)

    def count_deliveries(self) -> None:
        """Acknowledge after the handler, but take the delivery count for the number of attempts."""
        while True:
            idle = round(VISIBILITY * 1000)
            old = self.raw.xautoclaim(self.stream, "default", self.me, idle, "0-0", count=50)[1]
            counts = {
                entry["message_id"]: entry["times_delivered"]
                for entry in self.raw.xpending_range(
                    self.stream, "default", "-", "+", 1000, consumername=self.me
                )
            }
            for entry_id, fields in old:
                if counts.get(entry_id, 0) > ATTEMPTS:
                    self.raw.xadd(self.letters, fields)
                else:
                    self.do(fields)
                self.ack(entry_id)
            for entry_id, fields in self.new():
                self.do(fields)
                self.ack(entry_id)


if __name__ == "__main__":
    KIND, URL, PROJECT = sys.argv[1:]
    if KIND == "agentbus":
        agentbus_worker(URL, PROJECT)
    else:
        getattr(Naive(URL, PROJECT), KIND)()
