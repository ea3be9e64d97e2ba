"""A producer as a process of its own: DATABASE NUMBER COUNT SEED ROLLED_BACK PATH.

It sends so many events, each with a business row in one transaction, of which some are rolled back. How
far it may go is told on its standard input, a number a line; PATH gets what it did.
"""

from __future__ import annotations

import pathlib
import random
import sys

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import Session

from agentbus.events import open_ledger, send_event
from tests.soak_events.shop import COMMITTED, COUNTER, ORDERS, STOCK


class Producer:
    """Sends events from one process."""

    def __init__(self, database: str, number: int, seed: int, rolled_back: float) -> None:
        self._ledger = open_ledger(database)
        self._number = number
        self._chance = random.Random(f"{seed} {number}")
        self._rolled_back = rolled_back
        self.taken_back = self.troubles = 0

    def send(self, number: int) -> None:
        """Send one event, or take it back; again under another name if the database was away."""
        stream = self._chance.choice((ORDERS, STOCK))
        keeps = self._chance.random() >= self._rolled_back
        attempt = 0
        while True:
            try:
                with Session(self._ledger.engine) as session:
                    self._write(session, stream, number, f"{self._number}-{number}-{attempt}")
                    if keeps:
                        session.commit()
                    else:
                        session.rollback()
                        self.taken_back += 1
                return
            except exc.DBAPIError:
                # Whether it was committed, its row in the database will tell.
                self.troubles += 1
                attempt += 1

    def _write(self, session: Session, stream: str, number: int, uuid: str) -> None:
        place = None
        if stream == ORDERS:
            counted = sa.update(COUNTER).where(COUNTER.c.stream == stream)
            counted = counted.values(last=COUNTER.c.last + 1)
            place = session.execute(counted.returning(COUNTER.c.last)).scalar_one()
        session.execute(
            sa.insert(COMMITTED).values(
                uuid=uuid, stream=stream, producer=self._number, number=number, place=place
            )
        )
        send_event(session, stream, "Changed", {"number": number}, event_uuid=uuid)


def main(database: str, number: str, count: str, seed: str, rolled_back: str, path: str) -> None:
    """Send events as far as one is told to."""
    producer = Producer(database, int(number), int(seed), float(rolled_back))
    done = 0
    for line in sys.stdin:
        for each in range(done, min(int(line), int(count))):
            producer.send(each)
            done = each + 1
        pathlib.Path(path).write_text(f"{done} {producer.taken_back} {producer.troubles}")
        if done == int(count):
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
