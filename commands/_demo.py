"""events demo: random events of a shop, sent as an application sends its own."""

from __future__ import annotations

import random
import threading
import time

from agentbus.commands import _events, _long_running
from agentbus.commands._declare import Call
from agentbus.commands._output import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbus.events import Ledger

    Event = tuple[str, dict[str, Any]]

_STREAM = "shop:orders"
_RATE = 5.0
# What an application changes its mind about, of all that it begins.
_ROLLED_BACK = 0.1
# More orders than this do not wait for what comes next; a demo may run for days.
_OPEN = 50
_PRICES = {"tea": 490, "coffee": 890, "mug": 1250, "kettle": 3990, "honey": 650}
_CARRIERS = ("bicycle", "van", "ship")
_METHODS = ("card", "transfer", "voucher")
_REASONS = ("changed their mind", "out of stock", "never paid")


class _RolledBack(Exception):
    """Raised in a transaction so that it is rolled back."""


def demo(call: Call) -> None:
    """Send random events until told to stop, or so many, and print each once it is committed."""
    _events.words(call, "")
    made = _events.ledger(call, make=True)
    if made.missing():
        made.create()
    made.check()
    stop = threading.Event()
    _long_running.until_told([(lambda: _send(call, made, stop), stop.set)])


def _send(call: Call, ledger: Ledger, stop: threading.Event) -> None:
    args = call.args
    rate = _RATE if args.rate is None else args.rate
    # Randomness for show: a seed repeats it.
    chance = random.Random(args.seed)  # noqa: S311
    shop = _Shop(chance)
    sent = 0
    due = time.monotonic()
    while not stop.is_set() and (args.count is None or sent < args.count):
        if not _act(call, ledger, shop, rolled_back=chance.random() < _ROLLED_BACK):
            continue
        sent += 1
        if rate and sent != args.count:
            # What a slow database held up is not made up for in a burst.
            due = max(due + 1 / rate, time.monotonic())
            stop.wait(min(due - time.monotonic(), threading.TIMEOUT_MAX))


def _act(call: Call, ledger: Ledger, shop: _Shop, *, rolled_back: bool) -> bool:
    """Send the shop's next event in its own transaction; tell whether it was committed."""
    from agentbus.events import send_event

    stream = call.args.stream or _STREAM
    kind, payload = shop.next()
    try:
        with ledger.committing("an event was sent") as connection:
            found = send_event(connection, stream, kind, payload, ledger=ledger)
            if rolled_back:
                raise _RolledBack
    except _RolledBack:
        return False
    shop.happened(kind, payload)
    fields = {"event_uuid": found, "stream": stream, "event_type": kind, "payload": payload}
    call.out.record(fields, f"{found} {stream} {kind} {to_json(payload)}")
    return True


class _Shop:
    """Orders that are placed, paid and shipped, or cancelled; what was rolled back has not happened."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._number = chance.randrange(1_000, 1_000_000)
        self._placed: dict[int, int] = {}
        self._paid: dict[int, int] = {}

    def next(self) -> Event:
        """Return what may happen next."""
        pick = self._chance.random()
        waiting = len(self._placed) + len(self._paid)
        if waiting == 0 or (pick < 0.4 and waiting < _OPEN):
            return self._place()
        order = self._chance.choice([*self._placed, *self._paid])
        if pick > 0.9:
            return "OrderCancelled", {
                "order": order,
                "reason": self._chance.choice(_REASONS),
                "refund_cents": self._paid.get(order, 0),
            }
        if order in self._placed:
            method = self._chance.choice(_METHODS)
            return "OrderPaid", {
                "order": order,
                "amount_cents": self._placed[order],
                "method": method,
            }
        return "OrderShipped", {
            "order": order,
            "carrier": self._chance.choice(_CARRIERS),
            "tracking": f"T{self._chance.randrange(10**9):09d}",
        }

    def _place(self) -> Event:
        items: list[dict[str, Any]] = [
            {"sku": sku, "quantity": self._chance.randint(1, 4), "price_cents": _PRICES[sku]}
            for sku in self._chance.sample(list(_PRICES), self._chance.randint(1, 3))
        ]
        total = sum(item["quantity"] * item["price_cents"] for item in items)
        return "OrderPlaced", {
            "order": self._number + 1,
            "customer": f"c{self._chance.randrange(1, 500)}",
            "items": items,
            "total_cents": total,
            "currency": "EUR",
        }

    def happened(self, kind: str, payload: dict[str, Any]) -> None:
        """Note what was committed."""
        order = payload["order"]
        if kind == "OrderPlaced":
            self._number = order
            self._placed[order] = payload["total_cents"]
        elif kind == "OrderPaid":
            self._paid[order] = self._placed.pop(order)
        else:
            self._placed.pop(order, None)
            self._paid.pop(order, None)
