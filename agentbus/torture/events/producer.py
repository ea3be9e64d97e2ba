"""A producer as a process of its own, told by one argument of JSON what to send.

It sends so many events, each with a business row in one transaction, of which some are rolled back. How far
it may go is told on its standard input, a number a line; who takes its place goes on behind what it began.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import sys
import threading
import time
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import Session

from agentbus.events import open_ledger, send_event
from agentbus.torture.events.naive import MARKS
from agentbus.torture.events.plan import ORDERS, READY, RELAY, SEND
from agentbus.torture.events.shop import COMMITTED, COUNTER
from agentbus.torture.history import FAIL, INVOKE, OK, UNKNOWN, Scribe

_PAUSE = 0.05


class Job(NamedTuple):
    """What a producer is told; a `late` one commits its first event when the relay is past the next."""

    name: str
    database: str
    history: str
    streams: list[str]
    number: int
    seed: int
    rolled_back: float
    late: bool


class Allowance:
    """How far one may go, as standard input tells it; with its other end this process ends."""

    def __init__(self) -> None:
        self._allowed = 0
        self._grown = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def await_(self, number: int) -> None:
        """Return once one may go as far as a number."""
        with self._grown:
            self._grown.wait_for(lambda: self._allowed >= number)

    def _listen(self) -> None:
        for line in sys.stdin:
            with self._grown:
                self._allowed = int(line)
                self._grown.notify()
        os.kill(os.getpid(), signal.SIGKILL)


class Producer:
    """Sends events from one process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ledger = open_ledger(job.database, deadline=1)
        self._scribe = Scribe(pathlib.Path(job.history))
        self._renew()

    def begin(self) -> None:
        """Note that it can send."""
        self._scribe.note(READY, OK)

    def _renew(self) -> None:
        """Take another name: what the connection before may yet commit has no order with what comes."""
        self._chain = f"{self._job.name}@{time.monotonic_ns()}"

    def send(self, number: int) -> None:
        """Send one event, or take it back; again under another name if the database was away."""
        chance = random.Random(f"{self._job.seed} {self._job.name} {number}")  # noqa: S311 - repeatable
        stream = chance.choice(self._job.streams)
        late = self._job.late and number == 0
        keeps = chance.random() >= self._job.rolled_back or late
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
                # Whether it was committed, its row in the database will tell.
                self._scribe.note(SEND, UNKNOWN, uuid=uuid, error=str(error.orig)[:200])
                self._renew()
                time.sleep(_PAUSE)
                continue
            self._scribe.note(SEND, OK if keeps else FAIL, uuid=uuid)
            return

    def _be_overtaken(self) -> None:
        """Commit another event meanwhile, and return once a relay has gone past it."""
        uuid = f"{self._chain}-overtakes"
        with Session(self._ledger.engine) as session:
            self._write(session, self._job.streams[0], 0, uuid, chain=uuid)
            session.commit()
        box = self._ledger.tables.outbox
        row = sa.select(box.c.id).where(box.c.event_uuid == uuid)
        mark = sa.select(MARKS.c.at).where(MARKS.c.role == RELAY)
        with self._ledger.engine.connect().execution_options(
            isolation_level="AUTOCOMMIT"
        ) as connection:
            wanted = connection.execute(row).scalar_one()
            while int(connection.execute(mark).scalar() or 0) < wanted:
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
    """Return how many events were begun by those whose history this is."""
    if not history.exists():
        return 0
    lines = [json.loads(line) for line in history.read_bytes().splitlines()]
    return max((of["number"] + 1 for _, _, phase, of in lines if phase == INVOKE), default=0)


def main(words: str) -> None:
    """Send events as far as one is told to."""
    # In place of `end_with_parent`, which would take what it is told for its end.
    allowance = Allowance()
    job = Job(**json.loads(words))
    first = begun(pathlib.Path(job.history))
    producer = Producer(job)
    producer.begin()
    for number in range(first, job.number):
        allowance.await_(number + 1)
        producer.send(number)


if __name__ == "__main__":
    main(sys.argv[1])
