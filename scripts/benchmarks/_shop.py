"""A shop whose events the benchmark of events sends and acts on, and the same without this package."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

import agentbus
from agentbus.events import Consumer, Ledger, Relay, open_ledger, register, send_event
from agentbus.events.send import new_uuid

STREAM = "shop:orders"
BODY = {"order": 7, "text": "x" * 170}
_AT_ONCE = 500


class Shop:
    """A database with an application's tables, a ledger, and what the baselines use."""

    def __init__(self, url: str, bus: agentbus.Bus) -> None:
        self.ledger: Ledger = open_ledger(url, make=True)
        self.ledger.create()
        self.bus = bus
        made = sa.MetaData()
        self.orders = sa.Table("orders", made, _id(), sa.Column("body", sa.Text))
        self.effects = sa.Table("effects", made, _id(), sa.Column("uuid", sa.Text))
        self.bare = sa.Table(
            "bare_outbox",
            made,
            _id(),
            *(sa.Column(name, sa.Text) for name in ("stream", "kind", "uuid", "payload")),
        )
        self.known = sa.Table("bare_known", made, sa.Column("uuid", sa.Text, primary_key=True))
        self.place = sa.Table(
            "bare_place",
            made,
            sa.Column("name", sa.Text, primary_key=True),
            sa.Column("at", sa.BigInteger),
        )
        self.jobs = sa.Table("jobs", made, _id(), sa.Column("uuid", sa.Text), _text("payload"))
        made.create_all(self.ledger.engine)
        with self.ledger.transaction() as connection:
            connection.execute(sa.insert(self.place).values(name="bare", at=0))

    # -- this package --

    def send(self, number: int) -> None:
        for _ in range(number):
            with Session(self.ledger.engine) as session:
                session.execute(sa.insert(self.orders).values(body="paid"))
                send_event(session, STREAM, "Placed", BODY, ledger=self.ledger)
                session.commit()

    def relay(self) -> int:
        relay = Relay(self.ledger, self.bus)
        total = 0
        while added := relay.run_once():
            total += added
        relay.close()
        return total

    def consume(self, number: int, *, batch: bool) -> None:
        name = "batch" if batch else "single"
        found = register(self.many if batch else self.one, STREAM, name=name, batch=batch)
        consumer = Consumer(found, self.ledger, self.bus, at_once=_AT_ONCE if batch else 100)
        assert consumer.run_once() == number, consumer.failure
        consumer.close()

    def one(self, event: Any, session: Session) -> None:
        session.execute(sa.insert(self.effects).values(uuid=event.event_uuid))

    def many(self, events: Any, session: Session) -> None:
        session.execute(sa.insert(self.effects), [{"uuid": one.event_uuid} for one in events])

    # -- the limit --

    def bare_send(self, number: int) -> None:
        for _ in range(number):
            with Session(self.ledger.engine) as session:
                session.execute(sa.insert(self.orders).values(body="paid"))
                row = {"stream": STREAM, "kind": "Placed", "uuid": str(uuid.uuid4())}
                session.execute(sa.insert(self.bare).values(**row, payload=str(BODY)))
                session.commit()

    def bare_consume(self, number: int) -> None:
        for n in range(1, number + 1):
            name = str(uuid.uuid4())
            with self.ledger.transaction() as connection:
                connection.execute(sa.insert(self.known).values(uuid=name))
                with Session(connection) as session:
                    session.execute(sa.insert(self.effects).values(uuid=name))
                moved = sa.update(self.place).where(self.place.c.name == "bare")
                connection.execute(moved.values(at=n))

    # -- a job table --

    def job_send(self, number: int) -> None:
        for _ in range(number):
            with Session(self.ledger.engine) as session:
                session.execute(sa.insert(self.orders).values(body="paid"))
                row = {"uuid": str(uuid.uuid4()), "payload": str(BODY)}
                session.execute(sa.insert(self.jobs).values(**row))
                session.commit()

    def job_consume(self, number: int) -> None:
        taken = sa.select(self.jobs).order_by(self.jobs.c.id).limit(1)
        taken = taken.with_for_update(skip_locked=True)
        for _ in range(number):
            with self.ledger.transaction() as connection:
                job = connection.execute(taken).one()
                with Session(connection) as session:
                    session.execute(sa.insert(self.effects).values(uuid=job.uuid))
                connection.execute(sa.delete(self.jobs).where(self.jobs.c.id == job.id))

    def job_consume_many(self, number: int) -> None:
        """Take up to 500 jobs at a time, write their effects, and delete them, in one transaction."""
        taken = sa.select(self.jobs).order_by(self.jobs.c.id).limit(_AT_ONCE)
        taken = taken.with_for_update(skip_locked=True)
        while number > 0:
            with self.ledger.transaction() as connection:
                jobs = connection.execute(taken).all()
                with Session(connection) as session:
                    rows = [{"uuid": job.uuid} for job in jobs]
                    session.execute(sa.insert(self.effects), rows)
                done = sa.delete(self.jobs).where(self.jobs.c.id.in_([job.id for job in jobs]))
                connection.execute(done)
            number -= len(jobs)

    def remember(self, number: int, consumer: str) -> None:
        """Enter as many events as processed as if they had been handled long ago."""
        made = self.ledger.tables.processed
        with self.ledger.transaction() as connection:
            for at in range(0, number, 10_000):
                rows = [
                    {
                        "consumer": consumer,
                        "event_uuid": new_uuid(),
                        "stream": STREAM,
                        "outbox_id": -n,
                        "position_ms": 0,
                        "position_seq": n,
                    }
                    for n in range(at, min(number, at + 10_000))
                ]
                connection.execute(sa.insert(made), rows)
        if self.ledger.dialect == "postgresql":
            # What so many new rows leave to be done is not to be paid by what is measured.
            with self.ledger.engine.connect() as connection:
                alone = connection.execution_options(isolation_level="AUTOCOMMIT")
                alone.exec_driver_sql(f"VACUUM ANALYZE {made.name}")
                alone.exec_driver_sql("CHECKPOINT")


def _id() -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column("id", kind, sa.Identity(), primary_key=True)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text)
