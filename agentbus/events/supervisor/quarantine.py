"""Quarantine: consumers that supervisors gave up, as the server keeps them until somebody releases them."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import names
from agentbus.core.clock import rfc3339
from agentbus.core.errors import AgentBusError, NotFound
from agentbus.core.loggers import emit
from agentbus.events.redis import RedisClient
from agentbus.store.steps import Command, Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.queues.runner import BlockingBus

CRASH_LOOP, HEARTBEAT = "crash_loop", "heartbeat"
_EVERY = 1.0
# The field that tells one lifetime of the hash from another; no consumer can be named so.
_LIFE = b""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A consumer that is not started: since when, why (`crash_loop`, `heartbeat`), and its last error.

    What another program wrote in its place, and cannot be read, is empty here, and holds all the same.
    """

    consumer: str
    stream: str
    at: str
    reason: str
    crashes: int
    error: str | None


def quarantined(bus: BlockingBus) -> list[Quarantined]:
    """Return the consumers that are in quarantine, by name. Raises `BackendUnavailable`."""
    server = RedisClient(bus.runner)
    try:
        found, _ = _read(server)
    finally:
        server.close()
    return [found[name] for name in sorted(found)]


def release_consumer(bus: BlockingBus, consumer: str | None) -> list[str]:
    """Take a consumer, or all (None), out of quarantine; returns which. Raises `NotFound`.

    Every running supervisor starts it within about a second, and has forgotten its crashes.
    """
    asked = () if consumer is None else (names.name("consumer", consumer),)
    server = RedisClient(bus.runner)
    try:
        gone = server.ask(Script("pardon", (server.keys.quarantined,), asked, writes=True))
    finally:
        server.close()
    if not gone and consumer is not None:
        raise NotFound(
            f"no consumer {consumer!r} is in quarantine",
            hint="quarantined(bus) returns those that are",
            shell_hint="see 'agentbus quarantine list'",
        )
    return sorted(_text(name) for name in gone)


class QuarantineSync:
    """What a supervisor and the server tell each other of quarantine, each second, from a thread.

    What is remembered here holds: nothing is released because the server is away, was emptied, or went
    back in time; what it lost is written again. Only a consumer that was taken out of a hash which is
    no older than what was seen of it is released.
    """

    def __init__(self, bus: BlockingBus) -> None:
        self._bus = bus
        self._lock = threading.Lock()
        self._mine: dict[str, Quarantined] = {}
        self._written: set[str] = set()
        self._released: list[str] = []
        self._life: tuple[str, int] | None = None
        self._wake = threading.Event()
        self._closed = False
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._run, name="quarantine", daemon=True)
        self.known = threading.Event()

    def start(self) -> None:
        """Begin to ask; `known` is set once the server has answered."""
        self._thread.start()

    def close(self, within: float) -> None:
        """End it after one more exchange, if that takes no longer than so many seconds."""
        self._closed = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(within)

    def add(self, record: Quarantined) -> None:
        """Remember a consumer that was given up, and have it written."""
        with self._lock:
            self._mine[record.consumer] = record
            self._written.discard(record.consumer)
        self._wake.set()

    def about(self, consumer: str) -> Quarantined | None:
        """Return why a consumer is in quarantine, or None."""
        with self._lock:
            return self._mine.get(consumer)

    def all(self) -> list[str]:
        """Return the names of all that are in quarantine."""
        with self._lock:
            return sorted(self._mine)

    def released(self) -> list[str]:
        """Return those that were released since the last call."""
        with self._lock:
            found, self._released = self._released, []
        return found

    def _run(self) -> None:
        server = RedisClient(self._bus.runner)
        while True:
            last = self._closed
            self._wake.clear()
            try:
                self._exchange(server)
                self._trouble = None
                self.known.set()
            except AgentBusError as error:
                if self._trouble != str(error):
                    self._trouble = str(error)
                    emit("warning", {"verb": "supervise", "error": self._trouble})
            if last:
                break
            self._wake.wait(_EVERY)
        server.close()

    def _exchange(self, server: RedisClient) -> None:
        with self._lock:
            pending = [one for name, one in self._mine.items() if name not in self._written]
        if pending:
            _write(server, pending)
        found, life = _read(server)
        with self._lock:
            went_back = _went_back(self._life, life)
            self._written.update(one.consumer for one in pending if one.consumer in found)
            self._life = life
            if went_back:
                # Written again at the next exchange, which is at once.
                self._written = {name for name in self._mine if name in found}
                self._wake.set()
            else:
                gone = [name for name in self._written if name not in found]
                if life is not None:
                    # What was written a moment ago, and is gone already, was released, too.
                    gone += [one.consumer for one in pending if one.consumer not in found]
                for name in gone:
                    self._mine.pop(name, None)
                    self._written.discard(name)
                self._released += gone
            for name, record in found.items():
                self._mine.setdefault(name, record)
                self._written.add(name)


def _went_back(before: tuple[str, int] | None, now: tuple[str, int] | None) -> bool:
    """Tell whether the hash is not the one that was seen, or an older state of it."""
    if before is None:
        return False
    return now is None or now[0] != before[0] or now[1] < before[1]


def _write(server: RedisClient, records: Sequence[Quarantined]) -> None:
    words: list[str | bytes] = [os.urandom(8).hex()]
    for one in records:
        value = {
            "quarantined_at": one.at,
            "reason": one.reason,
            "stream": one.stream,
            "crashes": one.crashes,
            "last_error": one.error,
        }
        words += [one.consumer, orjson.dumps(value)]
    server.ask(Script("quarantine", (server.keys.quarantined,), words, writes=True))


def _read(server: RedisClient) -> tuple[dict[str, Quarantined], tuple[str, int] | None]:
    flat = server.ask(Command("HGETALL", server.keys.quarantined))
    found, life = {}, None
    for at in range(0, len(flat), 2):
        if flat[at] == _LIFE:
            life = _lifetime(flat[at + 1])
            continue
        record = _record(_text(flat[at]), flat[at + 1])
        found[record.consumer] = record
    return found, life


def _lifetime(value: bytes) -> tuple[str, int] | None:
    life, _, number = _text(value).partition(" ")
    return (life, int(number)) if number.isascii() and number.isdigit() else None


def _record(consumer: str, value: bytes) -> Quarantined:
    try:
        told = orjson.loads(value)
    except ValueError:
        told = None
    parts: dict[str, Any] = told if isinstance(told, dict) else {}
    said = {key: each for key, each in parts.items() if isinstance(each, str)}
    crashes = parts.get("crashes")
    return Quarantined(
        consumer,
        said.get("stream", ""),
        said.get("quarantined_at", ""),
        said.get("reason", ""),
        crashes if isinstance(crashes, int) else 0,
        said.get("last_error"),
    )


def record(
    consumer: str, stream: str, reason: str, crashes: int, error: str | None, now: float
) -> Quarantined:
    """Return the record of a consumer that is given up at a unix time."""
    return Quarantined(consumer, stream, rfc3339(now), reason, crashes, error)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
