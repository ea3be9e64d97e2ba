"""The shop under torture: its tables, its consumers, and their effects."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from agentbus.events import Registration, register
from tests.torture.events.plan import ACT, ORDERS, READS, STOCK
from tests.torture.history import INVOKE, Scribe

METADATA = sa.MetaData()
_id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
# What was committed: a row for each event, in its transaction.
COMMITTED = sa.Table(
    "torture_committed",
    METADATA,
    sa.Column("uuid", sa.Text, primary_key=True),
    sa.Column("stream", sa.Text, nullable=False),
    # Its connection: events of two connections have no order.
    sa.Column("producer", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    # For orders the place in the order of the commits, since the producer locks the counter.
    sa.Column("place", sa.Integer),
)
COUNTER = sa.Table(
    "torture_counter",
    METADATA,
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("last", sa.Integer, nullable=False),
)
# The effects of handlers. Nothing is unique, so that it shows what was done twice.
EFFECTS = sa.Table(
    "torture_effects",
    METADATA,
    sa.Column("id", _id, sa.Identity(), primary_key=True),
    sa.Column("consumer", sa.Text, nullable=False),
    sa.Column("uuid", sa.Text, nullable=False),
    sqlite_autoincrement=True,
)


def act(name: str, uuid: str, session: Any, scribe: Scribe) -> None:
    """Record that a consumer acted on an event."""
    scribe.note(ACT, INVOKE, consumer=name, uuid=uuid)
    session.execute(sa.insert(EFFECTS).values(consumer=name, uuid=uuid).inline())


def consumers(scribe: Scribe) -> dict[str, Registration]:
    """Return the shop's consumers by name; they write histories."""

    def mail(event: Any, session: Any) -> None:
        act("mail", event.event_uuid, session, scribe)

    def books(events: list[Any], session: Any) -> None:
        for event in events:
            act("books", event.event_uuid, session, scribe)

    def shelf(event: Any, session: Any) -> None:
        act("shelf", event.event_uuid, session, scribe)

    # One by one, a failure blocks; in batches; one by one, a failure is parked.
    found = (
        register(mail, ORDERS, name="mail"),
        register(books, ORDERS, name="books", batch=True),
        # A death counts as an attempt, since the event may have caused it.
        register(shelf, STOCK, name="shelf", on_error="park", attempts=50),
    )
    assert {each.name: each.stream for each in found} == READS
    return {each.name: each for each in found}
