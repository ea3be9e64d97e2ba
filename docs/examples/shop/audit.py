"""The audit: counts orders, pieces and mails, and says whether they agree."""

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from agentbus.events import Ledger, parked
from shop import post
from shop.tables import OPEN, RESERVED, SOLD_OUT, Order, Shelf


@dataclass(frozen=True, slots=True)
class Figures:
    """Orders by state, pieces that came in, are left, and are in reserved orders, and mails."""

    orders: Counter[str]
    received: int
    left: int
    ordered: int
    mails: int
    parked: int

    @property
    def settled(self) -> bool:
        """Whether nothing is under way: all orders are decided or put aside, and all mails are out."""
        decided = self.orders[RESERVED] + self.orders[SOLD_OUT]
        return self.orders[OPEN] == self.parked and self.mails >= decided

    @property
    def agree(self) -> bool:
        """Whether what was taken is what was ordered, with a mail for each decided order."""
        decided = self.orders[RESERVED] + self.orders[SOLD_OUT]
        return self.received - self.left == self.ordered and self.mails == decided

    def __str__(self) -> str:
        """Return a line for orders, pieces and mails each."""
        states = ", ".join(f"{self.orders[state]} {state}" for state in (RESERVED, SOLD_OUT, OPEN))
        return (
            f"orders  {self.orders.total()}: {states}\n"
            f"pieces  {self.received}: {self.ordered} in orders, {self.left} left\n"
            f"mails   {self.mails}"
        )


def figures(session: Session) -> Figures:
    """Return what is counted now."""
    orders: Counter[str] = Counter()
    for state, number in session.execute(select(Order.state, func.count()).group_by(Order.state)):
        orders[state] = number
    ordered = select(func.coalesce(func.sum(Order.pieces), 0)).where(Order.state == RESERVED)
    shelves = select(
        func.coalesce(func.sum(Shelf.received), 0), func.coalesce(func.sum(Shelf.left), 0)
    )
    received, left = session.execute(shelves).one()
    # Those that are to be tried again are under way.
    aside = [one for one in parked(Ledger(session), "stock") if not one.waits]
    return Figures(
        orders, received, left, session.execute(ordered).scalar_one(), post.sent(), len(aside)
    )
