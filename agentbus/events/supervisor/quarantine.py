"""Quarantine: a list on the server of consumers that no supervisor starts until their release."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.admin.quarantine import lift
from agentbus.core import names
from agentbus.core.errors import AgentBusError, NotFound
from agentbus.core.loggers import emit
from agentbus.events.redis import RedisClient
from agentbus.store.failures import or_empty
from agentbus.store.scan import hash_fields
from agentbus.store.steps import Command, Script
from agentbus.workers.metrics import BOUND
from agentbus.workers.registry import MOST

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from agentbus.queues.runner import BlockingBus
    from agentbus.store.steps import Op

CRASH_LOOP, HEARTBEAT = "crash_loop", "heartbeat"
_EVERY = 1.0
# The hash field with a random id, which shows whether the hash was replaced; not a valid consumer
# name.
_LIFE = b""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A quarantined consumer: since when, the reason (`crash_loop`, `heartbeat`), and its last error.

    An unreadable record of another program counts as well; its fields are empty.
    """

    consumer: str
    stream: str
    at: str
    reason: str
    crashes: int
    error: str | None

    def fields(self) -> dict[str, object]:
        """Return the fields of the server's record, without the consumer's name."""
        return {
            "stream": self.stream,
            "quarantined_at": self.at,
            "reason": self.reason,
            "crashes": self.crashes,
            "last_error": self.error,
        }


def quarantined(bus: BlockingBus) -> list[Quarantined]:
    """Return the quarantined consumers, by name. Raises `BackendUnavailable`."""
    with RedisClient(bus.runner) as server:
        records, _ = _read(server, ())
    return [records[name] for name in sorted(records)]


def release_consumer(bus: BlockingBus, consumer: str | None) -> list[str]:
    """Release a consumer, or all (None), from quarantine; returns their names. Raises `NotFound`.

    Every running supervisor starts them within about a second, with their crash counts reset.
    """
    asked = () if consumer is None else (names.name("consumer", consumer),)
    with RedisClient(bus.runner) as server:
        gone = server.run(lift(server.scope, asked))
    if not gone and consumer is not None:
        raise NotFound(
            f"no consumer {consumer!r} is in quarantine",
            hint="quarantined(bus) returns those that are",
            shell_hint="see 'agentbus quarantine list'",
        )
    return gone


class QuarantineSync:
    """Synchronizes a supervisor's list of quarantined consumers with the server, from a thread.

    A consumer is released only if it was removed from the hash: not if the server is unavailable, was
    emptied, or went back in time. Records that the server lost are written again.
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
        """Start the thread; `known` is set once the server has replied."""
        self._thread.start()

    def close(self, within: float) -> None:
        """Stop after one more exchange, which may take `within` seconds."""
        self._closed = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(within)

    def add(self, record: Quarantined) -> None:
        """Quarantine a consumer, here and on the server."""
        with self._lock:
            self._mine[record.consumer] = record
            self._written.discard(record.consumer)
        self._wake.set()

    def about(self, consumer: str) -> Quarantined | None:
        """Return a consumer's record if it is in quarantine, or None."""
        with self._lock:
            return self._mine.get(consumer)

    def released(self) -> list[str]:
        """Return the consumers released since the last call."""
        with self._lock:
            consumers, self._released = self._released, []
        return consumers

    def _run(self) -> None:
        with RedisClient(self._bus.runner) as server:
            last = False
            while not last:
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
                if not last:
                    self._wake.wait(_EVERY)

    def _exchange(self, server: RedisClient) -> None:
        with self._lock:
            pending = [record for name, record in self._mine.items() if name not in self._written]
        if pending:
            _write(server, pending)
        # Only this thread changes the set of written records.
        known, life = _read(server, self._written)
        with self._lock:
            went_back = _went_back(self._life, life)
            self._written.update(record.consumer for record in pending if record.consumer in known)
            self._life = life
            if went_back:
                # Start the next exchange at once, which writes the records again.
                self._written = {name for name in self._mine if name in known}
                self._wake.set()
            else:
                gone = [name for name in self._written if name not in known]
                if life is not None:
                    # Records written in this exchange that are already gone were released as well.
                    gone += [record.consumer for record in pending if record.consumer not in known]
                for name in gone:
                    self._mine.pop(name, None)
                    self._written.discard(name)
                self._released += gone
            for name, record in known.items():
                self._mine.setdefault(name, record)
                self._written.add(name)


def _went_back(before: tuple[str, int] | None, now: tuple[str, int] | None) -> bool:
    """Tell whether the hash was replaced, or restored to an older state."""
    if before is None:
        return False
    return now is None or now[0] != before[0] or now[1] < before[1]


def _write(server: RedisClient, records: Sequence[Quarantined]) -> None:
    words: list[str | bytes | int] = [os.urandom(8).hex(), BOUND]
    for record in records:
        words += [record.consumer, record.stream, record.reason, orjson.dumps(record.fields())]
    keys = server.keys.quarantined, server.keys.metrics
    server.ask(Script("quarantine", keys, words, writes=True))


def _read(
    server: RedisClient, known: Collection[str]
) -> tuple[dict[str, Quarantined], tuple[str, int] | None]:
    """Return the records, at most about 10,000 and the `known` ones, and the hash's lifetime."""
    nothing: tuple[dict[str, Quarantined], None] = {}, None
    return server.run(or_empty(_stored(server.keys.quarantined, known), nothing))


def _stored(
    key: str, known: Collection[str]
) -> Op[tuple[dict[str, Quarantined], tuple[str, int] | None]]:
    stored = yield from hash_fields(key, MOST)
    # Read the hash's id last: a hash that was replaced during the read has another id.
    rest = [name.encode() for name in known if name.encode() not in stored]
    life, *values = yield Command("HMGET", key, _LIFE, *rest)
    stored.pop(_LIFE, None)
    stored |= {name: value for name, value in zip(rest, values, strict=True) if value is not None}
    records = {_text(name): _record(_text(name), value) for name, value in stored.items()}
    return records, None if life is None else _lifetime(life)


def _lifetime(value: bytes) -> tuple[str, int] | None:
    life, _, number = _text(value).partition(" ")
    return (life, int(number)) if number.isascii() and number.isdigit() else None


def _record(consumer: str, value: bytes) -> Quarantined:
    try:
        parts: Any = orjson.loads(value)
    except ValueError:
        parts = None
    if not isinstance(parts, dict):
        parts = {}
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


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
