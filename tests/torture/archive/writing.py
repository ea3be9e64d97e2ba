"""The processes that speak, publish and work while they are archived, and write histories."""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import random
import sys
import threading
import time

from agentbus.client.bus import Bus
from agentbus.core.errors import AgentBusError, QueueFull
from agentbus.core.settings import Settings, resolve
from agentbus.queues.delivery import Delivery
from agentbus.queues.retry import Bury
from tests.torture.assignment import Allowance, Assignment

WRITE = "write"
CHANNEL = "ch:main"
WORKED = "mail"
GROUP = "default"
LETTERS = f"dlq:{WORKED}:{GROUP}"
# Queues, with the priority of their tasks. `mail` keeps everything until it is archived; `sensors` keeps
# only the newest, so that entries are gone before they are archived; one name must be encoded.
QUEUES = (
    *((WORKED, "normal"), ("bulk", "normal"), ("bulk", "high"), ("bulk", "normal")),
    *(("a:b%", "low"), ("sensors", "normal")),
)
STREAMS = frozenset(
    {CHANNEL, "q:mail", "q:bulk", "q:bulk:high", "q:a%3Ab%25:low", "q:sensors", LETTERS}
)
HELD = "q:mail"
POLICIES = """queues:
  "*": {bound: 10000000}
  mail: {bound: 4000}
  sensors: {bound: 500, on_full: trim}
"""
_DEADLINE = 3.0
_BATCH = 40


WORKER = "worker"
CONFIG = "agentbus.yaml"


def settings_of(name: str, url: str, project: str, place: str) -> Settings:
    """Return the settings of a process, with the policies of this mode."""
    given = {"url": url, "project": project, "agent": name.replace(".", "-")}
    config = str(pathlib.Path(place) / CONFIG)
    return resolve({**given, "deadline": _DEADLINE, "config": config})


def text_of(token: str) -> str:
    """Return what is written beside a token, which shows any damage."""
    digest = hashlib.blake2b(token.encode(), digest_size=16).hexdigest()
    return digest * (1 + int(digest[0], 16)) + " ä\u2028"


def buried(token: str) -> bool:
    """Tell whether the task with a token is to be buried."""
    return int(hashlib.blake2b(token.encode(), digest_size=2).hexdigest(), 16) % 40 == 0


class EntryWriter:
    """Writes at random, about `a_second` entries a second; after `enough_of`, a tenth of that.

    A slow machine needs more time for the faults, and must not have more to read for it.
    """

    def __init__(self, assignment: Assignment, limit: Allowance) -> None:
        self._name, self._limit = assignment.name, limit
        self._a_second: float = assignment.options["a_second"]
        self._enough: int = assignment.options["enough_of"]
        self._scribe = assignment.scribe()
        self._bus = _bus(assignment)
        # No two processes of a writer use the same tokens.
        self._life = time.monotonic_ns()
        self._number = 0
        self._chance = random.Random(self._life)

    def run(self) -> None:
        """Write until the limit is over."""
        while not self._limit.over:
            if self._chance.random() < 0.3:
                number = self._write(CHANNEL, 1)
            else:
                queue, priority = self._chance.choice(QUEUES)
                number = self._write(queue, self._chance.choice((1, 2, _BATCH)), priority)
            slowly = 10 if self._number > self._enough else 1
            time.sleep(number * slowly / self._a_second)

    def _write(self, where: str, number: int, priority: str | None = None) -> int:
        first, self._number = self._number, self._number + number
        tokens = [token(self._name, self._life, n) for n in range(first, first + number)]
        of = {"life": self._life, "first": first, "number": number}
        with (
            contextlib.suppress(AgentBusError),
            self._scribe.asking(WRITE, QueueFull, **of) as answer,
        ):
            answer["ids"] = self._ask(where, priority, tokens)
        return number

    def _ask(self, where: str, priority: str | None, tokens: list[str]) -> list[str]:
        """Write, and return the names of the streams and the ids."""
        if priority is None:
            said = self._bus.speak(f"{tokens[0]} {text_of(tokens[0])}", topic="torture")
            return [f"{CHANNEL} {said.id}"]
        payloads = [{"n": each, "text": text_of(each)} for each in tokens]
        queue = self._bus.queue(where)
        if len(tokens) == 1:
            found = [queue.publish(payloads[0], priority=priority, correlation_id=tokens[0])]
        else:
            found = queue.publish_many(payloads, priority=priority)
        named = [each.partition("@") for each in found]
        return [f"q:{stream} {entry_id}" for entry_id, _, stream in named]


def token(name: str, life: int, number: int) -> str:
    """Return the unique mark of an entry."""
    return f"{name}.{life}.{number}"


def work(assignment: Assignment, limit: Allowance) -> None:
    """Do the tasks of one queue, and bury some, until the limit is over."""

    def handle(delivery: Delivery) -> None:
        if buried(delivery.payload["n"]):
            raise Bury("as its token says")

    with _bus(assignment) as bus:
        worker = bus.subscribe(WORKED, handle, group=GROUP)

        def stop() -> None:
            limit.reaches(sys.maxsize)
            worker.stop()

        threading.Thread(target=stop, daemon=True).start()
        worker.run()


def _bus(told: Assignment) -> Bus:
    return Bus(settings_of(told.name, told.url, told.project, told.place))


def main(told: Assignment, limit: Allowance) -> None:
    """Write, or work."""
    if told.kind == WORKER:
        work(told, limit)
    else:
        EntryWriter(told, limit).run()
