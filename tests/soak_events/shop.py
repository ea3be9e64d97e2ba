"""The shop of the soak: its tables, its consumers, and what they write of each event."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from agentbus.events import consumer

ORDERS, STOCK = "orders", "stock"
# Consumers, by the stream that they read.
READS = {"mail": ORDERS, "books": ORDERS, "shelf": STOCK}

METADATA = sa.MetaData()
_id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
# What was committed: a row for each event, in its transaction.
COMMITTED = sa.Table(
    "soak_committed",
    METADATA,
    sa.Column("uuid", sa.Text, primary_key=True),
    sa.Column("stream", sa.Text, nullable=False),
    sa.Column("producer", sa.Integer, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    # Of orders the place in the order of their commits, since their sender locks the counter.
    sa.Column("place", sa.Integer),
)
COUNTER = sa.Table(
    "soak_counter",
    METADATA,
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("last", sa.Integer, nullable=False),
)
# What handlers did. Nothing in it is unique: it shows whatever was done twice.
EFFECTS = sa.Table(
    "soak_effects",
    METADATA,
    sa.Column("id", _id, sa.Identity(), primary_key=True),
    sa.Column("consumer", sa.Text, nullable=False),
    sa.Column("uuid", sa.Text, nullable=False),
    sqlite_autoincrement=True,
)


def act(name: str, event: Any, session: Any) -> None:
    """Write that a consumer acted on an event."""
    session.execute(sa.insert(EFFECTS).values(consumer=name, uuid=event.event_uuid).inline())


@consumer(ORDERS, name="mail")
def mail(event: Any, session: Any) -> None:
    """Act on one order after the other; one that fails blocks."""
    act("mail", event, session)


@consumer(ORDERS, name="books", batch=True)
def books(events: list[Any], session: Any) -> None:
    """Act on many orders in one transaction."""
    for event in events:
        act("books", event, session)


# A death counts as an attempt, since an event may be what its process died of.
@consumer(STOCK, name="shelf", on_error="park", attempts=50)
def shelf(event: Any, session: Any) -> None:
    """Act on one change of the stock after the other; one that fails is parked."""
    act("shelf", event, session)
