"""A relay and consumers as one writes them at first, told by one argument of JSON what to do wrong.

They are here to be found out. What a part does wrong is the name of its control, and without one it is
sound in itself: its work and its mark are one transaction.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import redis
import sqlalchemy as sa
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import exc

from agentbus.core.keys import Keys
from agentbus.events import open_ledger
from agentbus.torture.events.plan import READS, READY, RELAY, ROUND, STOPS
from agentbus.torture.events.shop import METADATA, act
from agentbus.torture.events.worker import until_told
from agentbus.torture.history import INVOKE, OK, Scribe
from agentbus.torture.nemesis import FREEZE, KILL
from agentbus.torture.parent import end_with_parent

_PAUSE = 0.02
_AT_ONCE = 20
MARKS = sa.Table(
    "torture_marks",
    METADATA,
    sa.Column("role", sa.Text, primary_key=True),
    sa.Column("at", sa.Text, nullable=False),
)
SEEN = sa.Table(
    "torture_seen",
    METADATA,
    sa.Column("consumer", sa.Text, primary_key=True),
    sa.Column("uuid", sa.Text, primary_key=True),
)
LEASES = sa.Table(
    "torture_leases",
    METADATA,
    sa.Column("role", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("expires", sa.Float, nullable=False),
)


class Job(NamedTuple):
    """What a part is told; `worst` is what befalls it at its worst moment: `kill`, `freeze` or nothing."""

    role: str
    control: str | None
    database: str
    url: str
    project: str
    history: str
    lease: float
    worst: str | None


class Part:
    """A relay or a consumer; each of its methods is a way to work, and returns whether it did anything."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ledger = open_ledger(job.database)
        self._keys = Keys(job.project)
        self._scribe = Scribe(pathlib.Path(job.history))
        self._name = f"{job.role}-{os.getpid()}"
        self._worst = job.worst
        self._stopped = threading.Event()
        self._server: Any = redis.Redis.from_url(
            job.url, decode_responses=True, driver_info=None, retry=Retry(NoBackoff(), 0)
        )

    def run(self) -> None:
        """Work until stopped, in the way that is this part's."""
        ways: dict[str | None, Callable[[], bool]] = {
            "poll_by_id": self.poll_by_id,
            "mark_first": self.mark_first,
            "check_then_act": self.check_then_act,
            "unfenced_lease": self.hold_unfenced,
            None: self.consume,
        }
        way = ways[self._job.control]
        self._scribe.note(READY, OK)
        while not self._stopped.is_set():
            try:
                busy = way()
            except (exc.DBAPIError, redis.RedisError):
                busy = False
            if busy:
                self._scribe.note(ROUND, OK)
            else:
                self._stopped.wait(_PAUSE)

    def stop(self) -> None:
        """Have `run` return."""
        self._stopped.set()

    # -- relays --

    def poll_by_id(self) -> bool:
        """Publish, then mark, what has a higher id than all before: but ids are not committed in order."""
        with self._ledger.engine.begin() as connection:
            rows = self._above(connection)
        for row in rows:
            self._publish(row)
        with self._ledger.engine.begin() as connection:
            self._to(connection, str(rows[-1].id) if rows else None)
        return bool(rows)

    def mark_first(self) -> bool:
        """Mark, then publish, what waits: whoever dies between has lost it."""
        box = self._ledger.tables.outbox
        with self._ledger.engine.begin() as connection:
            waits = box.c.position_ms.is_(None)
            rows = connection.execute(sa.select(box).where(waits).order_by(box.c.id)).all()
            mine = box.c.id.in_([row.id for row in rows])
            connection.execute(sa.update(box).where(mine).values(position_ms=1, position_seq=1))
        if rows:
            self._half_way()
        for row in rows:
            self._publish(row)
        return bool(rows)

    def _above(self, connection: sa.Connection) -> list[Any]:
        box = self._ledger.tables.outbox
        last = int(self._mark(connection))
        asked = sa.select(box).where(box.c.id > last).order_by(box.c.id).limit(_AT_ONCE)
        return list(connection.execute(asked))

    def _publish(self, row: Any) -> None:
        self._server.xadd(self._keys.events(row.stream), {"event_uuid": row.event_uuid})

    # -- consumers --

    def consume(self) -> bool:
        """Act, remember and mark in one transaction for each event."""
        found = self._read()
        for entry_id, uuid in found:
            with self._ledger.transaction() as connection:
                if not self._seen(connection, uuid):
                    self._remember(connection, uuid)
                    self._act(connection, uuid)
                self._to(connection, entry_id)
        return bool(found)

    def check_then_act(self) -> bool:
        """Look whether it was done, act, and remember in the next transaction: which one may not see."""
        found = self._read()
        for entry_id, uuid in found:
            with self._ledger.engine.connect() as connection:
                known = self._seen(connection, uuid)
            if not known:
                with self._ledger.transaction() as connection:
                    self._act(connection, uuid)
                self._half_way()
            with self._ledger.transaction() as connection:
                if not known:
                    self._remember(connection, uuid)
                self._to(connection, entry_id)
        return bool(found)

    def hold_unfenced(self) -> bool:
        """Act while one has the lease, and ask no more whether one has it yet."""
        with self._ledger.transaction() as connection:
            mine = self._lease(connection)
        found = self._read() if mine else []
        if found:
            self._half_way()
        for entry_id, uuid in found:
            with self._ledger.transaction() as connection:
                self._act(connection, uuid)
                self._to(connection, entry_id)
        return bool(found)

    def _read(self) -> list[tuple[str, str]]:
        with self._ledger.transaction() as connection:
            at = self._mark(connection)
        key = self._keys.events(READS[self._job.role])
        found = self._server.xread({key: at}, count=_AT_ONCE)
        return (
            [(entry_id, fields["event_uuid"]) for entry_id, fields in found[0][1]] if found else []
        )

    def _act(self, connection: sa.Connection, uuid: str) -> None:
        act(self._job.role, uuid, connection, self._scribe)

    def _seen(self, connection: sa.Connection, uuid: str) -> bool:
        mine = (SEEN.c.consumer == self._job.role, SEEN.c.uuid == uuid)
        return connection.execute(sa.select(SEEN).where(*mine)).first() is not None

    def _remember(self, connection: sa.Connection, uuid: str) -> None:
        connection.execute(sa.insert(SEEN).values(consumer=self._job.role, uuid=uuid))

    def _lease(self, connection: sa.Connection) -> bool:
        role, now = self._job.role, time.time()
        found = connection.execute(sa.select(LEASES).where(LEASES.c.role == role)).first()
        until = now + self._job.lease
        if found is None:
            connection.execute(sa.insert(LEASES).values(role=role, owner=self._name, expires=until))
            return True
        if found.owner != self._name and found.expires > now:
            return False
        ours = sa.update(LEASES).where(LEASES.c.role == role)
        connection.execute(ours.values(owner=self._name, expires=until))
        return True

    # -- both --

    def _mark(self, connection: sa.Connection) -> str:
        role = self._job.role
        found = connection.execute(sa.select(MARKS.c.at).where(MARKS.c.role == role)).scalar()
        if found is None:
            connection.execute(sa.insert(MARKS).values(role=role, at="0"))
        return found or "0"

    def _to(self, connection: sa.Connection, at: str | None) -> None:
        if at is not None:
            mine = MARKS.c.role == self._job.role
            connection.execute(sa.update(MARKS).where(mine).values(at=at))

    def _half_way(self) -> None:
        """Have befall this process what is to, where it has done one half, and not the other."""
        worst, self._worst = self._worst, None
        if worst == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if worst == FREEZE:
            # Whoever sees this note has us go on when another has acted.
            self._scribe.note(STOPS, INVOKE)
            # This thread, or it might go on until another of this process has taken the signal.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def main(words: str) -> None:
    """Relay or consume until told to stop by SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    end_with_parent()
    part = Part(Job(**json.loads(words)))
    until_told(part.run, part.stop)


def wrong(control: str, role: str) -> bool:
    """Tell whether this role is the one that does it wrong; the others' parts are sound."""
    return (control in ("poll_by_id", "mark_first")) == (role == RELAY)


if __name__ == "__main__":
    main(sys.argv[1])
