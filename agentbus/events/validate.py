"""Validates events before their handler: type, payload, and whether a duplicate would be detected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core.errors import AgentBusError, InvalidPayload, ReplayTooOld
from agentbus.events import outbox

if TYPE_CHECKING:
    import sqlalchemy as sa

    from agentbus.events.declare import Declaration
    from agentbus.events.event import StreamEvent
    from agentbus.events.ledger import Ledger
    from agentbus.events.parked_events import Parked
    from agentbus.events.schemas import EventSchemas


class EventValidator:
    """Validates the events of one consumer."""

    def __init__(self, registration: Declaration, ledger: Ledger, schemas: EventSchemas) -> None:
        self._registration = registration
        self._ledger = ledger
        self._schemas = schemas
        self._horizon = 0

    def look(self, connection: sa.Connection) -> None:
        """Read the outbox row up to which processed events may have been deleted."""
        self._horizon = outbox.horizon(connection, self._ledger.tables, self._registration.stream)

    def known(self, event: StreamEvent) -> bool:
        """Tell whether the stream accepts events of this type."""
        return self._schemas.knows(self._registration.stream, event.event_type)

    def wrong(self, event: StreamEvent) -> AgentBusError | None:
        """Return the reason why an event must not be handled, or None."""
        own = event.ledger in (0, self._ledger.identity())
        if own and event.outbox_id <= self._horizon and not self._knows(event):
            return _too_old(
                event,
                f"remove its entry {event.redis_id} from the stream, or let failed events be parked",
            )
        return self._unfit(event)

    def wrong_parked(self, parked: Parked) -> AgentBusError | None:
        """Return the reason why a parked event must still not be handled, or None.

        Its age does not matter: it was not handled, unless it was already too old when parked.
        """
        if parked.error.startswith(f"{ReplayTooOld.__name__}:"):
            return _too_old(parked.event, "drop it; if it was never handled, send it again")
        return self._unfit(parked.event)

    def _unfit(self, event: StreamEvent) -> InvalidPayload | None:
        try:
            self._schemas.check(event.stream_name, event.event_type, event.payload)
        except InvalidPayload as error:
            return error
        return None

    def _knows(self, event: StreamEvent) -> bool:
        """Tell whether the ledger still knows if an event was handled, even if it is late."""
        with self._ledger.engine.connect() as connection:
            return outbox.knows(
                connection, self._ledger.tables, self._registration.name, event.event_uuid
            )


def _too_old(event: StreamEvent, hint: str) -> ReplayTooOld:
    return ReplayTooOld(
        f"the event {event.event_uuid} of the stream {event.stream_name!r} is so old that the ledger no"
        " longer knows whether it was handled",
        hint=hint,
    )
