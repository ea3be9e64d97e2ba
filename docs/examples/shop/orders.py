"""The till: takes orders, and tells of each in the commit that stores it."""

import random

from sqlalchemy.orm import Session

from agentbus.events import send_event
from shop.events import ORDER_PLACED, ORDERS
from shop.tables import Order

CUSTOMERS = ("ada", "grace", "edsger", "barbara")
ITEMS = ("cup", "plate", "spoon")
# One customer in ten finds no money, when the order is written down already.
BROKE = 0.1


class NoMoneyError(Exception):
    """Raised when a customer cannot pay."""


def place(session: Session, customer: str, item: str, pieces: int) -> None:
    """Store an order and tell of it: both happen when the caller commits, or neither."""
    order = Order(customer=customer, item=item, pieces=pieces)
    session.add(order)
    session.flush()
    payload = {"order": order.id, "customer": customer, "item": item, "pieces": pieces}
    send_event(session, ORDERS, ORDER_PLACED, payload)


def rush(session: Session, number: int, item: str | None = None) -> tuple[int, int]:
    """Place orders of random customers; returns how many were placed, and how many taken back.

    It is the same random every time, so that every run ends with the same figures.
    """
    chance = random.Random(number)
    placed = taken_back = 0
    while placed < number:
        customer = chance.choice(CUSTOMERS)
        wanted = chance.choice(ITEMS) if item is None else item
        try:
            with session.begin():
                place(session, customer, wanted, chance.randint(1, 3))
                if chance.random() < BROKE:
                    raise NoMoneyError(customer)
            placed += 1
        except NoMoneyError:
            taken_back += 1
    return placed, taken_back
