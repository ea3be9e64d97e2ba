"""Whether an event may be handed to a handler: its type and payload fit, and it is no forgotten one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core.errors import AgentBusError, InvalidPayload, ReplayTooOld
from agentbus.events import outbox

if TYPE_CHECKING:
    import sqlalchemy as sa

    from agentbus.events.declare import Declaration
    from agentbus.events.event import StreamEvent
    from agentbus.events.ledger import Ledger
    from agentbus.events.schemas import EventSchemas


class EventValidator:
    """Looks at events for one consumer before its handler does."""

    def __init__(self, registration: Declaration, ledger: Ledger, schemas: EventSchemas) -> None:
        self._registration = registration
        self._ledger = ledger
        self._schemas = schemas
        self._horizon = 0

    def look(self, connection: sa.Connection) -> None:
        """Look up to where it may be forgotten which events were processed."""
        self._horizon = outbox.horizon(connection, self._ledger.tables, self._registration.stream)

    def known(self, event: StreamEvent) -> bool:
        """Tell whether the stream may carry events of this type."""
        return self._schemas.knows(self._registration.stream, event.event_type)

    def wrong(self, event: StreamEvent) -> AgentBusError | None:
        """Return why an event is not to be handled, None if it is."""
        if event.outbox_id <= self._horizon and self._forgotten(event):
            return ReplayTooOld(
                f"the event {event.event_uuid} of the stream {event.stream_name!r} came again so late"
                " that it is forgotten whether it was handled",
                hint=f"remove its entry {event.redis_id} from the stream, or have failed events parked",
            )
        try:
            self._schemas.check(event.stream_name, event.event_type, event.payload)
        except InvalidPayload as error:
            return error
        return None

    def _forgotten(self, event: StreamEvent) -> bool:
        """Tell whether an event of before the horizon is neither known nor one that only took its time."""
        with self._ledger.engine.connect() as connection:
            return not outbox.knows(
                connection, self._ledger.tables, self._registration.name, event.event_uuid
            )
