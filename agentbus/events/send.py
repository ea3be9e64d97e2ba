"""Sends an event: writes an outbox row in the transaction of the change that it describes."""

from __future__ import annotations

import secrets
import time
import uuid
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session

from agentbus.core import envelope, names
from agentbus.core.errors import InvalidPayload, UsageError
from agentbus.events import databases
from agentbus.events.guarantee import Guarantee
from agentbus.events.ledger import Ledger
from agentbus.events.schemas import REGISTERED
from agentbus.events.tables import tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.events.schemas import EventSchemas
    from agentbus.events.tables import Tables

_USUAL = tables()


def send_event(
    session: Session | sa.Connection | scoped_session[Any],
    stream: str,
    event_type: str,
    payload: Any,
    *,
    metadata: Mapping[str, Any] | None = None,
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    ledger: Ledger | None = None,
    event_uuid: str | None = None,
    schemas: EventSchemas | None = None,
) -> str:
    """Write an event to the outbox, and return its UUID; it is published if the caller commits.

    With `Guarantee.AT_LEAST_ONCE` the event is committed at once in another transaction; in SQLite
    that waits for the caller's transaction if the caller has written. The payload may be a pydantic
    model. Without a ledger the tables have the default prefix. Raises `InvalidPayload`,
    `InvalidName`, `UsageError`.
    """
    if guarantee is Guarantee.AT_MOST_ONCE:
        raise UsageError(
            "an event cannot be sent at most once: an outbox keeps events until they are published",
            hint="use the guarantee with the consumer, or speak on the channel",
        )
    names.name("stream", stream)
    names.name("event type", event_type)
    if hasattr(payload, "model_dump"):
        payload = payload.model_dump(mode="json")
    body = _json("payload", payload)
    about = None if metadata is None else _json("metadata", metadata)
    (schemas or REGISTERED).check(stream, event_type, payload)
    event_id = event_uuid or new_uuid()
    names.name("event's UUID", event_id)
    ledger_tables = ledger.tables if ledger is not None else _USUAL
    row = {
        "stream": stream,
        "event_type": event_type,
        "event_uuid": event_id,
        "payload": body,
        "metadata": about,
    }
    if guarantee is Guarantee.AT_LEAST_ONCE:
        target = ledger or Ledger(session)  # type: ignore[arg-type]
        with target.committing("an event was sent") as connection:
            _insert(connection, ledger_tables, row)
    else:
        connection = session if isinstance(session, sa.Connection) else session.connection()
        _insert(connection, ledger_tables, row)
    return event_id


def _insert(connection: sa.Connection, ledger_tables: Tables, row: dict[str, Any]) -> None:
    statement: Any = sa.insert(ledger_tables.outbox)
    if connection.dialect.name == databases.POSTGRESQL:
        # Notify the relays in the same round trip. The notification has no payload: a long payload
        # would fail the caller's transaction, and equal notifications are sent once.
        statement = statement.returning(sa.func.pg_notify(ledger_tables.channel, ""))
    else:
        statement = statement.inline()
    connection.execute(statement, row)


def _json(kind: str, value: Any) -> str:
    if not isinstance(value, dict):
        raise InvalidPayload(
            f"the {kind} of an event is a {type(value).__name__}", hint="give a dict with text keys"
        )
    try:
        return envelope.encode(value, names.MAX_BODY_BYTES).decode()
    except InvalidPayload as error:
        raise InvalidPayload(
            error.message.replace("the payload", f"the {kind}", 1), hint=error.hint
        ) from error.__cause__


def new_uuid() -> str:
    """Return a UUID that begins with the time (version 7 of RFC 9562).

    UUIDs of the same time are adjacent in an index, which therefore stays fast as it grows.
    """
    stamp = (time.time_ns() // 1_000_000) & (2**48 - 1)
    chance = secrets.randbits(74)
    high, low = chance >> 62, chance & (2**62 - 1)
    return str(uuid.UUID(int=stamp << 80 | 7 << 76 | high << 64 | 2 << 62 | low))
