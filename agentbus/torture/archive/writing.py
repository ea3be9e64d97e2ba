"""Who speaks, publishes and works while it is archived, and writes down what the server acknowledged."""

from __future__ import annotations

import hashlib
import json
import pathlib
import random
import sys
import threading
import time
from typing import NamedTuple

from agentbus.client.bus import Bus
from agentbus.core.errors import AgentBusError, QueueFull
from agentbus.core.settings import Settings, resolve
from agentbus.queues.delivery import Delivery
from agentbus.queues.retry import Bury
from agentbus.torture.history import FAIL, INVOKE, OK, UNKNOWN, Scribe
from agentbus.torture.parent import end_with_parent

WRITE = "write"
CHANNEL = "ch:main"
WORKED = "mail"
GROUP = "default"
LETTERS = f"dlq:{WORKED}:{GROUP}"
# Where tasks go, with their priority. Of `mail` nothing may go before it is archived; `sensors` keeps
# the newest alone, so that entries are gone before they are archived; one has a name to be encoded.
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
_GLANCE = 0.05


class Words(NamedTuple):
    """What a process of this module is told: who it is, where the server is, how fast it shall write.

    After `enough_of` entries it goes on at a tenth of that: a slow machine has more time for faults, and is
    not to have more to read.
    """

    name: str
    url: str
    project: str
    place: str
    a_second: float = 0.0
    enough_of: int = 0

    @property
    def settings(self) -> Settings:
        """How the bus is reached."""
        given = {"url": self.url, "project": self.project, "agent": self.name.replace(".", "-")}
        config = str(pathlib.Path(self.place) / "agentbus.yaml")
        return resolve({**given, "deadline": _DEADLINE, "config": config})

    @property
    def enough(self) -> pathlib.Path:
        """The file whose being there means that enough was written."""
        return pathlib.Path(self.place) / "enough"


def text_of(token: str) -> str:
    """Return what is written beside a token, so that it is known if it came to harm."""
    digest = hashlib.blake2b(token.encode(), digest_size=16).hexdigest()
    return digest * (1 + int(digest[0], 16)) + " ä\u2028"


def buried(token: str) -> bool:
    """Tell whether the task with a token is to be buried."""
    return int(hashlib.blake2b(token.encode(), digest_size=2).hexdigest(), 16) % 40 == 0


class Writer:
    """Writes at random, about so many entries a second, until there are enough."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._scribe = Scribe(pathlib.Path(words.place) / "histories" / words.name)
        self._bus = Bus(words.settings)
        # No two lives of a writer use the same tokens.
        self._life = time.monotonic_ns()
        self._number = 0
        self._chance = random.Random(self._life)  # noqa: S311 - what is written, not what goes wrong

    def run(self) -> None:
        """Write until there are enough."""
        while not self._words.enough.exists():
            number = self._turn()
            slowly = 10 if self._number > self._words.enough_of else 1
            time.sleep(number * slowly / self._words.a_second)

    def _turn(self) -> int:
        if self._chance.random() < 0.3:
            self._write(CHANNEL, 1)
            return 1
        queue, priority = self._chance.choice(QUEUES)
        number = self._chance.choice((1, 2, _BATCH))
        self._write(queue, number, priority)
        return number

    def _write(self, where: str, number: int, priority: str | None = None) -> None:
        first, self._number = self._number, self._number + number
        of = {"life": self._life, "first": first, "number": number}
        self._scribe.note(WRITE, INVOKE, **of)
        tokens = [token(self._words.name, self._life, n) for n in range(first, first + number)]
        try:
            ids = self._ask(where, priority, tokens)
        except QueueFull:
            self._scribe.note(WRITE, FAIL, **of)
        except AgentBusError as error:
            self._scribe.note(WRITE, UNKNOWN, **of, error=str(error))
        else:
            self._scribe.note(WRITE, OK, **of, ids=ids)

    def _ask(self, where: str, priority: str | None, tokens: list[str]) -> list[str]:
        """Write, and return the names of the streams and the ids that were told."""
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
    """Return what marks one entry among all that are ever written."""
    return f"{name}.{life}.{number}"


def work(words: Words) -> None:
    """Do the tasks of one queue, and bury some, until there are enough."""

    def handle(delivery: Delivery) -> None:
        if buried(delivery.payload["n"]):
            raise Bury("as its token says")

    with Bus(words.settings) as bus:
        worker = bus.subscribe(WORKED, handle, group=GROUP)

        def stop() -> None:
            while not words.enough.exists():
                time.sleep(_GLANCE)
            worker.stop()

        threading.Thread(target=stop, daemon=True).start()
        worker.run()


if __name__ == "__main__":
    end_with_parent()
    told = Words(*json.loads(sys.argv[1]))
    if told.a_second:
        Writer(told).run()
    else:
        work(told)
