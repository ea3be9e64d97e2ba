"""The events of the demo project: two streams, a consumer that lags, and one in quarantine."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.orm import Session

from agentbus.core.clock import rfc3339
from agentbus.events import Consumer, Ledger, Relay, StreamEvent, register, send_event
from agentbus.events.redis import RedisClient
from agentbus.events.supervisor.quarantine import CRASH_LOOP, Quarantined, _write
from tests.screenshots.demo_talk import KEEPER

if TYPE_CHECKING:
    from tests.screenshots.demo import Demo

ORDERS, STOCK = "shop:orders", "shop:stock"
_SENT = {ORDERS: 48, STOCK: 31}
# Stream, consumer, and how many events it has handled.
_CONSUMERS = ((ORDERS, "stock", 48), (ORDERS, "analytics", 11), (STOCK, "mail", 31))


@contextlib.contextmanager
def ledger(place: pathlib.Path) -> Iterator[Ledger]:
    """Open a database of the project's own."""
    place.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(f"sqlite:///{place / 'shop.db'}")
    made = Ledger(engine)
    made.create()
    yield made
    engine.dispose()


def happen(project: Demo, of: Ledger) -> None:
    """Send events and publish them; each consumer handles its part of them."""
    bus = project.bus(KEEPER)
    for stream, count in _SENT.items():
        for number in range(count):
            with Session(of.engine) as session:
                payload = {"order": 48_200 + number, "pieces": 1 + number % 3}
                send_event(session, stream, "Changed", payload)
                session.commit()
    relay = Relay(of, bus)
    relay.run_once()
    relay.close()
    for stream, name, handled in _CONSUMERS:
        one = Consumer(register(_handled, stream, name=name), of, bus, at_once=handled)
        one._turn()
        one.close()
    why = "KeyError: 'vat_id'"
    stopped = Quarantined("invoices", ORDERS, rfc3339(bus.scope.now()), CRASH_LOOP, 5, why)
    with RedisClient(bus.runner) as server:
        _write(server, [stopped])


def _handled(_event: StreamEvent, _session: Session) -> None:
    """Act on an event: nothing of the demo project needs the effect."""
