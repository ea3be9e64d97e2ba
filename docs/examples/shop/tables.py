"""What the shop keeps in its database: its orders, and what lies on its shelves."""

import os
import sys

from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from agentbus.events import open_ledger

OPEN, RESERVED, SOLD_OUT = "open", "reserved", "sold out"


class Base(DeclarativeBase):
    """The shop's own tables; those of the events lie beside them."""


class Order(Base):
    """An order: open until the stock has decided about it."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    item: Mapped[str]
    pieces: Mapped[int]
    state: Mapped[str] = mapped_column(default=OPEN)


class Shelf(Base):
    """How many pieces of an item ever came in, and how many are left."""

    __tablename__ = "shelves"

    item: Mapped[str] = mapped_column(primary_key=True)
    received: Mapped[int]
    left: Mapped[int]


def database() -> Engine:
    """Return an engine for the database that the shop and `agentbus` share."""
    url = os.environ.get("AGENTBUS_DATABASE")
    if url is None:
        sys.exit("shop: no database: export AGENTBUS_DATABASE=sqlite:///shop.db")
    return open_ledger(url, make=True).engine
