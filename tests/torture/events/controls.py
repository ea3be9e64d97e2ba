"""The processes of relays and consumers as many write them at first; the checks must catch them.

The name of its control is what a part does wrong. Without one it is sound as long as it lives.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import redis
import sqlalchemy as sa
from sqlalchemy import exc

from agentbus.core.keys import Keys
from agentbus.events import open_ledger
from tests.torture.assignment import Allowance, Assignment
from tests.torture.events.plan import READS, READY, RELAY, ROUND, STOPS
from tests.torture.events.shop import act
from tests.torture.events.worker import until_sigterm
from tests.torture.history import INVOKE, OK
from tests.torture.nemesis import FREEZE, KILL
from tests.torture.plain import plain_client

_PAUSE = 0.02
_AT_ONCE = 20


class NaivePart:
    """A relay or a consumer; each of its ways to work is a method that returns whether it did anything.

    A consumer keeps in Redis how far it is, what it has done, and its lease.
    """

    def __init__(self, assignment: Assignment) -> None:
        options = assignment.options
        self._role, self._control = assignment.kind, options["control"]
        self._ledger = open_ledger(options["database"])
        self._outbox = self._ledger.tables.outbox
        self._keys = Keys(assignment.project)
        self._scribe = assignment.scribe()
        self._name = f"{self._role}-{os.getpid()}"
        self._lease_ms = round(options["lease"] * 1000)
        # What happens to it at its worst moment: `kill`, `freeze` or nothing.
        self._worst: str | None = options["dies"]
        self._stopped = threading.Event()
        self._server: Any = plain_client(assignment.url, retry=None, decode_responses=True)

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
        marked = sa.select(sa.func.coalesce(sa.func.max(self._outbox.c.id), 0))
        rows = self._rows(
            self._outbox.c.id
            > marked.where(self._outbox.c.position_ms.is_not(None)).scalar_subquery()
        )
        self._publish(rows)
        self._mark(rows)
        return bool(rows)

    def mark_first(self) -> bool:
        """Mark, then publish: a death in between loses it."""
        rows = self._rows(self._outbox.c.position_ms.is_(None))
        self._mark(rows)
        if rows:
            self._half_way()
        self._publish(rows)
        return bool(rows)

    def _rows(self, wanted: sa.ColumnElement[bool]) -> list[Any]:
        box = self._outbox
        with self._ledger.engine.begin() as connection:
            return list(connection.execute(sa.select(box).where(wanted).order_by(box.c.id)))

    def _mark(self, rows: list[Any]) -> None:
        these = self._outbox.c.id.in_([row.id for row in rows])
        with self._ledger.engine.begin() as connection:
            connection.execute(
                sa.update(self._outbox).where(these).values(position_ms=1, position_seq=1)
            )

    def _publish(self, rows: list[Any]) -> None:
        for row in rows:
            self._server.xadd(self._keys.events(row.stream), {"event_uuid": row.event_uuid})

    # -- consumers --

    def consume(self) -> bool:
        """Act on each event, and go on behind it."""
        found = self._read()
        for entry_id, uuid in found:
            self._act(uuid)
            self._go_on_behind(entry_id)
        return bool(found)

    def check_then_act(self) -> bool:
        """Look whether it was done, act, and then remember it."""
        found = self._read()
        for entry_id, uuid in found:
            if not self._server.sismember(self._key("done"), uuid):
                self._act(uuid)
                self._half_way()
                self._server.sadd(self._key("done"), uuid)
            self._go_on_behind(entry_id)
        return bool(found)

    def unfenced_lease(self) -> bool:
        """Take the lease, and act without asking whether it is still held."""
        if not self._lease():
            return False
        found = self._read()
        if found:
            self._half_way()
        for entry_id, uuid in found:
            self._act(uuid)
            self._go_on_behind(entry_id)
        return bool(found)

    def _key(self, what: str) -> str:
        return self._keys.jot(f"{what} {self._role}")

    def _read(self) -> list[tuple[str, str]]:
        at = self._server.get(self._key("cursor")) or "0"
        found = self._server.xread({self._keys.events(READS[self._role]): at}, count=_AT_ONCE)
        return (
            [(entry_id, fields["event_uuid"]) for entry_id, fields in found[0][1]] if found else []
        )

    def _act(self, uuid: str) -> None:
        with self._ledger.transaction() as connection:
            act(self._role, uuid, connection, self._scribe)

    def _go_on_behind(self, entry_id: str) -> None:
        self._server.set(self._key("cursor"), entry_id)

    def _lease(self) -> bool:
        key = self._key("lease")
        if self._server.get(key) == self._name:
            return bool(self._server.pexpire(key, self._lease_ms))
        return bool(self._server.set(key, self._name, nx=True, px=self._lease_ms))

    # -- both --

    def _half_way(self) -> None:
        """Die or stop, if armed to, with one half done and the other not."""
        worst, self._worst = self._worst, None
        if worst == KILL:
            self._scribe.die()
        if worst == FREEZE:
            # The nemesis, which sees this, lets us go on when another process has acted.
            self._scribe.note(STOPS, INVOKE)
            # To this thread, which else might go on until another thread has taken the signal.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def is_wrong(control: str, role: str) -> bool:
    """Tell whether this role is the wrong part; the other parts are sound."""
    return (control in ("poll_by_id", "mark_first")) == (role == RELAY)


def main(told: Assignment, _limit: Allowance) -> None:
    """Work until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    part = NaivePart(told)
    until_sigterm(part.run, part.stop)
