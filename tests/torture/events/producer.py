"""The process of a producer: sends events as far as it may; its successor goes on behind what it began.

Each event is in one transaction with a business row; some transactions are rolled back.
"""

from __future__ import annotations

import pathlib
import random
import time

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import Session

from agentbus.events import open_ledger, send_event
from tests.torture.assignment import Allowance, Assignment
from tests.torture.events.plan import ORDERS, READY, SEND
from tests.torture.events.shop import COMMITTED, COUNTER
from tests.torture.history import FAIL, INVOKE, OK, UNKNOWN, read_history

_PAUSE = 0.05
# The share of the transactions that are rolled back.
_ROLLED_BACK = 0.1


class Producer:
    """Sends events; a `late` one commits its first event once the relay is past the next."""

    def __init__(self, assignment: Assignment) -> None:
        options = assignment.options
        self._seed, self._name = assignment.seed, assignment.name
        self._streams: list[str] = options["streams"]
        self._late: bool = options["late"]
        self._ledger = open_ledger(options["database"], deadline=1)
        self._scribe = assignment.scribe()
        self._renew()
        self._scribe.note(READY, OK)

    def _renew(self) -> None:
        """Take a new name: what the connection before may still commit has no order with what comes."""
        self._chain = f"{self._name}@{time.monotonic_ns()}"

    def send(self, number: int) -> None:
        """Send one event, or roll it back; again under another name if the database was away."""
        chance = random.Random(f"{self._seed} {self._name} {number}")
        stream = chance.choice(self._streams)
        late = self._late and number == 0
        keeps = chance.random() >= _ROLLED_BACK or late
        while True:
            uuid = f"{self._chain}-{number}"
            self._scribe.note(SEND, INVOKE, number=number, stream=stream, uuid=uuid)
            try:
                with Session(self._ledger.engine) as session:
                    self._write(session, stream, number, uuid)
                    if late:
                        self._be_overtaken()
                    if keeps:
                        session.commit()
                    else:
                        session.rollback()
            except exc.DBAPIError as error:
                # Its row in the database shows whether it was committed.
                self._scribe.note(SEND, UNKNOWN, uuid=uuid, error=str(error.orig)[:200])
                self._renew()
                time.sleep(_PAUSE)
                continue
            self._scribe.note(SEND, OK if keeps else FAIL, uuid=uuid)
            return

    def _be_overtaken(self) -> None:
        """Commit another event meanwhile, and return once a relay is past it."""
        uuid = f"{self._chain}-overtakes"
        with Session(self._ledger.engine) as session:
            self._write(session, self._streams[0], 0, uuid, chain=uuid)
            session.commit()
        box = self._ledger.tables.outbox
        mark = sa.select(box.c.position_ms).where(box.c.event_uuid == uuid)
        with self._ledger.engine.connect().execution_options(
            isolation_level="AUTOCOMMIT"
        ) as connection:
            while connection.execute(mark).scalar() is None:
                time.sleep(_PAUSE)

    def _write(
        self, session: Session, stream: str, number: int, uuid: str, *, chain: str | None = None
    ) -> None:
        place = None
        if stream == ORDERS:
            counted = sa.update(COUNTER).where(COUNTER.c.stream == stream)
            counted = counted.values(last=COUNTER.c.last + 1)
            place = session.execute(counted.returning(COUNTER.c.last)).scalar_one()
        session.execute(
            sa.insert(COMMITTED).values(
                uuid=uuid, stream=stream, producer=chain or self._chain, number=number, place=place
            )
        )
        send_event(session, stream, "Changed", {"number": number}, event_uuid=uuid)


def begun(history: pathlib.Path) -> int:
    """Return how many events this process's predecessors have begun."""
    found = (e.of["number"] for e in read_history(history) if e.phase == INVOKE)
    return max(found, default=-1) + 1


def main(told: Assignment, limit: Allowance) -> None:
    """Send events as far as the limit allows."""
    first = begun(told.history)
    producer = Producer(told)
    for number in range(first, told.options["number"]):
        limit.reaches(number + 1)
        producer.send(number)
