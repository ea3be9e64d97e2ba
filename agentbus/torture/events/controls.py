"""The processes of relays and consumers as many write them at first; the checks must catch them.

The name of its control is what a part does wrong. Without one it is sound: its work and its mark are in one
transaction.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import redis
import sqlalchemy as sa
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import exc

from agentbus.core.keys import Keys
from agentbus.events import open_ledger
from agentbus.torture.assignment import Assignment, assigned
from agentbus.torture.events.plan import READS, READY, RELAY, ROUND, STOPS
from agentbus.torture.events.shop import METADATA, act
from agentbus.torture.events.worker import until_sigterm
from agentbus.torture.history import INVOKE, OK
from agentbus.torture.nemesis import FREEZE, KILL

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


class NaivePart:
    """A relay or a consumer; each of its ways to work is a method that returns whether it did anything."""

    def __init__(self, assignment: Assignment) -> None:
        options = assignment.options
        self._role, self._control = assignment.kind, options["control"]
        self._ledger = open_ledger(options["database"])
        self._keys = Keys(assignment.project)
        self._scribe = assignment.scribe()
        self._name = f"{self._role}-{os.getpid()}"
        self._lasts: float = options["lease"]
        # What happens to it at its worst moment: `kill`, `freeze` or nothing.
        self._worst: str | None = options["dies"]
        self._stopped = threading.Event()
        self._server: Any = redis.Redis.from_url(
            assignment.url, decode_responses=True, driver_info=None, retry=Retry(NoBackoff(), 0)
        )

    def run(self) -> None:
        """Work until stopped."""
        way: Callable[[], bool] = getattr(self, self._control or "consume")
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
        """Let `run` return."""
        self._stopped.set()

    # -- relays --

    def poll_by_id(self) -> bool:
        """Publish, then mark, what has a higher id than before: but ids are not committed in order."""
        with self._ledger.engine.begin() as connection:
            rows = self._above(connection)
        for row in rows:
            self._publish(row)
        with self._ledger.engine.begin() as connection:
            self._to(connection, str(rows[-1].id) if rows else None)
        return bool(rows)

    def mark_first(self) -> bool:
        """Mark, then publish: a death in between loses it."""
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
        """Look whether it was done, act, and remember it in the next transaction."""
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

    def unfenced_lease(self) -> bool:
        """Take the lease, and act without asking whether it is still held."""
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
        key = self._keys.events(READS[self._role])
        found = self._server.xread({key: at}, count=_AT_ONCE)
        return (
            [(entry_id, fields["event_uuid"]) for entry_id, fields in found[0][1]] if found else []
        )

    def _act(self, connection: sa.Connection, uuid: str) -> None:
        act(self._role, uuid, connection, self._scribe)

    def _seen(self, connection: sa.Connection, uuid: str) -> bool:
        mine = (SEEN.c.consumer == self._role, SEEN.c.uuid == uuid)
        return connection.execute(sa.select(SEEN).where(*mine)).first() is not None

    def _remember(self, connection: sa.Connection, uuid: str) -> None:
        connection.execute(sa.insert(SEEN).values(consumer=self._role, uuid=uuid))

    def _lease(self, connection: sa.Connection) -> bool:
        role, now = self._role, time.time()
        found = connection.execute(sa.select(LEASES).where(LEASES.c.role == role)).first()
        until = now + self._lasts
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
        role = self._role
        found = connection.execute(sa.select(MARKS.c.at).where(MARKS.c.role == role)).scalar()
        if found is None:
            connection.execute(sa.insert(MARKS).values(role=role, at="0"))
        return found or "0"

    def _to(self, connection: sa.Connection, at: str | None) -> None:
        if at is not None:
            mine = MARKS.c.role == self._role
            connection.execute(sa.update(MARKS).where(mine).values(at=at))

    def _half_way(self) -> None:
        """Die or stop, if armed to, with one half done and the other not."""
        worst, self._worst = self._worst, None
        if worst == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if worst == FREEZE:
            # The nemesis, which sees this, lets us go on when another process has acted.
            self._scribe.note(STOPS, INVOKE)
            # To this thread, which else might go on until another thread has taken the signal.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def is_wrong(control: str, role: str) -> bool:
    """Tell whether this role is the wrong part; the other parts are sound."""
    return (control in ("poll_by_id", "mark_first")) == (role == RELAY)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    part = NaivePart(assigned()[0])
    until_sigterm(part.run, part.stop)
