"""events demo: sends random events of a shop, as an application sends its own."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

from agentbus.commands import _events, _long_running
from agentbus.commands._declare import Call
from agentbus.core.json_text import to_json

if TYPE_CHECKING:
    from agentbus.events import Ledger

    Event = tuple[str, dict[str, Any]]

_STREAM = "shop:orders"
_RATE = 5.0
# The share of transactions that the application rolls back.
_ROLLED_BACK = 0.1
# Maximum number of open orders, since a demo may run for days.
_OPEN = 50
_PRICES = {"tea": 490, "coffee": 890, "mug": 1250, "kettle": 3990, "honey": 650}
_CARRIERS = ("bicycle", "van", "ship")
_METHODS = ("card", "transfer", "voucher")
_REASONS = ("changed their mind", "out of stock", "never paid")


class _RolledBack(Exception):
    """The exception with which a transaction is rolled back."""


def demo(call: Call) -> None:
    """Send random events until stopped, or a given number, and print each once committed."""
    _events.words(call, "")
    ledger = _events.ledger(call, make=True)
    if ledger.missing():
        ledger.create()
    ledger.check()
    stop = threading.Event()
    _long_running.until_told([(lambda: _send(call, ledger, stop), stop.set)])


def _send(call: Call, ledger: Ledger, stop: threading.Event) -> None:
    args = call.args
    rate = _RATE if args.rate is None else args.rate
    # The demo needs no secure randomness; a seed repeats a run.
    chance = random.Random(args.seed)  # noqa: S311
    number = chance.randrange(1_000, 1_000_000)
    orders: list[list[Event]] = []
    sent = 0
    due = time.monotonic()
    while not stop.is_set() and (args.count is None or sent < args.count):
        new = not orders or (len(orders) < _OPEN and chance.random() < 0.4)
        order = _life(chance, number + 1) if new else chance.choice(orders)
        if not _commit(call, ledger, *order[0], rolled_back=chance.random() < _ROLLED_BACK):
            continue
        del order[0]
        if new:
            number += 1
            orders.append(order)
        if not order:
            orders.remove(order)
        sent += 1
        if rate and sent != args.count:
            # After a slow write, do not catch up in a burst.
            due = max(due + 1 / rate, time.monotonic())
            stop.wait(min(due - time.monotonic(), threading.TIMEOUT_MAX))


def _commit(
    call: Call, ledger: Ledger, kind: str, payload: dict[str, Any], *, rolled_back: bool
) -> bool:
    """Send an event in its own transaction; tell whether it was committed."""
    from agentbus.events import send_event  # needs the extra `events`

    stream = call.args.stream or _STREAM
    try:
        with ledger.committing("an event was sent") as connection:
            event_uuid = send_event(connection, stream, kind, payload, ledger=ledger)
            if rolled_back:
                raise _RolledBack
    except _RolledBack:
        return False
    fields = {"event_uuid": event_uuid, "stream": stream, "event_type": kind, "payload": payload}
    call.out.record(fields, f"{event_uuid} {stream} {kind} {to_json(payload)}")
    return True


def _life(chance: random.Random, order: int) -> list[Event]:
    """Return an order's events: it is placed, paid and shipped, or cancelled."""
    items: list[dict[str, Any]] = [
        {"sku": sku, "quantity": chance.randint(1, 4), "price_cents": _PRICES[sku]}
        for sku in chance.sample(list(_PRICES), chance.randint(1, 3))
    ]
    total = sum(item["quantity"] * item["price_cents"] for item in items)
    customer, tracking = f"c{chance.randrange(1, 500)}", f"T{chance.randrange(10**9):09d}"
    placed = {"customer": customer, "items": items, "total_cents": total, "currency": "EUR"}
    paid = {"amount_cents": total, "method": chance.choice(_METHODS)}
    shipped = {"carrier": chance.choice(_CARRIERS), "tracking": tracking}
    events: list[Event] = [("OrderPlaced", placed), ("OrderPaid", paid), ("OrderShipped", shipped)]
    if chance.random() < 0.2:
        after = chance.randint(1, 2)
        refund = total if after == 2 else 0
        cancelled = {"reason": chance.choice(_REASONS), "refund_cents": refund}
        events[after:] = [("OrderCancelled", cancelled)]
    return [(kind, {"order": order, **payload}) for kind, payload in events]
