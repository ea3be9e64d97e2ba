"""Events acted on a second, beside the limit and a job table, on SQLite and on PostgreSQL.

    python -m tests.bench.events [--events N] [--rounds N] [--processed N]

Everything runs in one process, one thing after the other, so that what is told is the time that an event
takes. Each has 200 bytes; its handler writes one row. Three ways:

- this package: a row of business and `send_event` in a transaction each; `Relay.run_once`; `Consumer`, one
  event a transaction or many (batch);
- (a) the limit: sessions of SQLAlchemy that write the same rows without us: the row of business with
  one that stands for the outbox; then the effect, the row by which duplicates are known, the checkpoint;
- (b) a job table: the row of business with the job; then SELECT … FOR UPDATE SKIP LOCKED of one job, the
  effect and the job's deletion in a transaction each. On PostgreSQL only;
- (c) procrastinate, a job queue on the same PostgreSQL.

Then how the time an event grows with what was processed before.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import statistics
import tempfile
import time
import uuid
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

import agentbus
from agentbus.events import Consumer, Ledger, Relay, open_ledger, register, send_event
from agentbus.events.sending import new_uuid
from agentbus.torture.events.postgres import Postgres
from tests.bench._figures import table
from tests.bench._procrastinate import Procrastinate
from tests.servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def timed(work: Callable[..., object], *args: Any, **options: Any) -> float:
    """Return how long a call takes, in seconds."""
    began = time.perf_counter()
    work(*args, **options)
    return time.perf_counter() - began


def measured(shop: Shop, number: int, rounds: int) -> dict[str, float]:
    """Return the seconds that so many events take in each way, the median of the rounds."""
    found: dict[str, list[float]] = {}
    others: Procrastinate | None = None

    def note(name: str, seconds: float) -> None:
        found.setdefault(name, []).append(seconds)

    for round_ in range(rounds + 1):
        before = {name: len(each) for name, each in found.items()}
        note("send", timed(shop.send, number))
        note("relay", timed(shop.relay))
        note("single", timed(shop.consume, number, batch=False))
        note("batch", timed(shop.consume, number, batch=True))
        note("bare send", timed(shop.bare_send, number))
        note("bare consume", timed(shop.bare_consume, number))
        if shop.ledger.dialect == "postgresql":
            note("job send", timed(shop.job_send, number))
            note("job consume", timed(shop.job_consume, number))
            others = others or Procrastinate(shop.ledger, shop.orders, shop.effects)
            note("procrastinate send", timed(others.send, number, BODY))
            note("procrastinate consume", timed(others.consume, number))
        if round_ == 0:
            # The first one warms up.
            found = {name: each[: before.get(name, 0)] for name, each in found.items()}
    return {name: statistics.median(each) for name, each in found.items()}


def report(name: str, number: int, took: dict[str, float]) -> None:
    """Print what a round took, an event, and beside the baselines."""
    table(
        f"{name}: {number} events a round",
        ("what", "events/s", "µs an event", "of the limit"),
        [
            (
                what,
                f"{number / seconds:,.0f}",
                f"{seconds / number * 1e6:.0f}",
                _ratio(what, took),
            )
            for what, seconds in took.items()
        ],
    )
    whole = {
        "single mode": took["send"] + took["relay"] + took["single"],
        "batch mode": took["send"] + took["relay"] + took["batch"],
        "(a) the limit": took["bare send"] + took["bare consume"],
    }
    if "job send" in took:
        whole["(b) a job table"] = took["job send"] + took["job consume"]
        theirs = took["procrastinate send"] + took["procrastinate consume"]
        whole["(c) procrastinate"] = theirs
    limit = whole["(a) the limit"]
    table(
        f"{name}: sent, published and acted on",
        ("way", "events/s", "x the time of the limit"),
        [
            (way, f"{number / seconds:,.0f}", f"{seconds / limit:.2f}")
            for way, seconds in whole.items()
        ],
    )


def _ratio(what: str, took: dict[str, float]) -> str:
    base = "bare send" if what.endswith("send") else "bare consume"
    return f"{took[what] / took[base]:.2f}"


def growth(shop: Shop, number: int, sizes: list[int]) -> list[tuple[str, str, str]]:
    """Return the time an event in single mode after so many were processed."""
    rows, there, first = [], 0, 0.0
    for size in sizes:
        shop.remember(size - there, "single")
        there = size
        shop.send(number)
        shop.relay()
        seconds = timed(shop.consume, number, batch=False)
        shop.consume(number, batch=True)
        first = first or seconds
        rows.append((f"{size:,}", f"{seconds / number * 1e6:.0f}", f"{seconds / first:.2f}"))
    return rows


@contextlib.contextmanager
def databases(place: pathlib.Path) -> Iterator[dict[str, str]]:
    """Start PostgreSQL, and return the URLs of both databases."""
    with Postgres() as server:
        yield {"PostgreSQL": server.url, "SQLite": f"sqlite:///{place / 'shop.db'}"}


def main() -> None:
    """Measure and print."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--events", type=int, default=2000)
    ask.add_argument("--rounds", type=int, default=3)
    ask.add_argument("--processed", type=int, default=1_000_000)
    given = ask.parse_args()
    sizes = [size for size in (10_000, 100_000, 1_000_000) if size <= given.processed]
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        with Server(place / "valkey") as server, databases(place) as urls:
            for name, url in urls.items():
                with agentbus.connect(server.url, project=f"bench-{name}", agent="bench") as bus:
                    shop = Shop(url, bus)
                    report(name, given.events, measured(shop, given.events, given.rounds))
                    table(
                        f"{name}: single mode, after so many processed",
                        ("processed", "µs an event", "of the first"),
                        growth(shop, given.events, sizes),
                    )


if __name__ == "__main__":
    main()
